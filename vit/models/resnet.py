"""ResNets (He et al. 2016), the baseline, with the same interface as the Vision Transformer.

One class for ImageNet's and CIFAR's, wide and grouped ones and ResNet-D: what differs is in `ResNetConfig`. All
parameter names are torchvision's, which are timm's too, so their weights load.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Never

import torch
from einops import rearrange, reduce
from torch import Tensor, nn

from vit.config import ResNetConfig, check_arguments
from vit.config.resnet import STAGES
from vit.layers.patches import check_image_dtype, check_image_shape
from vit.layers.residual import BasicBlock, Bottleneck, convolution
from vit.models.backbone import Backbone, OutputFormat, check_output_format, select_blocks
from vit.randomness import SampleRandom

EXPANSION = 4
"""Channels between two bottlenecks, as a multiple of the stage's width."""


class ResNet(Backbone):
    """`b 3 H W -> b k` (or `config.in_channels` channels), any image size."""

    fc: nn.Linear | nn.Identity

    def __init__(self, config: ResNetConfig) -> None:
        super().__init__()
        self.config = config
        self.gradient_checkpointing = False
        self._build_stem()
        self.num_features = config.width
        for index in range(self.num_layers - 1):
            self.add_module(f"layer{index + 1}", self._stage(index))
        self.fc = self._new_head()
        initialize(self)

    def _build_stem(self) -> None:
        config = self.config
        self.conv1 = _first_convolutions(config)
        self.bn1 = nn.BatchNorm2d(config.width)
        self.relu = nn.ReLU(inplace=True)
        self.maxpool: nn.Module = nn.Identity() if config.stem == "cifar" else nn.MaxPool2d(3, stride=2, padding=1)

    def _stage(self, index: int) -> nn.Sequential:
        """Blocks from `num_features` channels on; those after the first stage halve the map."""
        depth = STAGES[self.config.depth][1][index]
        return nn.Sequential(*(self._block(index, 2 if index > 0 and number == 0 else 1) for number in range(depth)))

    def _block(self, stage: int, stride: int) -> nn.Module:
        """The next block, which reads `num_features` channels, and sets it to those that it gives."""
        config, source, width = self.config, self.num_features, self.config.width * 2**stage
        if STAGES[config.depth][0] == "basic":
            self.num_features = width
            return BasicBlock(source, width, stride, shortcut=config.shortcut)
        self.num_features = width * EXPANSION
        inner = (config.group_width or config.width) * config.groups * 2**stage
        sizes = source, inner, self.num_features, stride
        return Bottleneck(*sizes, groups=config.groups, shortcut=config.shortcut)

    def _new_head(self) -> nn.Linear | nn.Identity:
        classes = self.config.num_classes
        return nn.Linear(self.num_features, classes) if classes else nn.Identity()

    def forward(self, images: Tensor, *, rng: SampleRandom | None = None, separate_heads: bool = False) -> Tensor:
        """Logits `b k`, or features `b c` without classes. `rng` is not used: nothing here is random."""
        if separate_heads:
            raise ValueError("separate_heads: True is not valid: a ResNet has no model.distillation_token")
        return self.forward_head(self.forward_features(images, rng))

    def forward_features(self, images: Tensor, rng: SampleRandom | None = None) -> Tensor:  # noqa: ARG002
        """The last feature map, `b c gh gw`. ValueError for images of a wrong shape or type."""
        for x in self._maps(images):  # noqa: B007  (only one map is kept in memory)
            pass
        return self._features(x)

    def forward_head(self, features: Tensor, pre_logits: bool = False) -> Tensor:
        """Logits from `forward_features`' map; with `pre_logits`, the head's input, `b c`."""
        return self.pool(features) if pre_logits else self.fc(self.pool(features))

    def forward_intermediates(
        self,
        images: Tensor,
        indices: int | Sequence[int] | None = None,
        return_prefix_tokens: bool = False,  # noqa: ARG002  (as a ViT without prefix tokens has it)
        norm: bool = False,
        output_fmt: OutputFormat = "NCHW",
        intermediates_only: bool = False,
    ) -> list[Tensor] | tuple[Tensor, list[Tensor]]:
        """`forward_features` and the selected maps `b c h w`: the stem's, before pooling, and the stages'.

        `indices`: a number of last maps, or a list of maps, negative ones from the end; None: all. `norm`: the last
        map after the norm that follows it, if there is one (version 2). `NLC`: maps as `b (h w) c`. ValueError for an
        index out of range.
        """
        check_output_format(output_fmt, ("NCHW", "NLC"))
        chosen = select_blocks(self.num_layers, indices)
        maps = list(self._maps(images))
        features = self._features(maps[-1])
        if norm:
            maps[-1] = features
        selected = [each for index, each in enumerate(maps) if index in chosen]
        if output_fmt == "NLC":
            selected = [rearrange(each, "b c h w -> b (h w) c") for each in selected]
        return selected if intermediates_only else (features, selected)

    def _maps(self, images: Tensor) -> Iterator[Tensor]:
        """The stem's map, then every stage's."""
        check_image_shape(images, self.config.in_channels)
        check_image_dtype(images, next(self.parameters()))
        # Channels last is a quarter faster to train on a CPU. In it, torch 2.15's gradient of a 1×1 convolution of
        # stride 2 ends in a segmentation fault for fewer than 16 channels, and GroupNorm rounds 20 times as much.
        plain = self.config.width < 16 or self.config.version == 2
        images = images.contiguous(memory_format=torch.contiguous_format if plain else torch.channels_last)
        x = self._stem(images)
        yield x
        yield from self._apply_stages(self.maxpool(x))

    def _stem(self, images: Tensor) -> Tensor:
        return self.relu(self.bn1(self.conv1(images)))

    def _apply_stages(self, x: Tensor) -> Iterator[Tensor]:
        if self.gradient_checkpointing and self.training:
            _refuse_checkpointing()
        for stage in self.stages():
            x = stage(x)
            yield x

    def _features(self, x: Tensor) -> Tensor:
        """The map that the head pools, made from the last stage's."""
        return x

    def pool(self, features: Tensor) -> Tensor:
        """The head's input: one vector per image, `b c`."""
        return reduce(features, "b c gh gw -> b c", "mean")

    def stages(self) -> list[nn.Module]:
        return [self.get_submodule(f"layer{number}") for number in range(1, self.num_layers)]

    @property
    def head_hidden_size(self) -> int:
        """Width of the head's input, as timm names it."""
        return self.num_features

    @property
    def num_classes(self) -> int:
        """Classes of the head; 0: there is no head."""
        return self.config.num_classes

    def reset_classifier(self, num_classes: int) -> None:
        """Replace the head by a newly initialized one; 0 classes: none."""
        self.config = replace(self.config, num_classes=num_classes)
        self.fc = self._new_head().to(next(self.parameters())).train(self.training)
        if isinstance(self.fc, nn.Linear):
            initialize_head(self.fc)

    @check_arguments
    def set_image_size(self, image_size: int | tuple[int, int]) -> None:
        """Record the size of the images, (height, width) or a square one; a ResNet takes every size."""
        size = (image_size, image_size) if isinstance(image_size, int) else (image_size[0], image_size[1])
        self.config = replace(self.config, image_size=size)

    def set_grad_checkpointing(self, enable: bool = True) -> None:
        """ValueError if enabled: recomputing would update BatchNorm's statistics twice."""
        if enable:
            _refuse_checkpointing()

    @property
    def num_layers(self) -> int:
        return len(STAGES[self.config.depth][1]) + 1

    def layer_of(self, parameter_name: str) -> int:
        """Depth of a parameter, for layer-wise rates: 0 the stem, `num_layers` the head."""
        first = parameter_name.split(".")[0]
        if first.startswith("layer"):
            return int(first.removeprefix("layer"))
        return self.num_layers if first in ("norm", "fc") else 0  # version 2 has a norm before the head

    def head_names(self) -> tuple[str, ...]:
        return ("fc",) if self.config.num_classes else ()


def infer_config(tensors: Mapping[str, Tensor]) -> ResNetConfig:
    """The architecture of a ResNet from its tensors; the image size, which they do not tell, is the usual one.

    KeyError for a missing tensor; ValueError for stages that no ResNet of this package has.
    """
    is_deep = "conv1.0.weight" in tensors
    first, inner = tensors["conv1.0.weight" if is_deep else "conv1.weight"], tensors["layer1.0.conv2.weight"]
    is_bottleneck = "layer1.0.conv3.weight" in tensors
    found = {match.groups() for name in tensors if (match := re.match(r"layer(\d+)\.(\d+)\.", name))}
    blocks = Counter(int(stage) for stage, _ in found)
    form = "bottleneck" if is_bottleneck else "basic", tuple(count for _, count in sorted(blocks.items()))
    depth = next((depth for depth, stages in STAGES.items() if stages == form), None)
    if depth is None:
        rule = f"stages of {', '.join(map(str, form[1]))} {form[0]} blocks, which no ResNet here has"
        raise ValueError(f"it has {rule}")
    width, head = len(tensors["conv1.6.weight" if is_deep else "conv1.weight"]), tensors.get("fc.weight")
    if "layer1.0.norm1.weight" in tensors:
        return ResNetConfig(
            depth=depth,
            num_classes=0 if head is None else len(head),
            width=width,
            in_channels=first.shape[1],
            version=2,
        )
    projection = tensors.get("layer2.0.downsample.1.weight")
    is_small = not is_deep and first.shape[-1] == 3
    return ResNetConfig(
        depth=depth,
        num_classes=0 if head is None else len(head),
        image_size=(32, 32) if is_small else (224, 224),
        stem="deep" if is_deep else "cifar" if is_small else "imagenet",
        width=width,
        in_channels=first.shape[1],
        shortcut="padding" if projection is None else "average" if projection.dim() == 4 else "projection",
        groups=len(inner) // inner.shape[1] if is_bottleneck else 1,
        group_width=inner.shape[1] if is_bottleneck and inner.shape[1] != width else None,
    )


def _refuse_checkpointing() -> Never:
    rule = "recomputing would count every batch twice in a ResNet's BatchNorm"
    raise ValueError(f"train.gradient_checkpointing: True is not valid: {rule}")


def _first_convolutions(config: ResNetConfig) -> nn.Module:
    """All of the stem before its last norm."""
    if config.stem == "imagenet":
        return convolution(config.in_channels, config.width, 7, 2)
    if config.stem == "cifar":
        return convolution(config.in_channels, config.width, 3)
    half = config.width // 2
    return nn.Sequential(
        *(convolution(config.in_channels, half, 3, 2), nn.BatchNorm2d(half), nn.ReLU(inplace=True)),
        *(convolution(half, half, 3), nn.BatchNorm2d(half), nn.ReLU(inplace=True)),
        convolution(half, config.width, 3),
    )


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
                initialize_head(module)
    for module in model.modules():
        if isinstance(module, BasicBlock | Bottleneck):
            nn.init.zeros_(module.last_norm.get_parameter("weight"))


@torch.no_grad()
def initialize_head(head: nn.Linear) -> None:
    nn.init.normal_(head.weight, std=0.01)
    nn.init.zeros_(head.bias)
