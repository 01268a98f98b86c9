"""What is refused before the first step."""

from __future__ import annotations

import ctypes
import sys
from dataclasses import replace
from itertools import islice
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn
from torch._dynamo import config as dynamo
from torch._dynamo.testing import CompileCounter

from tests.tasks.masked_autoencoder.test_run import MAE
from tests.training.tiny import tiny
from vit.config import TrainConfig
from vit.engine import make_accelerator
from vit.training import session as session_module
from vit.training.loop import steps, train
from vit.training.session import compile_as_configured, open_session

RESNET = {"name": "resnet18_cifar", "width": 4, "patch_size": None, "depth": None, "num_heads": None}


def test_a_resnet_refuses_micro_batches_too_small_for_its_statistics(tmp_path: Path) -> None:
    steps = {
        count: open_session(tiny(model=RESNET, train={"accumulation_steps": count}), tmp_path).total_steps
        for count in (1, 2, 4)
    }
    # of 37 images the last five make micro-batches of two and three, but not four of two: they join the step before
    assert steps == {1: 6, 2: 6, 4: 4}
    assert open_session(tiny(train={"accumulation_steps": 4}), tmp_path).total_steps == 6
    with pytest.raises(ValueError, match=r"data\.batch_size: 16 is not valid: .* a micro-batch of 1 images"):
        open_session(tiny(model=RESNET, train={"accumulation_steps": 16}), tmp_path)


NOT_RANDOM: dict[str, Any] = dict.fromkeys(("dropout_rate", "attention_dropout_rate", "stochastic_depth_rate"), 0.0)
GRAPHS = {"compile": True, "cuda_graphs": True}


def test_cuda_graphs_need_cuda(tmp_path: Path) -> None:
    rule = r"train\.cuda_graphs: True is not valid: only CUDA has them, this run is on cpu"
    for compiles in (True, False):  # a plan refuses what training would
        with pytest.raises(ValueError, match=rule):
            open_session(tiny(train=GRAPHS), tmp_path, compiles=compiles)


@pytest.mark.parametrize(("processes", "refused"), [(1, False), (2, True)])
def test_cuda_graphs_are_one_processs(processes: int, refused: bool) -> None:
    device: Any = SimpleNamespace(device=torch.device("cuda"), num_processes=processes)
    if refused:
        with pytest.raises(ValueError, match=r"train\.cuda_graphs: True is not valid: .*launch one, or leave it out"):
            session_module._check_cuda_graphs(tiny(train=GRAPHS), device)
    else:
        session_module._check_cuda_graphs(tiny(train=GRAPHS), device)


def test_every_size_of_growing_images_is_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    compile_it = nn.Module.compile
    monkeypatch.setattr(nn.Module, "compile", lambda self, **_: compile_it(self, backend="eager", dynamic=False))
    model = nn.Conv2d(3, 4, 3)
    with dynamo.patch(recompile_limit=8, fail_on_recompile_limit_hit=True):
        compile_as_configured(model, TrainConfig(compile=True))
        for side in range(16, 33):
            for count in (4, 3):  # an epoch's last group has fewer images
                assert model(torch.rand(count, 3, side, side)).shape == (count, 4, side - 2, side - 2)


@pytest.mark.parametrize(("settings", "modes"), [({}, []), ({"compile": True}, [None]), (GRAPHS, ["reduce-overhead"])])
def test_compiled_as_configured(
    settings: dict[str, Any], modes: list[str | None], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str | None] = []
    monkeypatch.setattr(nn.Module, "compile", lambda _, mode: asked.append(mode))
    compile_as_configured(nn.Linear(2, 2), TrainConfig(**settings))
    assert asked == modes


@pytest.mark.filterwarnings("default")  # the compiler warns itself about how it traces
def test_one_program_computes_every_block(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    counter, compiled = CompileCounter(), nn.Module.compile
    monkeypatch.setattr(nn.Module, "compile", lambda module: compiled(module, backend=counter))
    model = {"depth": 3, "pooling": "gap", "patch_dropout_rate": 0.25}  # which reads every token of the last block
    found: dict[bool, list[float]] = {}
    for blocks in (False, True):
        settings = {"compile": blocks, "compile_blocks": blocks}
        session = open_session(tiny(model=model, train=settings), tmp_path)
        found[blocks] = [step.loss for step in islice(steps(session), 2)]
    assert counter.frame_count == 1
    assert found[True] == pytest.approx(found[False], rel=1e-5)


@pytest.mark.filterwarnings("default")  # the compiler warns itself about how it traces
def test_blocks_need_no_program_for_every_size_of_images_that_grow(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Five sizes, each with a smaller last batch: a program of fixed sizes, then open batches, then open tokens too."""
    counter, compiled = CompileCounter(), nn.Module.compile
    monkeypatch.setattr(nn.Module, "compile", lambda module: compiled(module, backend=counter))
    model = {"image_size": 32, "pooling": "gap", "positions": "learned_1d_rope", "patch_dropout_rate": 0.25}
    growing = {"first_image_size": 16, "growing_epochs": 4}
    found: dict[bool, list[float]] = {}
    for blocks in (False, True):
        settings = {"epochs": 5, "compile": blocks, "compile_blocks": blocks}
        session = open_session(tiny(model=model, augment=growing, train=settings), tmp_path)
        found[blocks] = []
        for session.progress.epoch in range(5):
            session.progress.step_in_epoch = 0
            found[blocks] += [step.loss for step in steps(session)]
    assert len(found[True]) == 15
    assert 1 <= counter.frame_count <= 3
    assert found[True] == pytest.approx(found[False], rel=1e-4)


@pytest.mark.parametrize(
    ("model", "rule"),
    [
        (RESNET, "only the blocks of a VisionTransformer are alike, this is a ResNet"),
        *(({name: 0.1}, rf"with model\.{name} 0\.1 each block draws its own random numbers") for name in NOT_RANDOM),
    ],
)
def test_blocks_that_are_not_alike_are_not_compiled_as_one(model: dict[str, Any], rule: str, tmp_path: Path) -> None:
    config = tiny(model=model, train={"compile": True, "compile_blocks": True})
    for compiles in (True, False):  # a plan refuses what training would
        with pytest.raises(ValueError, match=rf"train\.compile_blocks: True is not valid: .*{rule}"):
            open_session(config, tmp_path, compiles=compiles)


def test_the_decoder_of_a_masked_autoencoder_is_compiled_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    compiled: list[nn.Module] = []
    monkeypatch.setattr(nn.Module, "compile", lambda module: compiled.append(module))
    train = replace(MAE.train, compile=True, compile_blocks=True)
    session = open_session(replace(MAE, model=replace(MAE.model, **NOT_RANDOM), train=train), tmp_path)
    model: Any = session.task.model
    assert compiled == [*model.encoder.blocks, *model.decoder.blocks]


@pytest.mark.parametrize(("trains", "calls"), [(True, 1), (False, 0)])
def test_freed_memory_is_kept_for_training_alone(
    trains: bool, calls: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept: list[str] = []
    monkeypatch.setattr(session_module, "keep_freed_memory", lambda: kept.append("call"))
    make_accelerator("cpu", "fp32")
    open_session(tiny(), tmp_path, compiles=trains)
    assert len(kept) == calls


@pytest.mark.skipif(sys.platform != "linux", reason="glibc's mallopt")
def test_an_accelerator_leaves_the_allocator_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    libraries: list[object] = []
    monkeypatch.setattr(ctypes, "CDLL", libraries.append)
    make_accelerator("cpu", "fp32")
    assert libraries == []


def test_processes_that_see_other_checkpoints_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As of a folder on each machine's own disk; one would go on from the beginning, and DDP would not notice."""
    train(tiny(train={"epochs": 1}), tmp_path)
    monkeypatch.setattr("vit.training.checkpoints.gather_object", lambda found: [*found, "none"])
    with pytest.raises(ValueError, match=r"--resume: .*the processes see other checkpoints in it \(none, step-\d+\)"):
        train(tiny(train={"epochs": 2}), tmp_path, resume=True)


def test_a_folder_that_is_not_shared_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("vit.training.starting.gather_object", lambda found: [*found, False])
    with pytest.raises(ValueError, match=r"output_dir: .*run' is not valid: not every process sees it"):
        train(tiny(train={"epochs": 1}), tmp_path / "run")
