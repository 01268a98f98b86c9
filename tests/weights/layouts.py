"""`python -m tests.weights.layouts docs/weights.md [PATTERN]`: the measured table of layouts, and refusals' messages.

With PATTERN, a regular expression, only models of timm whose names it finds and the sections whose names it finds are
measured again (`SECTIONS`), and all other rows are kept.

For each layout the models tried, tensors loaded of those present, the largest relative difference of logits in float32,
and a bitwise round trip. The numbers are written next to it as JSON.
"""

from __future__ import annotations

import dataclasses
import fnmatch
import json
import pickle
import re
import sys
import tempfile
import warnings
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import timm
import torch
from safetensors.torch import save_file

from tests.weights import clip_towers, facebook_files, hf_models, test_resnets, timm_family
from tests.weights.proof import Row, compare_names, filled, prove
from tests.weights.test_npz import CASES, prove_npz
from vit.config import ViTConfig
from vit.hub import create_model
from vit.libraries.timm_writing import build_timm
from vit.libraries.torchvision import NAMES, build_torchvision
from vit.weights.torchvision import TORCHVISION, torchvision_config

GOOGLE = ViTConfig(image_size=(224, 224), width=192, depth=12, num_heads=3, num_classes=1000)


def torchvision_rows() -> Iterator[Row]:
    """Base models in full; the others with two blocks, and in full on the meta device."""
    import torchvision

    for name in NAMES:
        with torch.device("meta"):
            theirs = torchvision.models.get_model(name).state_dict()
        config = torchvision_config(theirs)
        assert config is not None
        if name.startswith("vit_b"):
            yield _torchvision_row(name, config, "whole")
        else:
            yield compare_names(TORCHVISION, name, config, theirs)
            yield _torchvision_row(name, dataclasses.replace(config, depth=2), "2 blocks")


def _torchvision_row(name: str, config: ViTConfig, how: str) -> Row:
    with torch.device("meta"):
        theirs = build_torchvision(config)
    return prove(TORCHVISION, name, config, filled(theirs).state_dict(), how)


def npz_rows() -> Iterator[Row]:
    for case in CASES:
        yield prove_npz(case, GOOGLE)


def refusals() -> Iterator[tuple[str, str]]:
    """Each error case, and the message that refuses it."""
    config = ViTConfig(image_size=(32, 32), width=48, depth=1, num_heads=3, num_classes=7)
    options: dict[str, Any] = {"image_size": 32, "patch_size": 16, "width": 48, "depth": 1, "num_heads": 3}
    with torch.device("meta"):
        model = build_timm(dataclasses.replace(config, image_size=(224, 224)))
    tensors = filled(model).state_dict()
    with tempfile.TemporaryDirectory() as place:
        whole, cut, code = (Path(place) / name for name in ("whole.safetensors", "cut.safetensors", "code.pth"))
        save_file(tensors, whole)
        cut.write_bytes(whole.read_bytes()[:-100])
        code.write_bytes(pickle.dumps({"a": _Code()}, protocol=2))
        windows = Path(place) / "windows.safetensors"
        save_file(tensors | {"blocks.0.attn.relative_position_bias_table": torch.zeros(9, 3)}, windows)
        cases: dict[str, tuple[str | None, Path | str, dict[str, Any]]] = {
            "a truncated file": ("vit", cut, options | {"num_classes": 7}),
            "a pickle with code": ("vit", code, options | {"num_classes": 7}),
            "a head of another size": ("vit", whole, options | {"num_classes": 5}),
            "an ambiguous grid": ("vit", whole, options | {"num_classes": 7, "image_size": (112, 448)}),
            "a deeper model": ("vit", whole, options | {"num_classes": 7, "depth": 2}),
            "another model": ("vit", whole, options | {"num_classes": 7, "class_token": False, "pooling": "gap"}),
            "a file without a name": (None, whole, {}),
            "windows or relative biases in a file": ("vit", windows, options | {"num_classes": 7}),
            "windows by name": (None, "timm:swin_tiny_patch4_window7_224", {}),
            "relative biases by name": ("vit_relpos_base_patch16_224", whole, {}),
        }
        for what, (name, source, settings) in cases.items():
            try:
                create_model(name, pretrained=str(source), **settings)
            except ValueError as refusal:
                yield what, str(refusal).replace(f"{place}/", "")


class _Code:
    def __reduce__(self) -> tuple[Any, ...]:
        return (print, ("this ran",))


def table(rows: list[Row]) -> str:
    """One line per layout."""
    lines = [
        "| layout | models | run in full | run with two blocks | names and shapes compared | "
        "tensors loaded of those present | largest relative difference | round trip bitwise |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for layout in dict.fromkeys(row.layout for row in rows):
        own = [row for row in rows if row.layout == layout]
        measured = [row for row in own if row.difference is not None]
        ways = Counter(row.how for row in own)
        largest = max((row.difference for row in measured if row.difference is not None), default=float("nan"))
        lines.append(
            f"| {layout} | {len({row.model for row in own})} | "
            f"{ways['whole']} | {ways['2 blocks']} | {ways['meta']} | "
            f"{sum(row.loaded for row in own):,} of {sum(row.present for row in own):,} | {largest:.1e} | "
            f"{'yes' if all(row.exact for row in measured) else 'NO'} |"
        )
    return "\n".join(lines)


SECTIONS: dict[str, Callable[[], Iterator[Row]]] = {
    "torchvision": torchvision_rows,
    "google": npz_rows,
    "transformers": hf_models.rows,
    "facebook": facebook_files.rows,
    "open_clip": clip_towers.rows,
    "resnets": test_resnets.rows,
}


def measured(pattern: str) -> Iterator[Row]:
    """The rows of timm's models and of the sections that `pattern` finds."""
    for name in timm_family.names():
        found = timm_family.examine(name) if re.search(pattern, name) else ""
        yield from found if isinstance(found, list) else ()
    for section, rows_of in SECTIONS.items():
        yield from rows_of() if re.search(pattern, section) else ()


def states_table(states: Mapping[str, Sequence[str]]) -> str:
    """How many names each pattern of timm's has in each state, the loaded ones, and why the others are not."""
    kinds = (timm_family.LOADED, timm_family.THEIRS, timm_family.REFUSED)
    lines = [f"| names | {' | '.join(kinds)} | of | their pretrained weights, loaded |", "|---|---|---|---|---|---|"]
    for title, own in (
        *((f"`{pattern}`", fnmatch.filter(states, pattern)) for pattern in timm_family.PATTERNS),
        ("all of these", list(states)),
    ):
        counts = Counter(states[name][0] for name in own)
        tags = [tag for name in own for tag in timm.list_pretrained(f"{name}.*")]
        loaded = sum(states[tag.partition(".")[0]][0] == timm_family.LOADED for tag in tags)
        row = (title, *(str(counts[kind]) for kind in kinds), str(len(own)), f"{loaded} of {len(tags)}")
        lines.append(f"| {' | '.join(row)} |")
    lines += ["", "| why it is not loaded | state | names |", "|---|---|---|"]
    reasons: dict[tuple[str, str], list[str]] = defaultdict(list)
    for name, (state, reason) in states.items():
        if state != timm_family.LOADED:
            reasons[reason, state].append(f"`{name}`")
    for (reason, state), own in sorted(reasons.items(), key=lambda item: -len(item[1])):
        lines.append(f"| {reason} | {state} | {len(own)}: {', '.join(own)} |")
    loaded_names = [f"`{name}`" for name, (state, _) in states.items() if state == timm_family.LOADED]
    lines += ["", f"The {len(loaded_names)} that are loaded: {', '.join(loaded_names)}."]
    return "\n".join(lines)


def write(path: Path, pattern: str = "") -> None:
    """Measure what `pattern` finds, write the table and the numbers."""
    new = []
    for row in measured(pattern):
        print(row, flush=True)
        new.append(row)
    rows = new
    if pattern:
        old = [Row(**row) for row in json.loads(path.with_suffix(".json").read_text())["rows"]]
        again = {(row.layout, row.model, row.how) for row in new}  # several rows may have the same, as of two settings
        rows = [row for row in old if (row.layout, row.model, row.how) not in again] + new
    states = {name: timm_family.state_of(name) for name in timm_family.documented_names()}
    lines = dict(refusals())
    content = {"rows": [dataclasses.asdict(row) for row in rows], "states": states, "lines": lines}
    path.with_suffix(".json").write_text(json.dumps(content, indent=1))
    said = "\n".join(f"| {case} | `{line}` |" for case, line in lines.items())
    path.write_text(
        f"{_HEAD}\n{table(rows)}\n\n{_STATES}\n{states_table(states)}\n\n"
        f"## Error messages\n\n| case | message |\n|---|---|\n{said}\n"
    )


_STATES = """\
## timm's Vision Transformers by name

"Loaded" means that this package computes the model. "Computed by timm" means that `timm:NAME` opens timm's own model,
which analysis, comparison, transfer and export accept as well (`--implementation theirs` asks for it);
`--implementation ours` is refused with the reason. "Refused" means by both. On 2026-11-23, before there were rotary
blocks, 145 of 233 names and 299 of 463 pretrained weights were loaded.

If `vit analyze` cannot draw a figure for a model computed by timm, it says so in one line. There are no attention maps
where attention is differential (`vit_dlittle_*`, `vit_dpwee_*`, `vit_dwee_*`: a difference of two maps), in windows
smaller than the image or padded (`samvit_*` of 1024 pixels), or only in the pooling (`resnet*_clip`). There are no
ratios of skip and branch where attention and feed-forward are computed in parallel (`vit_*_xp_*`, `vit_pwee_*`,
`vit_dpwee_*`) or in ResNets, and no position vectors where positions are biases or factorized. For `samvit_*` and
`resnet*_clip`, transfer only reads the head's input.
"""


_HEAD = """\
# Layouts of weights

Measured by `python -m tests.weights.layouts docs/weights.md`: each model is compared with the same model in the
source library, with random weights, on random images, in float32 on one processor core. The difference is the largest
difference of the logits, relative to their largest magnitude. Larger models were run with two of their blocks, and
all of their names and shapes were compared on the meta device (timm models with more than 1,100 tokens only on the
meta device). For ResNets with more than 30 million parameters, only names and shapes were compared, and their blocks
in smaller models. The files of the CIFAR ResNets (`linear`, `shortcut`) do not belong to a library; their logits are
compared with those of a network in the test.

Tensors that are present but not loaded are dropped by the layout on purpose: text towers, decoders, masks, projection
heads of pre-training. Anything else that is unexpected or missing is an error.

The outputs also equal the library's at image sizes other than the model's own: [positions](position_resize.md).

Google's `.npz` files are compared with timm's own reader. Google's code computes GELU with the tanh approximation,
which is used here for a file without a model name; timm uses exact GELU with the same weights, and so do the names
shared with timm.
"""

if __name__ == "__main__":
    warnings.filterwarnings("ignore")
    torch.set_num_threads(1)
    write(Path(sys.argv[1]), *sys.argv[2:3])
