"""Residual blocks of ResNets (He et al. 2016; grouped: Xie et al. 2017; `average`: He et al. 2019, ResNet-D).

Parameters have torchvision's names, which are timm's too. A stride is in the 3×3 convolution (version 1.5).
"""

from __future__ import annotations

from collections.abc import Callable

from einops import rearrange
from torch import Tensor, nn
from torch.nn.functional import linear, pad

from vit.config import Shortcut

MakeNorm = Callable[[int], nn.Module]


MAX_PIXELS_OF_MATRIX_PRODUCT = 4
MIN_WEIGHTS_OF_MATRIX_PRODUCT = 2**20
"""Maps and filters for which, in training on a CPU, a matrix product is faster than a convolution (LOG.md)."""


class Convolution3x3(nn.Conv2d):
    """A 3×3 convolution; in training on a CPU, small maps are multiplied by large filters in one matrix product.

    A ResNet-18 ends in maps of 1 or 4 pixels and 512 channels if its images have up to 64. For these, oneDNN's gradient
    of the filters took up to half of a training step.
    """

    def forward(self, x: Tensor) -> Tensor:
        is_cpu_training = self.training and self.groups == 1 and x.device.type == "cpu"
        is_small = x.shape[2] * x.shape[3] <= MAX_PIXELS_OF_MATRIX_PRODUCT
        is_large = self.weight.numel() >= MIN_WEIGHTS_OF_MATRIX_PRODUCT
        return self._matrix_product(x) if is_cpu_training and is_small and is_large else super().forward(x)

    def _matrix_product(self, x: Tensor) -> Tensor:
        windows = pad(x, (1, 1, 1, 1)).unfold(2, 3, self.stride[0]).unfold(3, 3, self.stride[1])
        rows = rearrange(windows, "b c h w i j -> (b h w) (c i j)")
        product = linear(rows, self.weight.flatten(1))
        return rearrange(product, "(b h w) c -> b c h w", b=windows.shape[0], h=windows.shape[2])


def convolution(source: int, width: int, kernel: int, stride: int = 1, groups: int = 1) -> nn.Conv2d:
    """Without a bias, as a norm follows; padded so that stride 1 keeps the size."""
    kind = Convolution3x3 if kernel == 3 else nn.Conv2d
    return kind(source, width, kernel, stride, kernel // 2, groups=groups, bias=False)


class PaddingShortcut(nn.Module):
    """Every `stride`-th pixel, with zero channels on both sides: `b source h w -> b width h/stride w/stride`."""

    def __init__(self, source: int, width: int, stride: int) -> None:
        super().__init__()
        self.stride = stride
        self.before = (width - source) // 2
        self.after = width - source - self.before

    def forward(self, x: Tensor) -> Tensor:
        return pad(x[:, :, :: self.stride, :: self.stride], (0, 0, 0, 0, self.before, self.after))


def shortcut_of(source: int, width: int, stride: int, kind: Shortcut, norm: MakeNorm) -> nn.Module:
    """The block's input in the shape of its output; unchanged where it has it."""
    if stride == 1 and source == width:
        return nn.Identity()
    if kind == "padding":
        return PaddingShortcut(source, width, stride)
    if kind == "projection":
        return nn.Sequential(convolution(source, width, 1, stride), norm(width))
    # at the edge of an odd side, the mean of the pixels that there are
    pool = nn.AvgPool2d(2, stride, ceil_mode=True, count_include_pad=False) if stride > 1 else nn.Identity()
    return nn.Sequential(pool, convolution(source, width, 1), norm(width))


class BasicBlock(nn.Module):
    """Two 3×3 convolutions: `b source h w -> b width h/stride w/stride`."""

    def __init__(
        self,
        source: int,
        width: int,
        stride: int = 1,
        *,
        shortcut: Shortcut = "projection",
        norm: MakeNorm = nn.BatchNorm2d,
    ) -> None:
        super().__init__()
        self.conv1 = convolution(source, width, 3, stride)
        self.bn1 = norm(width)
        self.relu = nn.ReLU(inplace=True)
        self.conv2 = convolution(width, width, 3)
        self.bn2 = norm(width)
        self.downsample = shortcut_of(source, width, stride, shortcut, norm)

    def forward(self, x: Tensor) -> Tensor:
        branch = self.relu(self.bn1(self.conv1(x)))
        branch = self.bn2(self.conv2(branch))
        return self.relu(branch.add_(self.downsample(x)))

    @property
    def last_norm(self) -> nn.Module:
        return self.bn2


class Bottleneck(nn.Module):
    """A 3×3 convolution of `inner` channels between two of 1×1: `b source h w -> b width h/stride w/stride`."""

    def __init__(
        self,
        source: int,
        inner: int,
        width: int,
        stride: int = 1,
        *,
        groups: int = 1,
        shortcut: Shortcut = "projection",
        norm: MakeNorm = nn.BatchNorm2d,
    ) -> None:
        super().__init__()
        self.conv1 = convolution(source, inner, 1)
        self.bn1 = norm(inner)
        self.conv2 = convolution(inner, inner, 3, stride, groups)
        self.bn2 = norm(inner)
        self.conv3 = convolution(inner, width, 1)
        self.bn3 = norm(width)
        self.relu = nn.ReLU(inplace=True)
        self.downsample = shortcut_of(source, width, stride, shortcut, norm)

    def forward(self, x: Tensor) -> Tensor:
        branch = self.relu(self.bn1(self.conv1(x)))
        branch = self.relu(self.bn2(self.conv2(branch)))
        branch = self.bn3(self.conv3(branch))
        return self.relu(branch.add_(self.downsample(x)))

    @property
    def last_norm(self) -> nn.Module:
        return self.bn3
