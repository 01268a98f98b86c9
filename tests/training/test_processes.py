"""Two and three processes give what one gives."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any, Literal

import pytest
import torch
from torch import Tensor

from tests.processes import in_processes
from tests.training.test_loop import assert_close, at_step, gradients
from tests.training.tiny import RANDOM, assert_same_bits, defined, last, tiny
from vit.data.images import open_test
from vit.data.loading import EvalLoader
from vit.engine import gather_uneven, make_accelerator
from vit.evaluation.evaluate import predict_all
from vit.evaluation.metrics import classification_metrics, confusion_matrix
from vit.hub import create_model, open_model
from vit.runs import read_metrics
from vit.tasks.classification import report as classification_report
from vit.tasks.classification.config import ClassificationRun
from vit.training.interruption import Stopped
from vit.training.loop import train

pytestmark = pytest.mark.skipif(not torch.distributed.is_available(), reason="torch was built without processes")


def test_the_same_gradients_in_two_processes(tmp_path: Path) -> None:
    """One process with 16 images, four micro-batches of 4, two processes of 8; the last step has 4 images."""
    config = tiny(**RANDOM)
    whole = gradients(config, tmp_path)
    assert all(any(gradient.any() for gradient in step.values()) for step in whole)
    ours, theirs = in_processes(2, gradients, config, tmp_path)
    for name, gradient in ours[0].items():
        assert torch.equal(gradient, theirs[0][name])
    assert_close(ours, whole)
    both = in_processes(2, gradients, tiny(config, train={"accumulation_steps": 2}), tmp_path)
    assert_close(both[0], whole)


def test_the_same_integers_in_one_two_and_three_processes() -> None:
    config = tiny(data={"fake_images": 4 * 31, "eval_batch_size": 4})  # 31 is a prime
    torch.manual_seed(0)
    model = create_model("vit", num_classes=3, image_size=8, patch_size=4, width=16, depth=1, num_heads=2)
    alone = predictions(config, model)
    assert alone["n_seen"] == alone["n_total"] == 31
    assert 0 < alone["top1"] < 1
    for count in (2, 3):
        for found in in_processes(count, predictions, config, model):
            assert found["indices"] == alone["indices"]
            assert torch.equal(found["counts"], alone["counts"])
            assert {name: found[name] for name in ("top1", "top5", "n_seen", "n_total", "n_broken")} == {
                name: alone[name] for name in ("top1", "top5", "n_seen", "n_total", "n_broken")
            }
            assert found["nll"] == pytest.approx(alone["nll"], rel=1e-6)


def predictions(config: ClassificationRun, model: Any) -> dict[str, Any]:
    accelerator = make_accelerator("cpu", "fp32")
    split = open_test(config.data)
    loader = EvalLoader(
        split,
        config.data.preprocessing((8, 8)),
        config.data,
        rank=accelerator.process_index,
        world_size=accelerator.num_processes,
    )

    def gather(values: Tensor) -> Tensor:
        return gather_uneven(accelerator, values)

    found = predict_all(model, loader, split.source.class_names, device=accelerator.device, gather=gather)
    return {
        **classification_metrics(found),
        "indices": found.indices.tolist(),
        "counts": torch.as_tensor(confusion_matrix(found)),
    }


def run_in(config: ClassificationRun, run: Path, resume: bool = False) -> dict[str, Any]:
    classification_report.draw_run = lambda *_: None  # in a process of its own
    return train(config, run, resume=resume)


def test_two_processes_train_the_same_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("vit.tasks.classification.report.draw_run", lambda *_: None)
    config = tiny(**RANDOM, train={"ema_decay": 0.9})
    alone = train(config, tmp_path / "one")
    ours, theirs = in_processes(2, run_in, config, tmp_path / "two")
    assert {key: value for key, value in ours.items() if "second" not in key} == {
        key: value for key, value in theirs.items() if "second" not in key
    }
    assert ours["processes"] == 2
    assert ours["test.n_seen"] == alone["test.n_seen"]
    pairs = list(zip(read_metrics(tmp_path / "one"), read_metrics(tmp_path / "two"), strict=True))
    for one, two in pairs[:4]:
        assert two["train.loss" if "train.loss" in one else "val.nll"] == pytest.approx(
            one["train.loss" if "train.loss" in one else "val.nll"], rel=1e-4
        )
    for group, tensors in last(tmp_path / "one").tensors.items():
        for name, tensor in tensors.items():
            other = last(tmp_path / "two").tensors[group][name]
            torch.testing.assert_close(defined(name, other), defined(name, tensor), rtol=1e-2, atol=1e-4)


def test_a_resnets_validation_is_that_of_the_checkpoint(tmp_path: Path) -> None:
    """BatchNorm's statistics are each process's own until they are shared."""
    config = tiny(train={"epochs": 1, "ema_decay": 0.5})
    values = dict.fromkeys(("image_size", "patch_size", "depth", "num_heads"))
    config = tiny(config, model={"name": "resnet18_cifar", **values, "image_size": 8, "width": 8})
    in_processes(2, run_in, config, tmp_path)
    logged = read_metrics(tmp_path)[-1]
    weights: Literal["raw", "ema"]
    for weights, prefix in (("raw", "val"), ("ema", "ema.val")):
        loaded = open_model(tmp_path, select="last", weights=weights)
        found = validate(config, loaded.model)
        assert logged[f"{prefix}.nll"] == pytest.approx(found["nll"], rel=1e-5), prefix


def validate(config: ClassificationRun, model: Any) -> dict[str, float]:
    from vit.data.images import open_training

    _, split = open_training(config.data)
    loader = EvalLoader(split, config.data.preprocessing((8, 8)), config.data)
    return classification_metrics(predict_all(model, loader, split.source.class_names, device=torch.device("cpu")))


def stopped_in(config: ClassificationRun, run: Path) -> tuple[int, str]:
    """Train, and let the second process alone be asked to stop."""
    if os.environ["RANK"] == "1":
        at_step(pytest.MonkeyPatch(), 1, lambda: os.kill(os.getpid(), signal.SIGTERM))
    with pytest.raises(Stopped) as stopped:
        train(config, run)
    return stopped.value.exit_code, str(stopped.value)


def test_a_signal_to_one_process_stops_all_at_the_same_step(tmp_path: Path) -> None:
    config = tiny(**RANDOM)
    answers = in_processes(2, stopped_in, config, tmp_path / "broken")
    assert answers[0] == answers[1]
    assert answers[0][0] == 143
    assert "after step 2" in answers[0][1]
    in_processes(2, run_in, config, tmp_path / "broken", True)
    in_processes(2, run_in, config, tmp_path / "whole")
    assert_same_bits(tmp_path / "whole", tmp_path / "broken")


def test_a_batch_that_does_not_divide_is_refused_everywhere(tmp_path: Path) -> None:
    for answer in in_processes(3, refused_in, tiny(), tmp_path):
        assert answer.startswith("data.batch_size: 16 is not valid")


def refused_in(config: ClassificationRun, run: Path) -> str:
    with pytest.raises(ValueError, match="batch_size") as caught:
        train(config, run)
    return str(caught.value)
