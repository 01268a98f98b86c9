"""What is said before a run: every number against one worked out by hand, and every refusal that training has."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.training.tiny import tiny
from vit.data.loading import TrainLoader
from vit.models import build_model, resolve
from vit.settings import dump_run_config, resolve_run
from vit.training.display import header
from vit.training.loop import train
from vit.training.plan import Plan, draw_plan, make_plan
from vit.training.session import open_session

CONFIG = tiny(
    data={"fake_images": 60, "batch_size": 16},
    optim={"lr": 0.02, "warmup_epochs": 1.0, "min_lr": 0.001},
    train={"epochs": 4, "ema_decay": 0.9},
)
"""54 images to train on (2 of each class's 20 are held out): steps of 16, 16, 16 and 6."""

PARAMETERS = {
    "patch embedding": 3 * 4 * 4 * 16 + 16,
    "class token": 16,
    "positions": (4 + 1) * 16,
    "blocks": 2 * ((16 * 48 + 48) + (16 * 16 + 16) + (16 * 64 + 64) + (64 * 16 + 16) + 2 * 2 * 16),
    "last norm": 2 * 16,
    "head": 16 * 3 + 3,
}
MULTIPLY_ADDS = 4 * 48 * 16 + 2 * (5 * 16 * 48 + 2 * 5 * 5 * 16 + 5 * 16 * 16 + 2 * 5 * 16 * 64) + 16 * 3
"""4 patches embedded, 5 tokens through two blocks (attention: QKᵀ and AV over all heads), one vector classified."""


@pytest.fixture(scope="module")
def plan() -> Plan:
    return make_plan(CONFIG)


@pytest.fixture(scope="module")
def weights(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("weights") / "model.pth"
    torch.save(build_model(resolve(CONFIG.model, 3)).state_dict(), path)
    return path


def test_every_row(plan: Plan) -> None:
    number = sum(PARAMETERS.values())
    memory = plan.rows.pop("memory")
    assert plan.rows == {
        "model": "vit with patch_size (4, 4), width 16, depth 2, num_heads 2, image (8, 8), 3 classes",
        "parameters": f"{number:,}, of which {number:,} are trained",
        "multiply-adds an image": f"{MULTIPLY_ADDS / 1e3:.1f} k forward, attention's products included",
        "images": "54 to train on, 6 to validate; 16 a step",
        "steps": "16 (4 epochs of 4); few for a model from scratch: raise --epochs, or begin with pretrained weights "
        "(--model.pretrained)",
        "warm-up": "4 steps",
        "peak rate": "0.02, cosine to 0.001",
        "training arithmetic": f"{6 * MULTIPLY_ADDS * 54 * 4 / 1e15:.4g} PFLOP "
        "(forward and backward, 2 operations a multiply-add)",
        "device": "cpu, fp32, 1 process",
    }
    plan.rows["memory"] = memory


def test_a_resnet_has_no_products_of_attention() -> None:
    rows = make_plan(
        tiny(model={"name": "resnet18", "patch_size": None, "width": None, "depth": None, "num_heads": None})
    ).rows
    assert rows["multiply-adds an image"].endswith(" G forward")


def test_the_rates(plan: Plan) -> None:
    """Up over one epoch of four, then half a cosine; the middle of it is halfway between peak and end."""
    assert (plan.samples_seen[0], plan.samples_seen[-1]) == (0, 216)
    assert plan.rates[0] == 0
    assert max(plan.rates) == 0.02
    rate = dict(zip(plan.samples_seen, plan.rates, strict=True))
    assert rate[9] == pytest.approx(0.02 * 9 / 54)
    assert rate[54] == 0.02
    assert rate[135] == pytest.approx((0.02 + 0.001) / 2)
    assert rate[216] == pytest.approx(0.001)


def test_the_text_has_a_line_a_row_and_the_curve(plan: Plan) -> None:
    lines = plan.text().splitlines()
    assert [line.split("  ")[0] for line in lines] == [*plan.rows, "learning rate"]
    curve = lines[-1].removeprefix("learning rate").strip()
    assert "█" in curve
    assert len(curve) >= 50


def test_a_constant_rate_ends_nowhere() -> None:
    assert make_plan(tiny(optim={"schedule": "constant"})).rows["peak rate"] == "0.003, constant after warm-up"


def memory_of(**sections: Any) -> dict[str, float]:
    """MiB by what they hold. A wide model, so that rounding to a MiB hides nothing."""
    wide = {"width": 256, "num_heads": 4, **sections.pop("model", {})}
    said = make_plan(tiny(model=wide, **sections)).rows["memory"]
    return {name: float(size) for name, size in re.findall(r"(\w+) (\d+)[,)]", said)}


def test_memory() -> None:
    plain = memory_of()
    number = 48 * 256 + 6 * 256 + 2 * (12 * 256**2) + 3 * 256  # biases and norms are less than a MiB
    assert plain["weights"] == plain["gradients"] == pytest.approx(4 * number / 2**20, abs=1)
    assert plain["optimizer"] == pytest.approx(2 * plain["weights"], abs=1)
    assert plain["ema"] == 0
    assert memory_of(train={"ema_decay": 0.9})["ema"] == plain["weights"]
    assert memory_of(optim={"name": "sgd"})["optimizer"] == plain["weights"]
    assert memory_of(data={"batch_size": 32})["activations"] > plain["activations"]
    assert memory_of(train={"accumulation_steps": 4})["activations"] < plain["activations"]
    assert memory_of(train={"gradient_checkpointing": True})["activations"] < plain["activations"]


def test_images_that_are_kept_on_the_device_take_its_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    assert "images" not in make_plan(CONFIG).rows["memory"]
    monkeypatch.setattr(TrainLoader, "bytes_on_device", lambda _: 3 * 2**20)
    assert ", images 3)" in make_plan(CONFIG).rows["memory"]


def test_a_frozen_backbone_needs_less(tmp_path: Path) -> None:
    wide = tiny(model={"width": 256, "num_heads": 4})
    path = tmp_path / "wide.pth"
    torch.save(build_model(resolve(wide.model, 3)).state_dict(), path)
    free, frozen = (memory_of(model={"pretrained": str(path), "freeze_backbone": on}) for on in (False, True))
    assert frozen["weights"] == free["weights"] > 0
    assert frozen["gradients"] == frozen["optimizer"] == 0
    assert frozen["activations"] < free["activations"]


def test_a_frozen_backbone_is_passed_forward_only(weights: Path) -> None:
    rows = make_plan(tiny(CONFIG, model={"pretrained": str(weights), "freeze_backbone": True})).rows
    assert rows["parameters"] == f"{sum(PARAMETERS.values()):,}, of which {PARAMETERS['head']} are trained"
    assert rows["training arithmetic"].startswith(f"{2 * MULTIPLY_ADDS * 54 * 4 / 1e15:.4g} PFLOP")


def test_it_says_what_shrank_with_the_epochs(tmp_path: Path) -> None:
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text(dump_run_config(tiny(CONFIG, optim={"warmup_epochs": 2.0}), {}))
    run = resolve_run(recipe, ["--train.epochs", "1"])
    rows = make_plan(run.config, run.origins).rows
    assert rows["shrunk"] == "optim.warmup_epochs to 0.5; in proportion to train.epochs"
    assert rows["warm-up"] == "2 steps"


def test_epochs_of_smaller_images_cost_less() -> None:
    """One patch and the class token in two of four epochs."""
    small = 1 * 48 * 16 + 2 * (2 * 16 * 48 + 2 * 2 * 2 * 16 + 2 * 16 * 16 + 2 * 2 * 16 * 64) + 16 * 3
    rows = make_plan(tiny(CONFIG, augment={"first_image_size": 4, "growing_epochs": 2})).rows
    assert rows["model"].endswith(" image (8, 8) (the first epoch's (4, 4)), 3 classes")
    each = f"{(MULTIPLY_ADDS + small) / 2e3:.1f} k forward, mean over the epochs: growing images"
    assert rows["multiply-adds in training"] == each
    assert rows["training arithmetic"].startswith(f"{6 * (MULTIPLY_ADDS + small) * 54 * 2 / 1e15:.4g} PFLOP")


def test_patches_that_are_left_out_cost_nothing() -> None:
    """Two of four patches and the class token; all patches are embedded."""
    without = 4 * 48 * 16 + 2 * (3 * 16 * 48 + 2 * 3 * 3 * 16 + 3 * 16 * 16 + 2 * 3 * 16 * 64) + 16 * 3
    rows = make_plan(tiny(CONFIG, model={"patch_dropout_rate": 0.5})).rows
    assert rows["multiply-adds an image"].startswith(f"{MULTIPLY_ADDS / 1e3:.1f} k")
    assert rows["multiply-adds in training"] == f"{without / 1e3:.1f} k forward, mean over the epochs: patch dropout"
    assert rows["training arithmetic"].startswith(f"{6 * without * 54 * 4 / 1e15:.4g} PFLOP")


def test_a_compiled_run_is_planned_without_compiling(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any, **__: Any) -> None:
        raise AssertionError("compiled")

    monkeypatch.setattr(torch.nn.Module, "compile", fail)
    assert make_plan(tiny(train={"compile": True})).rows["steps"].startswith("6 (2 epochs")


def test_the_figure_has_its_numbers_beside_it(plan: Plan, tmp_path: Path) -> None:
    draw_plan(plan, tmp_path / "plans" / "plan.png")
    assert (tmp_path / "plans" / "plan.png").read_bytes().startswith(b"\x89PNG")
    numbers = json.loads((tmp_path / "plans" / "plan.json").read_text())
    assert numbers["images_seen"] == plan.samples_seen
    assert numbers["lr"] == plan.rates


REFUSED: dict[str, dict[str, Any]] = {
    "missing weights beside a name": {"model": {"pretrained": "absent.pth"}},
    "missing teacher": {"distill": {"teacher": "absent"}},
    "a rate a layer with one layer": {"optim": {"layer_decay": 0.5}, "model": {"freeze_backbone": True}},
    "fp16 on a CPU": {"train": {"precision": "fp16"}},
    "no data": {"data": {"name": "cifar10", "fake_images": 512, "fake_classes": 10, "root": "/no/such"}},
}


@pytest.mark.parametrize("name", list(REFUSED))
def test_the_plan_refuses_what_training_refuses(name: str, weights: Path, tmp_path: Path) -> None:
    sections = dict(REFUSED[name])
    if "freeze_backbone" in sections.get("model", {}):
        sections["model"] = {**sections["model"], "pretrained": str(weights)}
    config = tiny(**sections)
    said = []
    for attempt in (make_plan, lambda config: train(config, tmp_path / "run")):
        with pytest.raises(ValueError, match=r"^[a-z._]+: ") as caught:
            attempt(config)
        said.append(str(caught.value))
    assert said[0] == said[1]
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("backend", ["auto", "flex", "triton"])
def test_too_little_memory_is_said_in_the_header(backend: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also with code for attention that has no gradients on a CPU, or does not run there."""
    session = open_session(tiny(model={"backend": backend}), tmp_path, compiles=False)
    assert not any("training needs about" in value for value in header(session, {}).values())
    monkeypatch.setattr("vit.tasks.image_report.device_memory", lambda _: 1000)
    session = open_session(tiny(model={"backend": backend}), tmp_path, compiles=False)
    (line,) = (value for value in header(session, {}).values() if "training needs about" in value)
    assert "lower data.batch_size or model.image_size" in line
