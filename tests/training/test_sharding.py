"""Two processes that hold half of every weight each (FSDP2) compute what one process with all of them does.

Accelerate does not shard on a CPU, and the engine refuses that. torch does, so Accelerate is told here that it may.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from accelerate.utils import DistributedType
from torch import Tensor

from tests.processes import in_processes
from tests.training.tiny import RANDOM, defined, last, tiny
from vit.engine import make_accelerator
from vit.hub import load_model
from vit.models import VisionTransformer
from vit.runs import read_metrics
from vit.sharding import is_shard, is_sharded
from vit.tasks.classification import report as classification_report
from vit.tasks.classification.config import ClassificationRun
from vit.training import session as session_module
from vit.training.checkpoints import save_session
from vit.training.loop import train
from vit.training.starting import start_run

pytestmark = pytest.mark.skipif(not torch.distributed.is_available(), reason="torch was built without processes")


def shard_on_cpu() -> None:
    """From here on this process's Accelerators split models, a block at a time, as on CUDA devices."""
    from accelerate.state import AcceleratorState
    from accelerate.utils import FullyShardedDataParallelPlugin

    def make_sharding(*arguments: Any, **options: Any) -> Any:
        accelerator = make_accelerator(*arguments, **options)
        plugin = FullyShardedDataParallelPlugin(
            fsdp_version=2, auto_wrap_policy="transformer_based_wrap", transformer_cls_names_to_wrap=["Block"]
        )
        if accelerator.mixed_precision != "no":
            plugin.set_mixed_precision(accelerator.mixed_precision)
        AcceleratorState._shared_state |= {"distributed_type": DistributedType.FSDP, "fsdp_plugin": plugin}
        return accelerator

    pytest.MonkeyPatch().setattr(session_module, "make_accelerator", make_sharding)  # for good


def run_sharded(config: ClassificationRun, run: Path, resume: bool = False) -> dict[str, Any]:
    shard_on_cpu()
    classification_report.draw_run = lambda *_: None  # in a process of its own
    return train(config, run, resume=resume)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["adamw", "lamb", "muon"])
def test_a_sharded_run_is_that_of_one_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """Losses, validation, and every tensor of the checkpoint: weights, average, optimizer."""
    monkeypatch.setattr("vit.tasks.classification.report.draw_run", lambda *_: None)
    changed = {"ema_decay": 0.9, "accumulation_steps": 2}
    config = tiny(**RANDOM, train=changed, optim={"name": name, "clip_norm": 0.5})
    alone = train(config, tmp_path / "one")
    ours, theirs = in_processes(2, run_sharded, config, tmp_path / "two")
    assert {key: value for key, value in ours.items() if "second" not in key} == {
        key: value for key, value in theirs.items() if "second" not in key
    }
    for key in ("params", "gmacs", "steps", "test.n_seen"):
        assert ours[key] == alone[key]
    first, second = (read_metrics(tmp_path / folder)[0] for folder in ("one", "two"))
    assert second["train.loss"] == pytest.approx(first["train.loss"], rel=1e-5)
    groups, found = last(tmp_path / "one").tensors, last(tmp_path / "two").tensors
    assert groups.keys() == found.keys() == {"model", "optimizer", "ema"}
    for group, tensors in groups.items():
        assert tensors.keys() == found[group].keys()
        for key, tensor in tensors.items():
            ours, theirs = {key: defined(key, found[group][key])}, {key: defined(key, tensor)}  # named in the message
            torch.testing.assert_close(ours, theirs, rtol=1e-2, atol=1e-4)


@pytest.mark.slow
def test_a_sharded_run_in_bfloat16_learns(tmp_path: Path) -> None:
    """FSDP casts weights and images itself, also around tables that stay float32."""
    model = {"positions": "sincos_2d", "qk_norm": True, "layer_scale": 0.1}
    config = tiny(model=model, train={"precision": "bf16", "epochs": 5}, optim={"lr": 1e-2})
    in_processes(2, run_sharded, config, tmp_path)
    losses = [record["train.loss"] for record in read_metrics(tmp_path) if "train.loss" in record]
    assert losses[-2] < 0.8 * losses[0]
    assert all(tensor.dtype == torch.float32 for tensor in last(tmp_path).tensors["model"].values())


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"optim": {"name": "sgd"}}, "optim.name: 'sgd' .*FSDP"),
        ({"train": {"compile": True}}, "train.compile: True .*FSDP"),
        ({"model": {"name": "resnet18", "width": None, "depth": None, "num_heads": None, "patch_size": None}}, "FSDP"),
    ],
)
def test_what_cannot_be_split_is_refused(changed: dict[str, Any], message: str) -> None:
    class Sharding:
        distributed_type = DistributedType.FSDP

    config = tiny(**changed)
    model = load_model(config.model, num_classes=3).model
    with pytest.raises(ValueError, match=message):
        session_module._check_sharding(config, Sharding(), model)
    Sharding.distributed_type = DistributedType.NO
    session_module._check_sharding(config, Sharding(), model)


@pytest.mark.slow
def test_a_sharded_run_goes_on_where_it_stopped(tmp_path: Path) -> None:
    """Saved after the first epoch and continued: the same bits as without the stop, the average's too."""
    config = tiny(train={"ema_decay": 0.9}, optim={"name": "muon"})
    in_processes(2, run_sharded, config, tmp_path / "whole")
    in_processes(2, stopped_after_an_epoch, config, tmp_path / "stopped")
    in_processes(2, run_sharded, config, tmp_path / "stopped", True)
    for group, tensors in last(tmp_path / "whole").tensors.items():
        for name, tensor in tensors.items():
            assert torch.equal(last(tmp_path / "stopped").tensors[group][name], tensor), (group, name)


def stopped_after_an_epoch(config: ClassificationRun, run: Path) -> None:
    from vit.training import loop

    class Enough(Exception):
        pass

    def save_and_stop(*arguments: Any) -> None:
        save_session(*arguments)
        raise Enough

    pytest.MonkeyPatch().setattr(loop, "save_session", save_and_stop)  # for good
    with pytest.raises(Enough):
        run_sharded(config, run)


@pytest.mark.slow
def test_weights_and_average_come_back_into_a_fresh_sharded_model(tmp_path: Path) -> None:
    """15 images to validate with: eight in one process, which are two batches, and seven in the other, one batch."""
    config = tiny(train={"ema_decay": 0.9, "epochs": 1}, data={"fake_images": 150, "eval_batch_size": 7})
    before, after = in_processes(2, trained_and_loaded, config, tmp_path)[0]
    assert before.keys() == after.keys() == {"raw", "ema"}
    for name, logits in before.items():
        torch.testing.assert_close(after[name], logits, rtol=0, atol=0)
    assert not torch.equal(before["raw"], before["ema"])


def trained_and_loaded(config: ClassificationRun, run: Path) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    from vit.training.checkpoints import save_session
    from vit.training.loop import steps
    from vit.training.validation import validate

    shard_on_cpu()
    session = session_module.open_session(config, run)
    assert is_sharded(session.model)
    assert isinstance(session.unwrapped_model, VisionTransformer)
    assert all(is_shard(tensor) for tensor in session.unwrapped_model.state_dict().values())
    start_run(session, False, {})
    validate(session)  # before the first step: what it leaves behind must not disturb training
    for _ in steps(session):
        pass
    before = outputs(session)
    save_session(session)
    fresh = session_module.open_session(tiny(config), run)
    for tensor in fresh.unwrapped_model.state_dict().values():
        tensor.zero_()
    start_run(fresh, True, {})
    return before, outputs(fresh)


def outputs(session: Any) -> dict[str, Tensor]:
    from vit.engine import gather_uneven
    from vit.evaluation.evaluate import predict_all

    gather = partial(gather_uneven, session.accelerator)

    def logits() -> Tensor:
        lengths = gather(torch.tensor([len(session.task.val_loader)]))
        assert lengths.tolist() == [2, 1], "the processes have different numbers of batches"
        found = predict_all(
            session.model,
            session.task.val_loader,
            session.task.class_names,
            device=session.accelerator.device,
            gather=gather,
        )
        return torch.as_tensor(found.logits)

    answers = {"raw": logits()}
    with session.average.applied_to(session.unwrapped_model):
        answers["ema"] = logits()
    assert torch.equal(logits(), answers["raw"]), "the model has its own weights again"
    return answers
