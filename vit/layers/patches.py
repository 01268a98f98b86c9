"""Images to patches to vectors (ViT, eq. 1), and the convolutional stem of the hybrid.

A patch is cut and projected as one matrix product; the weight keeps the shape of the convolution it is. The
stem is the first stage of a ResNet-18 with GroupNorm, so that a sample never depends on its batch.
"""

from __future__ import annotations

from functools import partial

from einops import rearrange
from torch import Tensor, nn
from torch.nn.functional import linear

from vit.config import Stem, check
from vit.linear import product_type

STEM_STRIDE = 4
STEM_WIDTH = 64


class PatchProjection(nn.Conv2d):
    """A convolution whose stride is its kernel, computed as a matrix product: `b k H W -> b (gh gw) c`."""

    def forward(self, images: Tensor) -> Tensor:
        ph, pw = self.kernel_size
        patches = rearrange(images, "b k (gh ph) (gw pw) -> b (gh gw) (k ph pw)", ph=ph, pw=pw)
        return linear(patches, rearrange(self.weight, "c k ph pw -> c (k ph pw)"), self.bias)


class ResNetStem(nn.Sequential):
    """`b 3 H W -> b 64 H/4 W/4`."""

    def __init__(self) -> None:
        from torchvision.models.resnet import BasicBlock

        norm = partial(nn.GroupNorm, 32)
        super().__init__(
            nn.Conv2d(3, STEM_WIDTH, 7, stride=2, padding=3, bias=False),
            norm(STEM_WIDTH),
            nn.ReLU(inplace=True),
            nn.MaxPool2d(3, stride=2, padding=1),
            BasicBlock(STEM_WIDTH, STEM_WIDTH, norm_layer=norm),
            BasicBlock(STEM_WIDTH, STEM_WIDTH, norm_layer=norm),
        )


def check_shape(images: Tensor) -> None:
    """ValueError for images that are not `b 3 H W`."""
    if not isinstance(images, Tensor):
        raise ValueError(f"images: {type(images).__name__} is not valid: it must be a tensor, b 3 H W")
    shape = tuple(images.shape)
    if len(shape) == 4 and shape[1] == 3:
        return
    rule = "it must be b 3 H W"
    if len(shape) == 3 and shape[0] == 3:
        rule += "; for one image, images[None]"
    elif len(shape) == 4 and shape[3] == 3:
        rule += "; for channels that come last, images.movedim(3, 1)"
    raise ValueError(f"images: the shape {shape} is not valid: {rule}")


def check_type(images: Tensor, weight: Tensor) -> None:
    """ValueError for images that `weight` cannot multiply."""
    if images.dtype == weight.dtype or product_type(images) == product_type(weight):
        return
    rule = f"the model's weights are {weight.dtype}; give it images.to({weight.dtype})"
    if not images.is_floating_point():
        rule = "they must be normalised, as the model was trained, and so of a floating-point type"
    raise ValueError(f"images: {images.dtype} is not valid: {rule}")


class PatchEmbedding(nn.Module):
    """`b 3 H W -> b n c`, patches row by row. ValueError for images of another type than the weights."""

    def __init__(self, width: int, patch_size: tuple[int, int], *, stem: Stem = "patch", bias: bool = True) -> None:
        super().__init__()
        self.patch_size = patch_size
        channels, stride = (3, 1) if stem == "patch" else (STEM_WIDTH, STEM_STRIDE)
        kernel = (patch_size[0] // stride, patch_size[1] // stride)
        self.stem = nn.Identity() if stem == "patch" else ResNetStem()
        self.projection = PatchProjection(channels, width, kernel, stride=kernel, bias=bias)

    def forward(self, images: Tensor) -> Tensor:
        check_type(images, self.projection.weight)
        return self.projection(self.stem(images))

    def grid_size(self, images: Tensor) -> tuple[int, int]:
        """Patches along the height and the width; ValueError where the patch does not divide the image, or for no
        images `b 3 H W`.
        """
        check_shape(images)
        sides = tuple(images.shape[-2:])
        for side, image, patch in zip(("height", "width"), sides, self.patch_size, strict=True):
            below = max(image // patch, 1) * patch
            rule = f"the patch {side} {patch} must divide the image {side}; nearest: {below} or {below + patch}"
            check(image % patch == 0 and image > 0, "model.image_size", sides, rule)
        return sides[0] // self.patch_size[0], sides[1] // self.patch_size[1]
