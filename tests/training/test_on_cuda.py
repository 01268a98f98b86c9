"""Training on a CUDA device: what is kept there, and what its graphs play back, against the plain way."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch._dynamo.utils import counters
from torch._inductor.cudagraph_trees import CUDAGraphTreeManager

from tests.training.tiny import RANDOM, assert_same_bits, defined, last, tiny
from vit.training.loop import train
from vit.training.session import open_session

pytestmark = [pytest.mark.cuda, pytest.mark.usefixtures("no_figures")]


def test_images_that_are_kept_on_the_device_train_as_streamed_ones_do(tmp_path: Path) -> None:
    config = tiny(device="cuda", **RANDOM)
    step = next(iter(open_session(config, tmp_path).task.train_loader.loader.epoch(0)))  # type: ignore[attr-defined]
    assert step.batches[0].images.device.type == "cuda"
    train(config, tmp_path / "kept")
    train(tiny(config, data={"cache_gib": 0.0}), tmp_path / "streamed")
    assert_same_bits(tmp_path / "kept", tmp_path / "streamed")


@pytest.mark.filterwarnings("default")  # the compiler warns itself about how it traces
@pytest.mark.parametrize("model", [{}, RANDOM["model"]], ids=["plain", "random"])
def test_a_run_of_cuda_graphs_learns_what_the_plain_one_does(
    model: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recorded, record = set(), CUDAGraphTreeManager.record_function

    def record_function(manager: CUDAGraphTreeManager, inputs: Any, function: Any) -> Any:
        recorded.add(manager.id_to_mode[function].name)
        return record(manager, inputs, function)

    monkeypatch.setattr(CUDAGraphTreeManager, "record_function", record_function)
    settings: dict[str, Any] = {"data": {"eval_batch_size": 1}, "train": {"epochs": 8, "ema_decay": 0.9}}
    config = tiny(device="cuda", model=model, **settings)
    counters["inductor"].clear()
    train(tiny(config, train={"compile": True, "cuda_graphs": True}), tmp_path / "graphs")
    assert counters["inductor"]["cudagraph_skips"] == 0
    assert recorded >= {"FORWARD", "BACKWARD"}
    train(config, tmp_path / "plain")
    for name, tensor in last(tmp_path / "plain").tensors["model"].items():
        found = last(tmp_path / "graphs").tensors["model"][name]
        torch.testing.assert_close(defined(name, found), defined(name, tensor), rtol=5e-2, atol=5e-3)
