"""A run's figures when its training ends."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.training.test_finetuning import BLANK
from tests.training.tiny import tiny
from vit.analysis.figures import RUN_FIGURES
from vit.cli import main
from vit.tasks.classification.analysis import draw_inside
from vit.training.loop import train


@pytest.mark.slow
def test_a_vits_run_is_looked_into_and_a_resnets_is_not(tmp_path: Path) -> None:
    run = tmp_path / "vit"
    config = tiny(train={"epochs": 1})
    train(config, run)
    state = draw_inside(run, config)
    assert state is not None
    assert set(state["pictures"]) == set(RUN_FIGURES)
    assert state["made_of"]["images_of"] == "fake, held out"
    assert all((run / "figures" / f"{name}.png").is_file() for name in RUN_FIGURES)
    assert (run / "figures" / "learning_curves.png").is_file()
    assert main(["analyze", str(run), "--data", "fake", "--data.fake_images", "40", "--data.fake_classes", "3",
                 "--output_dir", str(tmp_path / "all")]) == 0  # fmt: skip
    everything = json.loads((tmp_path / "all" / "analysis.json").read_text())
    assert everything["left_out"] == {}
    assert {"head_ablation", "layer_probe", "layer_similarity"} <= set(everything["pictures"])
    resnet = BLANK | {"name": "resnet18_cifar", "width": 8, "image_size": 8}
    config = tiny(train={"epochs": 1}, model=resnet, data={"batch_size": 20})
    train(config, tmp_path / "resnet")
    assert draw_inside(tmp_path / "resnet", config) is None
