"""`python -m benchmarks`: run one benchmark and print its numbers or write them as JSON.

Errors and exit codes are those of the command `vit`.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from functools import partial

from benchmarks.commands import attention, data, models, processes, trainings
from vit.cli import run_command
from vit.config import nearest

_USAGE = """\
python -m benchmarks NAME …

  forward     forward passes against other libraries' models       [--models Ti S] [--compile]
  step        training steps against other libraries' models       [--models Ti S] [--compile]
  eight_bits  int8 against float, onnxruntime and torchao          [--models Ti S] [--batch_sizes 1 8]
  deployed    accuracy in bfloat16, eight bits and as ONNX         MODEL [--data DATA] [--sensitivity 1000]
  data        source to augmented batch, against two loaders       --config FILE [--workers 0 1 2]
  epoch       whole training epochs against the reference loop     --config FILE [--workers 0 1 2]
  attention   the backends, and auto against sdpa in models        [--models …]
  analysis    statistics of attention against its maps             [--tokens 196 1024 4096]
  distance    attention distance of a ViT against its maps         [--sizes 224 512 1024]
  ablation    what each ingredient of a recipe brings              FILE --minutes M
  budgeted    trainings of a list, in calls of limited time         FILE --minutes M [--rehearse]
  speedrun    disk to test accuracy: whole trainings over seeds    --config NAME [--seeds 0 1 2 3 4]
  recipes     how long trainings take, from some of their steps    RECIPE RECIPE… [--turns 3]
  transfer    frozen features against a loop of timm, scikit-learn  --source DIR --data DIR
  capture     architectures whose attention can be read
  memory      peaks of whole commands, with their bounds           [--only NAME …]
  growth      time and memory by tokens, batch and depth           [--output DIR]
  layers      kinds of layers as sequences grow                    [--figure PNG]

`python -m benchmarks NAME --help` lists all options."""

BENCHMARKS: dict[str, Callable[[list[str]], None]] = {
    "forward": partial(models.speed, "forward"),
    "step": partial(models.speed, "step"),
    "eight_bits": models.eight_bits,
    "deployed": models.deployed,
    "data": partial(data.pipeline, "data"),
    "epoch": partial(data.pipeline, "epoch"),
    "attention": attention.attention,
    "analysis": attention.analysis,
    "distance": attention.distance,
    "ablation": trainings.ablation,
    "budgeted": trainings.budgeted,
    "speedrun": trainings.speedrun,
    "recipes": trainings.recipes,
    "transfer": processes.transfer,
    "capture": attention.capture,
    "memory": processes.memory,
    "growth": processes.growth,
    "layers": attention.layers,
}


def main(argv: Sequence[str] | None = None) -> int:
    """Run one benchmark and return the exit code."""
    argv = list(sys.argv[1:] if argv is None else argv)
    if not argv or argv[0] in ("-h", "--help"):
        print(_USAGE)
        return 0
    return run_command(_run, argv)


def _run(argv: list[str]) -> None:
    name, *rest = argv
    if name not in BENCHMARKS:
        raise ValueError(f"there is no benchmark {name!r}; {nearest(name, BENCHMARKS)}")
    BENCHMARKS[name](rest)


if __name__ == "__main__":
    sys.exit(main())
