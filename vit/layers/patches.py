"""Images to patches to vectors (ViT, eq. 1), and the convolutional stems.

Patches are projected by one matrix product; the weight keeps the shape of the equivalent convolution. The stem of the
hybrid is the first stage of a ResNet-18, with GroupNorm so that a sample never depends on its batch. The small one,
`conv`, is two convolutions whose windows overlap (Xiao et al. 2021; CCT: Hassani et al. 2021).
"""

from __future__ import annotations

from functools import partial

from einops import rearrange
from torch import Tensor, nn
from torch.nn.functional import linear

from vit.config import Grid, StemKind
from vit.layers.residual import BasicBlock
from vit.linear import matmul_dtype

STEM_STRIDE = 4
STEM_WIDTH = 64


class PatchProjection(nn.Conv2d):
    """A convolution whose stride is its kernel, computed as a matrix product: `b k H W -> b (gh gw) c`."""

    def forward(self, images: Tensor) -> Tensor:
        ph, pw = self.kernel_size
        patches = rearrange(images, "b k (gh ph) (gw pw) -> b (gh gw) (k ph pw)", ph=ph, pw=pw)
        return linear(patches, rearrange(self.weight, "c k ph pw -> c (k ph pw)"), self.bias)


class OverlappingProjection(PatchProjection):
    """A projection of windows twice as wide as the stride, but for a pixel: `b k H W -> b (gh gw) c`."""

    def __init__(self, in_channels: int, width: int, stride: tuple[int, int], *, bias: bool) -> None:
        kernel, padding = _overlapping(stride)
        super().__init__(in_channels, width, kernel, stride=stride, padding=padding, bias=bias)

    def forward(self, images: Tensor) -> Tensor:
        return self._conv_forward(images, self.weight, self.bias).flatten(2).mT  # b n c


def _overlapping(stride: tuple[int, int]) -> tuple[tuple[int, int], tuple[int, int]]:
    """Kernel and padding of windows that overlap by half, but for a pixel."""
    return (2 * stride[0] - 1, 2 * stride[1] - 1), (stride[0] - 1, stride[1] - 1)


class ConvStem(nn.Sequential):
    """`b k H W -> b c/2 h w`, the first of two small convolutions; the second is the projection."""

    def __init__(self, width: int, stride: tuple[int, int], in_channels: int = 3) -> None:
        kernel, padding = _overlapping(stride)
        super().__init__(nn.Conv2d(in_channels, width // 2, kernel, stride=stride, padding=padding), nn.GELU())


class ResNetStem(nn.Sequential):
    """`b k H W -> b 64 H/4 W/4`."""

    def __init__(self, in_channels: int = 3) -> None:
        norm = partial(nn.GroupNorm, 32)
        super().__init__(
            nn.Conv2d(in_channels, STEM_WIDTH, 7, stride=2, padding=3, bias=False),
            norm(STEM_WIDTH),
            nn.ReLU(inplace=True),
            nn.MaxPool2d(3, stride=2, padding=1),
            BasicBlock(STEM_WIDTH, STEM_WIDTH, norm=norm),
            BasicBlock(STEM_WIDTH, STEM_WIDTH, norm=norm),
        )


def check_image_shape(images: Tensor, channels: int = 3) -> None:
    """ValueError for images that are not `b k H W` with `channels` channels."""
    if isinstance(images, Tensor) and images.dim() == 4 and images.shape[1] == channels:
        return
    rule = f"b {channels} H W"
    if not isinstance(images, Tensor):
        raise ValueError(f"images: {type(images).__name__} is not valid: it must be a tensor, {rule}")
    shape = tuple(images.shape)
    if len(shape) == 3 and shape[0] == channels:
        rule += "; for one image, images[None]"
    elif len(shape) == 4 and shape[3] == channels:
        rule += "; for channels last, images.movedim(3, 1)"
    raise ValueError(f"images: the shape {shape} is not valid: it must be {rule}")


def check_image_dtype(images: Tensor, weight: Tensor) -> None:
    """ValueError for images of another type than `weight`, after autocast."""
    if images.dtype == weight.dtype or matmul_dtype(images) == matmul_dtype(weight):
        return
    rule = f"the model's weights are {weight.dtype}; give it images.to({weight.dtype})"
    if not images.is_floating_point():
        rule = "they must be normalised as in training, and so of a floating-point type"
    raise ValueError(f"images: {images.dtype} is not valid: {rule}")


class PatchEmbedding(nn.Module):
    """`b k H W -> b n c`, patches row by row. ValueError for images of another type than the weights."""

    def __init__(
        self,
        width: int,
        patch_size: tuple[int, int],
        *,
        stem: StemKind = "patch",
        bias: bool = True,
        in_channels: int = 3,
    ) -> None:
        super().__init__()
        self.patch_size = patch_size
        self.in_channels = in_channels
        self.stem: nn.Module = nn.Identity()
        if stem == "conv":
            # 2 is left for the projection, and so windows of 3×3: it needs width²/2 weights for each of their pixels,
            # the first convolution, of the image's few channels, hardly any. Patches of 2 leave it 1
            first = (max(2, patch_size[0] // 2), max(2, patch_size[1] // 2))
            left = (patch_size[0] // first[0], patch_size[1] // first[1])
            self.stem = ConvStem(width, first, in_channels)
            self.projection: PatchProjection = OverlappingProjection(width // 2, width, left, bias=bias)
            return
        channels, kernel = in_channels, patch_size
        if stem == "resnet":
            self.stem = ResNetStem(in_channels)
            channels, kernel = STEM_WIDTH, (patch_size[0] // STEM_STRIDE, patch_size[1] // STEM_STRIDE)
        self.projection = PatchProjection(channels, width, kernel, stride=kernel, bias=bias)

    def forward(self, images: Tensor) -> Tensor:
        check_image_dtype(images, self.projection.weight)
        return self.projection(self.stem(images))

    def grid_size(self, images: Tensor) -> Grid:
        """Patches along height and width. ValueError unless images are `b k H W` and divisible by the patch."""
        check_image_shape(images, self.in_channels)
        sides = tuple(images.shape[-2:])
        for side, image, patch in zip(("height", "width"), sides, self.patch_size, strict=True):
            if image % patch or image <= 0:  # formatting a size would fix it in a compiled model
                below = max(image // patch, 1) * patch
                rule = f"the patch {side} {patch} must divide the image {side}; nearest: {below} or {below + patch}"
                raise ValueError(f"model.image_size: {sides} is not valid: {rule}")
        return sides[0] // self.patch_size[0], sides[1] // self.patch_size[1]
