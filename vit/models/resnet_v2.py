"""BiT's ResNet (Kolesnikov et al. 2020), the ViT paper's own baseline.

Pre-activation blocks (He et al. 2016, Identity Mappings), GroupNorm in place of BatchNorm, and convolutions with
standardized weights (Qiao et al. 2019). A sample never depends on its batch.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from vit.config import ResNetConfig
from vit.models.resnet import EXPANSION, ResNet

NUM_GROUPS = 32
_EPS = 1e-8  # as in BiT's own code, far below the variance of any weights


class StandardizedConv2d(nn.Conv2d):
    """A convolution whose filters are shifted and scaled to mean 0 and variance 1, without a bias."""

    def __init__(self, source: int, width: int, kernel: int, stride: int = 1) -> None:
        super().__init__(source, width, kernel, stride, kernel // 2, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        variance, mean = torch.var_mean(self.weight, dim=(1, 2, 3), keepdim=True, correction=0)
        return self._conv_forward(x, (self.weight - mean) * torch.rsqrt(variance + _EPS), None)


class PreActBottleneck(nn.Module):
    """Norm and ReLU before each convolution: `b source h w -> b width h/stride w/stride`."""

    def __init__(self, source: int, inner: int, width: int, stride: int) -> None:
        super().__init__()
        self.norm1 = nn.GroupNorm(NUM_GROUPS, source)
        self.conv1 = StandardizedConv2d(source, inner, 1)
        self.norm2 = nn.GroupNorm(NUM_GROUPS, inner)
        self.conv2 = StandardizedConv2d(inner, inner, 3, stride)
        self.norm3 = nn.GroupNorm(NUM_GROUPS, inner)
        self.conv3 = StandardizedConv2d(inner, width, 1)
        self.relu = nn.ReLU(inplace=True)
        self.downsample = StandardizedConv2d(source, width, 1, stride) if source != width else None

    def forward(self, x: Tensor) -> Tensor:
        active = self.relu(self.norm1(x))
        shortcut = x if self.downsample is None else self.downsample(active)
        branch = self.conv1(active)
        branch = self.conv2(self.relu(self.norm2(branch)))
        return self.conv3(self.relu(self.norm3(branch))) + shortcut


class ResNetV2(ResNet):
    """`b 3 H W -> b k` (or `config.in_channels` channels), any image size."""

    def __init__(self, config: ResNetConfig) -> None:
        super().__init__(config)
        self.norm = nn.GroupNorm(NUM_GROUPS, self.num_features)

    def _build_stem(self) -> None:
        self.conv1 = StandardizedConv2d(self.config.in_channels, self.config.width, 7, 2)
        # no ReLU comes before the pooling, so that zeros at the edge count
        self.maxpool = nn.Sequential(nn.ZeroPad2d(1), nn.MaxPool2d(3, stride=2))

    def _block(self, stage: int, stride: int) -> nn.Module:
        inner, source = self.config.width * 2**stage, self.num_features
        self.num_features = inner * EXPANSION
        return PreActBottleneck(source, inner, self.num_features, stride)

    def _stem(self, images: Tensor) -> Tensor:
        return self.conv1(images)

    def _apply_stages(self, x: Tensor) -> Iterator[Tensor]:
        for stage in self.stages():
            saved = self.gradient_checkpointing and self.training
            x = checkpoint(stage, x, use_reentrant=False) if saved else stage(x)
            yield x

    def _features(self, x: Tensor) -> Tensor:
        return torch.relu(self.norm(x))

    def set_grad_checkpointing(self, enable: bool = True) -> None:
        """Keep only the stages' inputs for the backward pass, and recompute the rest."""
        self.gradient_checkpointing = enable
