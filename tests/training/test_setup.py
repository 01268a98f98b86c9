"""What is refused before the first step."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

from tests.training.tiny import tiny
from vit.config import TrainConfig
from vit.training import setup
from vit.training.setup import compile_as_configured, prepare

RESNET = {"name": "resnet18_cifar", "width": 4, "patch_size": None, "depth": None, "num_heads": None}


def test_a_resnet_refuses_micro_batches_too_small_for_its_statistics(tmp_path: Path) -> None:
    split = prepare(tiny(model=RESNET, train={"accumulation_steps": 2}), tmp_path).task.train_loader.samples_per_epoch
    assert split % 16 == 5, "the last step's five images make micro-batches of two and three, but not four of two"
    with pytest.raises(ValueError, match=r"data\.batch_size: 16 is not valid: .* a micro-batch of 1 images"):
        prepare(tiny(model=RESNET, train={"accumulation_steps": 4}), tmp_path)
    prepare(tiny(train={"accumulation_steps": 4}), tmp_path)


GRAPHS = {"compile": True, "cuda_graphs": True}


def test_cuda_graphs_need_cuda(tmp_path: Path) -> None:
    rule = r"train\.cuda_graphs: True is not valid: only CUDA has them, this run is on cpu"
    for compiles in (True, False):  # a plan refuses what training would
        with pytest.raises(ValueError, match=rule):
            prepare(tiny(train=GRAPHS), tmp_path, compiles=compiles)


@pytest.mark.parametrize(("processes", "refused"), [(1, False), (2, True)])
def test_cuda_graphs_are_one_processs(processes: int, refused: bool) -> None:
    device: Any = SimpleNamespace(device=torch.device("cuda"), num_processes=processes)
    if refused:
        with pytest.raises(ValueError, match=r"train\.cuda_graphs: True is not valid: .*launch one, or leave it out"):
            setup._check_cuda_graphs(tiny(train=GRAPHS), device)
    else:
        setup._check_cuda_graphs(tiny(train=GRAPHS), device)


@pytest.mark.parametrize(("settings", "modes"), [({}, []), ({"compile": True}, [None]), (GRAPHS, ["reduce-overhead"])])
def test_compiled_as_configured(
    settings: dict[str, bool], modes: list[str | None], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str | None] = []
    monkeypatch.setattr(nn.Module, "compile", lambda _, mode: asked.append(mode))
    compile_as_configured(nn.Linear(2, 2), TrainConfig(**settings))
    assert asked == modes
