"""The files of a run folder: checkpoints, history, settings.

    RUN/config.yaml            every setting, and where each came from
    RUN/images.csv             the files of its training, validation and test images (`data/run_images.py`)
    RUN/metrics.jsonl          one line a logged step or evaluated epoch
    RUN/summary.json           flat; accuracies are fractions
    RUN/lock.json              the process that is training in it (`run_lock.py`)
    RUN/checkpoints/step-…/    model, ema and optimizer as safetensors, state.json, metrics.jsonl so far, hashes.json
    RUN/figures/ predictions/ README.md
    RUN/train.log              what a run printed that was trained beside others (`vit compare --at_once`)

Nothing in it is a pickle. A checkpoint is written to a temporary folder, hashed, flushed to the disk and renamed, so a
killed process leaves either the whole of it or none. Folders are flushed too, for a file survives a power cut only if
its name does. The best checkpoint is named in the state of the newest, so no second file can disagree with it.
"""

from vit.runs.checkpoints import (
    Checkpoint,
    DamagedCheckpoint,
    damaged_checkpoints,
    discard_after,
    find_checkpoint,
    holds_checkpoints,
    holds_run,
    last_checkpoint,
    newest_state,
    read_checkpoint,
    verify_checkpoint,
    write_checkpoint,
)
from vit.runs.earlier import keep_earlier, put_aside
from vit.runs.history import append_metrics, read_metrics, read_summary, restore_metrics
from vit.runs.writing import (
    flush_tree,
    make_folder,
    replace_atomically,
    write_csv,
    write_csv_rows,
    write_json,
    write_safetensors,
)

__all__ = [
    "Checkpoint",
    "DamagedCheckpoint",
    "append_metrics",
    "damaged_checkpoints",
    "discard_after",
    "find_checkpoint",
    "flush_tree",
    "holds_checkpoints",
    "holds_run",
    "keep_earlier",
    "last_checkpoint",
    "make_folder",
    "newest_state",
    "put_aside",
    "read_checkpoint",
    "read_metrics",
    "read_summary",
    "replace_atomically",
    "restore_metrics",
    "verify_checkpoint",
    "write_checkpoint",
    "write_csv",
    "write_csv_rows",
    "write_json",
    "write_safetensors",
]
