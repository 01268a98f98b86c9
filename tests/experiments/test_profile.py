"""Where a step's time goes: a sleep is found in its stage, the rule of the verdict by hand, and what is written."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from accelerate import Accelerator
from torch.autograd import DeviceType
from torch.autograd.profiler_util import FunctionEvent

from tests.data.image_folders import make_folder
from tests.tasks.contrastive.test_run import CONTRASTIVE
from tests.tasks.regression.test_training import SMALL
from tests.tasks.translation.test_training import COPYING
from tests.training.tiny import tiny
from vit.cli import main
from vit.config import DataConfig
from vit.data.augment import Augment
from vit.data.loading import TrainBatch, TrainLoader
from vit.experiments import profile
from vit.experiments.profile import (
    AUGMENT,
    AVERAGE,
    BACKWARD,
    FORWARD,
    READ,
    REDUCE,
    REST,
    STAGES,
    UPDATE,
    profile_run,
    verdict,
)
from vit.models import VisionTransformer
from vit.stopwatch import Stopwatch
from vit.tasks import images
from vit.tasks.classification.config import ClassificationRun
from vit.tasks.contrastive.metrics import Evaluator
from vit.training import loop
from vit.training.averaging import WeightAverage
from vit.training.session import open_session

NAP = 0.2
SLEEPERS: list[tuple[str, Any, str]] = [
    (READ, TrainLoader, "_make_batch"),
    (AUGMENT, TrainBatch, "to"),
    (AUGMENT, Augment, "__call__"),
    (FORWARD, VisionTransformer, "forward"),
    (BACKWARD, torch.Tensor, "backward"),
    (REDUCE, Accelerator, "reduce"),
    (UPDATE, torch.optim.AdamW, "step"),
    (AVERAGE, WeightAverage, "update"),
    (REST, loop, "set_learning_rate"),
]


def sleepy(call: Callable[..., Any]) -> Callable[..., Any]:
    def run(*args: Any, **options: Any) -> Any:
        time.sleep(NAP)
        return call(*args, **options)

    return run


def profiled(config: Any, folder: Path, monkeypatch: pytest.MonkeyPatch) -> profile.Profile:
    """Without the trace, which takes the longest."""
    monkeypatch.setattr(profile, "_traced", lambda *_: 0.9)
    folder.mkdir(exist_ok=True)
    return profile_run(config, folder, num_steps=2)


@pytest.mark.parametrize(("stage", "owner", "name"), SLEEPERS)
def test_a_sleep_is_found_in_its_stage(
    stage: str, owner: Any, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(owner, name, sleepy(getattr(owner, name)))
    found = profiled(tiny(train={"ema_decay": 0.9}), tmp_path, monkeypatch)
    assert tuple(found.step_ms) == STAGES
    assert found.step_ms[stage] >= 1e3 * NAP
    assert found.samples_per_second == pytest.approx(16 / (sum(found.step_ms.values()) / 1e3))  # two steps of 16
    assert found.samples_per_second <= 16 / NAP
    assert all(found.step_ms[other] < 1e3 * NAP for other in STAGES if other != stage), found.step_ms


@pytest.mark.parametrize(
    ("module", "name", "stage"),
    [
        (images, "open_training", "open the data"),
        (images, "fingerprint", "fingerprint of the data"),
        (images, "load_model", "model"),
    ],
)
def test_a_sleep_at_the_start_is_found(
    module: ModuleType, name: str, stage: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = sleepy(getattr(module, name))
    monkeypatch.setattr(module, name, own)
    found = profiled(tiny(), tmp_path, monkeypatch)
    assert found.start_seconds[stage] >= NAP
    assert getattr(module, name) is own


def test_loading_is_of_a_batch_of_the_images_that_were_decoded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for part, count in (("train", 12), ("val", 3)):
        make_folder(tmp_path / part, {"a": count, "b": count}, size=(8, 8))
    half = (0.5, 0.5, 0.5)
    data = DataConfig(name="imagefolder", root=str(tmp_path), batch_size=16, workers=0, mean=half, std=half)
    session = open_session(tiny(data=data), tmp_path / "run", compiles=False)
    seconds = iter((0.5, 0.2))  # both, and reading alone
    monkeypatch.setattr(profile, "_shortest", lambda work: work() and next(seconds))
    monkeypatch.setattr(profile, "_DECODED", 8)
    loading, _, _ = profile._loading(session)
    assert loading == {"read": pytest.approx(400), "decode": pytest.approx(600)}  # 16 images take twice as long


def test_nothing_is_learnt_and_nothing_is_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config: ClassificationRun = tiny()
    weights = []
    checkpoint = profile._checkpoint
    monkeypatch.setattr(profile, "_checkpoint", lambda session: weights.append(session) or checkpoint(session))
    found = profiled(config, tmp_path / "out", monkeypatch)
    expected = open_session(config, tmp_path).unwrapped_model.state_dict()
    assert all(torch.equal(expected[name], tensor) for name, tensor in weights[0].unwrapped_model.state_dict().items())
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["profile.json"]
    stored = json.loads((tmp_path / "out" / "profile.json").read_text())
    assert stored["step_ms"] == found.step_ms
    assert stored["conventions"]["verdict"] == profile.RULE
    assert found.checkpoint["mib"] > 0
    assert found.evaluation["images"] == found.evaluation["of_images"] == 3


def test_an_evaluation_in_part_is_of_the_images_that_are_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(profile, "_EVALUATED", 1)
    config = replace(CONTRASTIVE, data=replace(CONTRASTIVE.data, fake_images=100, eval_batch_size=4))
    seen: list[int] = []
    monkeypatch.setattr(Evaluator, "loss", lambda _, __, views: seen.append(views.samples_per_epoch) or 0.0)
    found = profiled(config, tmp_path, monkeypatch)
    assert (found.evaluation["images"], seen) == (4, [4])
    assert found.evaluation["of_images"] > 4


@pytest.mark.parametrize("config", [COPYING, SMALL], ids=["translation", "regression"])
def test_every_task_has_a_profile(config: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = profiled(config, tmp_path, monkeypatch)
    assert set(STAGES) - set(found.step_ms) <= {AVERAGE}
    assert min(found.step_ms[stage] for stage in (FORWARD, BACKWARD, UPDATE)) > 0
    assert found.loading_ms == {}
    assert "a step:" in found.text()
    assert found.text().splitlines()[0].startswith(f"{found.model} on {found.dataset}, fp32: ")


@pytest.mark.parametrize(("compiled", "sizes"), [(False, [16, 16, 5] * 2), (True, [16] * 6)])
def test_a_compiled_run_is_timed_at_one_size(compiled: bool, sizes: list[int], tmp_path: Path) -> None:
    session = open_session(tiny(train={"compile": compiled}), tmp_path, compiles=False)
    run = profile._steps(session, Stopwatch(torch.device("cpu")))
    assert [next(run) for _ in sizes] == sizes


def test_what_is_left_out_is_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    batch, read = TrainLoader._make_batch, []

    def remember(loader: TrainLoader, step: int, *given: Any) -> TrainBatch:
        read.append(step)
        return batch(loader, step, *given)

    monkeypatch.setattr(TrainLoader, "_make_batch", remember)
    session = open_session(tiny(train={"compile": True}), tmp_path, compiles=False)
    run = profile._steps(session, Stopwatch(torch.device("cpu")))
    for _ in range(5):
        next(run)
    assert read == [0, 1, 0, 1, 0]


def test_the_rule_of_the_verdict() -> None:
    compute = {READ: 19.0, FORWARD: 30.0, BACKWARD: 51.0}
    assert verdict(compute, 0.61, {}, 2) == "compute: most of it is backward (51%)"
    assert verdict(compute, 0.60, {}, 2).startswith("Python: operators run for 60% of the time")
    waiting = {READ: 20.0, FORWARD: 80.0}
    assert verdict(waiting, 0.1, {}, 0) == "the loader: a step waits for data for 20% of its time"
    loading = {"read": 10.0, "decode": 231.0}
    assert verdict(waiting, 0.9, loading, 1).endswith("decoding alone would keep 4 workers busy, there are 1")


def test_the_command_writes_a_trace_with_the_stages(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = tmp_path / "run.yaml"
    config.write_text("model: {name: vit, image_size: 8, patch_size: 4, width: 16, depth: 1, num_heads: 2}\n")
    words = ["--config", str(config), "--data.name", "fake", "--data.fake_images", "40", "--data.batch_size", "16"]
    assert main(["profile", *words, "--steps", "1", "--output_dir", str(tmp_path / "out")]) == 0
    assert "bound by" in capsys.readouterr().out
    events = json.loads((tmp_path / "out" / "trace.json").read_text())["traceEvents"]
    assert {FORWARD, BACKWARD, UPDATE, AUGMENT} <= {event.get("name") for event in events}


@pytest.mark.parametrize(("working", "waiting"), [(0.0, 0.3), (0.3, 0.0)])
def test_operators_of_a_wait_are_not_the_steps_work(working: float, waiting: float, tmp_path: Path) -> None:
    watch = Stopwatch(torch.device("cpu"))
    matrix = torch.randn(200, 200)

    def multiply(seconds: float) -> None:
        end = time.perf_counter() + seconds
        while time.perf_counter() < end:
            matrix @ matrix

    def steps() -> Iterator[int]:
        while True:
            with watch(READ):
                multiply(waiting)
            with watch(REST):
                multiply(working)
                time.sleep(0.1)
            yield 1

    share = profile._traced(steps(), watch, tmp_path, torch.device("cpu"))
    assert (share < 0.1) if waiting else (0.3 < share < 0.76)


def test_a_kernel_counts_once_and_outside_waits_only() -> None:
    """torch's own events: a kernel, the operator that it is attached to, and the stage, which CUDA shows as well."""

    def event(name: str, device: DeviceType, start: int, end: int, **options: Any) -> FunctionEvent:
        return FunctionEvent(
            start, name, 1, start, end, device_type=device, device_index=0, use_device="cuda", **options
        )

    operator = event("aten::mm", DeviceType.CPU, 0, 10)
    operator.append_kernel("gemm", 0, 50)
    waiting = event("aten::index", DeviceType.CPU, 210, 230)
    waiting.append_kernel("gather", 0, 30)
    events = [
        operator,
        waiting,
        event("gemm", DeviceType.CUDA, 100, 150),
        event("gather", DeviceType.CUDA, 220, 250),
        event(FORWARD, DeviceType.CPU, 0, 190),
        event(FORWARD, DeviceType.CUDA, 100, 150, is_user_annotation=True),
        event("Optimizer.step#AdamW.step", DeviceType.CUDA, 100, 150, is_user_annotation=True),
        event(READ, DeviceType.CPU, 200, 300),
    ]
    assert profile._busy_seconds(events, DeviceType.CUDA) == pytest.approx(50e-6)
    assert profile._busy_seconds(events, DeviceType.CPU) == pytest.approx(10e-6)


def test_no_steps_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["profile", "--steps", "0"]) == 2
    assert "--steps: 0 is not valid" in capsys.readouterr().err
