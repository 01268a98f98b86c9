"""ResNet-18/34/50 (He et al. 2016), the baseline, behind the same contract as the Vision Transformer.

The blocks and all parameter names are torchvision's, so its weights fit. The `cifar` stem is a 3×3
convolution without pooling. This room knows nothing of data, optimizers and files.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from einops import reduce
from torch import Tensor, nn

from vit.config import ResNetConfig
from vit.layers.patches import check_shape, check_type
from vit.models.model import Model
from vit.randomness import SampleRandom

if TYPE_CHECKING:
    from torchvision.models.resnet import BasicBlock, Bottleneck

STAGES: dict[int, tuple[str, tuple[int, ...]]] = {
    18: ("BasicBlock", (2, 2, 2, 2)),
    34: ("BasicBlock", (3, 4, 6, 3)),
    50: ("Bottleneck", (3, 4, 6, 3)),
}
"""Depth → torchvision's block, and how many of them each stage has."""


class ResNet(Model):
    """`b 3 H W -> b k`, any image size."""

    def __init__(self, config: ResNetConfig) -> None:
        from torchvision.models import resnet  # here: with it comes torch's compiler, the slowest import of all

        super().__init__()
        self.config = config
        self.gradient_checkpointing = False
        name, depths = STAGES[config.depth]
        block = getattr(resnet, name)
        small = config.stem == "cifar"
        kernel, stride = (3, 1) if small else (7, 2)
        self.conv1 = nn.Conv2d(3, config.width, kernel, stride, kernel // 2, bias=False)
        self.bn1 = nn.BatchNorm2d(config.width)
        self.relu = nn.ReLU(inplace=True)
        self.maxpool = nn.Identity() if small else nn.MaxPool2d(3, stride=2, padding=1)
        widths = [config.width * 2**index for index in range(len(depths))]
        incoming = [config.width, *(width * block.expansion for width in widths[:-1])]
        for index, (source, width, depth) in enumerate(zip(incoming, widths, depths, strict=True)):
            self.add_module(f"layer{index + 1}", _stage(block, source, width, depth, 1 if index == 0 else 2))
        self.num_features = widths[-1] * block.expansion
        self.fc = nn.Linear(self.num_features, config.num_classes) if config.num_classes else nn.Identity()
        initialize(self)

    def forward(self, images: Tensor, *, rng: SampleRandom | None = None, separate_heads: bool = False) -> Tensor:
        """Logits `b k`, or features `b c` without classes. Nothing here is random, so `rng` is not drawn
        from.
        """
        if separate_heads:
            raise ValueError("separate_heads: True is not valid: a ResNet has no model.distillation_token")
        return self.fc(self.pool(self.forward_features(images, rng)))

    def forward_features(self, images: Tensor, rng: SampleRandom | None = None) -> Tensor:  # noqa: ARG002
        """The last stage's feature map, `b c gh gw`. ValueError for images of another shape than `b 3 H W`, or of
        another type than the weights.
        """
        check_shape(images)
        check_type(images, self.conv1.weight)
        images = images.contiguous(memory_format=torch.channels_last)  # a quarter faster to train on a CPU
        x = self.maxpool(self.relu(self.bn1(self.conv1(images))))
        for stage in self.stages():
            x = self._run(stage, x)
        return x

    def pool(self, features: Tensor) -> Tensor:
        """One vector an image: what the head reads, `b c`."""
        return reduce(features, "b c gh gw -> b c", "mean")

    def stages(self) -> list[nn.Module]:
        return [self.get_submodule(f"layer{number}") for number in range(1, self.num_layers)]

    def _run(self, stage: nn.Module, x: Tensor) -> Tensor:
        if self.gradient_checkpointing and self.training:
            rule = "recomputing would count every batch twice in a ResNet's BatchNorm"
            raise ValueError(f"train.gradient_checkpointing: True is not valid: {rule}")
        return stage(x)

    @property
    def num_layers(self) -> int:
        return len(STAGES[self.config.depth][1]) + 1

    def layer_of(self, parameter_name: str) -> int:
        """Depth of a parameter, for layer-wise rates: 0 the stem, `num_layers` the head."""
        first = parameter_name.split(".")[0]
        if first.startswith("layer"):
            return int(first.removeprefix("layer"))
        return self.num_layers if first == "fc" else 0

    def head_names(self) -> tuple[str, ...]:
        return ("fc",) if self.config.num_classes else ()


def _stage(
    block: type[BasicBlock] | type[Bottleneck], source: int, width: int, depth: int, stride: int
) -> nn.Sequential:
    out = width * block.expansion
    shortcut = None
    if stride != 1 or source != out:
        shortcut = nn.Sequential(nn.Conv2d(source, out, 1, stride, bias=False), nn.BatchNorm2d(out))
    return nn.Sequential(block(source, width, stride, shortcut), *(block(out, width) for _ in range(depth - 1)))


@torch.no_grad()
def initialize(model: ResNet) -> None:
    """He for convolutions; every residual branch starts at zero (Goyal et al. 2017); a small normal head."""
    for module in model.modules():
        match module:
            case nn.Conv2d():
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")
            case nn.BatchNorm2d():
                nn.init.ones_(module.weight)
                nn.init.zeros_(module.bias)
            case nn.Linear():
                nn.init.normal_(module.weight, std=0.01)
                nn.init.zeros_(module.bias)
    from torchvision.models.resnet import BasicBlock, Bottleneck

    for module in model.modules():
        if isinstance(module, BasicBlock):
            nn.init.zeros_(module.bn2.weight)
        elif isinstance(module, Bottleneck):
            nn.init.zeros_(module.bn3.weight)
