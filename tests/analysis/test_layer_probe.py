"""A probe by layer reads what the layer holds."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from matplotlib.collections import LineCollection
from torch import nn

from tests.analysis.models import own
from vit.analysis.layer_probe import probe_layers, read_layers
from vit.config import DataConfig, Preprocessing, ResNetConfig
from vit.data.images import open_training
from vit.data.loading import EvalLoader
from vit.evaluation.statistics import wilson_interval
from vit.figures.layer_probe import plot_layer_probe
from vit.models import ResNet


def test_readings_are_the_class_token_and_the_mean_patch() -> None:
    model, images = own(num_registers=1), torch.randn(2, 3, 16, 24)
    outputs: list[torch.Tensor] = []
    for block in model.blocks:
        block.register_forward_hook(lambda *call: outputs.append(call[2]))
    with torch.no_grad():
        found = read_layers(model, images)
        last = model.forward_features(images)
    assert list(found) == [(f"blocks.{n}", reading) for n in (0, 1) for reading in ("class", "patches")]
    torch.testing.assert_close(model.norm(found["blocks.1", "class"]), last[:, 0])
    for n in (0, 1):
        torch.testing.assert_close(found[f"blocks.{n}", "patches"], outputs[n][:, 2:].mean(dim=1))


def test_a_map_is_averaged() -> None:
    resnet, images = ResNet(ResNetConfig(depth=18, stem="cifar")).eval(), torch.randn(2, 3, 16, 16)
    with torch.no_grad():
        torch.testing.assert_close(
            read_layers(resnet, images)["layer4.1", "patches"], resnet.pool(resnet.forward_features(images))
        )


def test_a_layer_that_destroys_the_image_shows(monkeypatch: pytest.MonkeyPatch) -> None:
    config = DataConfig(name="digits", fraction=0.25, eval_batch_size=64)
    train, val = open_training(config)
    shape = Preprocessing(image_size=(8, 8))
    loaders = [EvalLoader(split, shape, config) for split in (train, val)]
    model = own(image_size=(8, 8), patch_size=(4, 4), depth=2, pooling="gap", class_token=False)
    nn.init.zeros_(model.get_parameter("blocks.1.norm1.weight"))
    monkeypatch.setattr(model.blocks[1], "forward", lambda x, *_: torch.ones_like(x))
    told: list[str] = []
    found = probe_layers(model, *loaders, device=torch.device("cpu"), progress=told.append)
    (accuracy,) = found.accuracy.values()
    assert list(found.accuracy) == ["patches"]
    assert accuracy[0] > 0.5
    assert accuracy[1] < 0.2
    assert told == ["blocks.0 (patches)", "blocks.1 (patches)"]
    assert found.num_train == pytest.approx(len(train.indices))
    (ends,) = found.intervals.values()
    assert ends[0] == wilson_interval(round(accuracy[0] * found.num_test), found.num_test)
    (axes,) = found.plot().axes
    assert len(axes.lines) == 1
    drawn = axes.collections[0]
    assert isinstance(drawn, LineCollection)
    assert [segment[:, 1].tolist() for segment in map(np.asarray, drawn.get_segments())] == [
        list(each) for each in ends
    ]
    with pytest.raises(ValueError, match=r"intervals: \(1, 2\) .* \(2, 2\): two ends for each block of 'a'"):
        plot_layer_probe({"a": [0.5, 0.6]}, intervals={"a": [(0.4, 0.6)]})
