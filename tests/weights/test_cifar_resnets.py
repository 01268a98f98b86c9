"""He et al.'s CIFAR ResNets: the published files, and logits of a network written here from the paper alone."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor
from torch.nn.functional import batch_norm, conv2d, pad

from vit.config import ModelConfig, ResNetConfig
from vit.hub import create_model, load_model, open_model
from vit.models import ResNet
from vit.weights.layout import apply_rules, invert_rules
from vit.weights.resnet import CIFAR

PUBLISHED = Path(__file__).parents[3] / "shared/weights/cifar_resnets"
FILES = {20: "resnet20-12fca82f.th", 32: "resnet32-d509ac18.th", 44: "resnet44-014dd654.th", 56: "resnet56-4bfd9763.th"}
"""github.com/akamaster/pytorch_resnet_cifar10, pretrained_models."""


def plain_logits(tensors: dict[str, Tensor], images: Tensor, blocks: int) -> Tensor:
    """Section 4.2 of the paper with option A, under the files' names."""

    def norm(x: Tensor, name: str) -> Tensor:
        mean, variance = tensors[f"{name}.running_mean"], tensors[f"{name}.running_var"]
        return batch_norm(x, mean, variance, tensors[f"{name}.weight"], tensors[f"{name}.bias"])

    x = norm(conv2d(images, tensors["conv1.weight"], padding=1), "bn1").relu()
    for stage in (1, 2, 3):
        for block in range(blocks):
            name, stride = f"layer{stage}.{block}", 2 if stage > 1 and block == 0 else 1
            y = norm(conv2d(x, tensors[f"{name}.conv1.weight"], stride=stride, padding=1), f"{name}.bn1").relu()
            y = norm(conv2d(y, tensors[f"{name}.conv2.weight"], padding=1), f"{name}.bn2")
            if stride == 2:
                quarter = y.shape[1] // 4
                x = pad(x[:, :, ::2, ::2], (0, 0, 0, 0, quarter, quarter))
            x = (x + y).relu()
    return x.mean((2, 3)) @ tensors["linear.weight"].T + tensors["linear.bias"]


def check_logits(model: ResNet, tensors: dict[str, Tensor], blocks: int) -> None:
    images = torch.randn(4, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        expected = plain_logits(tensors, images, blocks)
        difference = (model.eval()(images) - expected).abs().max() / expected.abs().max()
    assert difference < 1e-5


def random_file(path: Path, **options: object) -> dict[str, Tensor]:
    """A small network of 20 layers in the layout of the published files, without counts of batches."""
    torch.manual_seed(0)
    ours = ResNet(ResNetConfig(depth=20, width=4, stem="cifar", num_classes=5, image_size=(32, 32), **options))  # type: ignore[arg-type]
    with torch.no_grad():
        tensors = {name: torch.rand_like(value) for name, value in ours.state_dict().items() if value.dim() > 0}
    theirs = invert_rules(CIFAR, {k: v - 0.3 if "running" not in k else v for k, v in tensors.items()}, ours.config)
    assert theirs.unexpected == []
    torch.save({"state_dict": {f"module.{k}": v for k, v in theirs.tensors.items()}, "best_prec1": 10.0}, path)
    return theirs.tensors


def test_a_file_tells_its_architecture_and_gives_the_papers_logits(tmp_path: Path) -> None:
    tensors = random_file(tmp_path / "small.th", shortcut="padding")
    opened = open_model(tmp_path / "small.th")
    assert isinstance(opened.model, ResNet)
    assert opened.model.config == ResNetConfig(
        depth=20, width=4, stem="cifar", num_classes=5, image_size=(32, 32), shortcut="padding"
    )
    check_logits(opened.model, tensors, 3)


def test_counts_of_batches_that_a_file_lacks_are_reported(tmp_path: Path) -> None:
    tensors = random_file(tmp_path / "small.th", shortcut="padding")
    report = open_model(tmp_path / "small.th").report
    assert report is not None
    assert len(report.uncounted) == 19
    assert "97 loaded, without 19 counts of BatchNorm's batches" in report.summary()
    del tensors["bn1.running_mean"]
    torch.save(tensors, tmp_path / "less.pth")
    with pytest.raises(ValueError, match=r"less\.pth does not have bn1\.running_mean; is model\.name the right one"):
        open_model(tmp_path / "less.pth")


def test_projections_are_the_files_shortcuts(tmp_path: Path) -> None:
    tensors = random_file(tmp_path / "b.th", shortcut="projection")
    model = open_model(tmp_path / "b.th").model
    assert isinstance(model, ResNet)
    assert model.config.shortcut == "projection"
    assert torch.equal(model.get_parameter("layer2.0.downsample.0.weight"), tensors["layer2.0.shortcut.0.weight"])
    back = invert_rules(CIFAR, apply_rules(CIFAR, tensors, model.config).tensors, model.config).tensors
    assert back.keys() == tensors.keys()
    assert all(torch.equal(back[name], tensor) for name, tensor in tensors.items())


def test_a_new_head_on_a_named_model(tmp_path: Path) -> None:
    random_file(tmp_path / "small.th", shortcut="padding")
    settings = ModelConfig(name="resnet20", width=4, pretrained=str(tmp_path / "small.th"), new_head=True)
    report = load_model(settings, num_classes=7).report
    assert report is not None
    assert report.replaced == ["fc.weight", "fc.bias"]


def test_other_stages_are_refused(tmp_path: Path) -> None:
    tensors = random_file(tmp_path / "small.th", shortcut="padding")
    torch.save({name: tensor for name, tensor in tensors.items() if "layer3.2" not in name}, tmp_path / "cut.pth")
    with pytest.raises(ValueError, match="stages of 3, 3, 2 basic blocks, which no ResNet here has"):
        open_model(tmp_path / "cut.pth")


def test_the_zero_channels_of_option_a_lie_on_both_sides() -> None:
    block = create_model("resnet20", width=4, num_classes=3).get_submodule("layer2.0.downsample")
    x = torch.randn(1, 4, 6, 6)
    found = block(x)
    assert found.shape == (1, 8, 3, 3)
    assert torch.equal(found[:, 2:6], x[:, :, ::2, ::2])
    assert found[:, :2].abs().max() == found[:, 6:].abs().max() == 0


@pytest.mark.skipif(not PUBLISHED.is_dir(), reason="needs the files under ../shared/weights")
@pytest.mark.parametrize("depth", FILES)
def test_published_files(depth: int) -> None:
    path = PUBLISHED / FILES[depth]
    content = torch.load(path, map_location="cpu", weights_only=True)["state_dict"]
    opened = open_model(path)
    assert isinstance(opened.model, ResNet)
    assert (opened.model.config.depth, opened.num_classes) == (depth, 10)
    check_logits(
        opened.model, {name.removeprefix("module."): value for name, value in content.items()}, (depth - 2) // 6
    )
