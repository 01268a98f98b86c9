"""The layout of a model's tokens: which are patches, and where in the image those lie.

The patches are the last tokens of the sequence, row by row; before them stand class, distillation and register tokens,
which have no place. Holds for our models and for those of timm, torchvision and transformers.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from einops import rearrange
from torch import Tensor, nn

from vit.analysis.model_structure import channels_last, patch_grid, patch_size
from vit.analysis.unsupported import Unsupported
from vit.config import Grid, check
from vit.libraries.tokens import has_class_token

MOST_PREFIX = 64


@dataclass(frozen=True, kw_only=True)
class TokenLayout:
    """The tokens of one image size. Sizes are (height, width)."""

    image_size: tuple[int, int]
    """Pixels; at the end of it, rows and columns that fill no patch may be left over."""
    patch_size: tuple[int, int]
    """Pixels."""
    grid: Grid
    """Patches."""
    num_prefix: int
    """Tokens before the patches."""
    has_class_token: bool

    @property
    def covered(self) -> tuple[int, int]:
        """Pixels that the patches lie on."""
        return self.grid[0] * self.patch_size[0], self.grid[1] * self.patch_size[1]

    @property
    def num_patches(self) -> int:
        return math.prod(self.grid)

    def coordinates(self, device: torch.device | None = None) -> Tensor:
        """Pixels (row, column) of every token's centre, N 2; NaN for a token without a place."""
        rows, columns = (
            (torch.arange(count, device=device, dtype=torch.float32) + 0.5) * step
            for count, step in zip(self.grid, self.patch_size, strict=True)
        )
        centres = rearrange(torch.stack(torch.meshgrid(rows, columns, indexing="ij")), "k gh gw -> (gh gw) k")
        return torch.cat((centres.new_full((self.num_prefix, 2), float("nan")), centres))  # N 2

    def groups(self, device: torch.device | None = None) -> dict[str, Tensor]:
        """The keys that are no patches, and the class token, N each."""
        places = torch.arange(self.num_prefix + self.num_patches, device=device)
        return {"prefix": places < self.num_prefix, "class": places < int(self.has_class_token)}


def token_layout(model: nn.Module, image_size: tuple[int, int], num_tokens: int) -> TokenLayout:
    """The layout of a sequence of `num_tokens` over an image. Unsupported where it does not fit the model's patches."""
    if type(model).__name__.startswith("ViTMAE"):
        rule = "transformers' MAE shuffles its patches; open_model gives one that keeps them in order"
        raise Unsupported(f"model: {type(model).__name__} is not valid: {rule}")
    grid = patch_grid(model, image_size)
    num_prefix = num_tokens - math.prod(grid)
    said = getattr(model, "num_prefix_tokens", num_prefix)
    if not 0 <= num_prefix <= MOST_PREFIX or said != num_prefix:
        raise Unsupported(
            f"tokens: {num_tokens} is not valid: patches of {grid[0]}×{grid[1]} leave {num_prefix} other tokens, "
            f"and {type(model).__name__} has {said}; its patches are not a plain grid of the image"
        )
    with_class = num_prefix > 0 and has_class_token(model)
    return TokenLayout(
        image_size=image_size,
        patch_size=patch_size(model),
        grid=grid,
        num_prefix=num_prefix,
        has_class_token=with_class,
    )


def is_convolutional(model: nn.Module, output: Tensor) -> bool:
    """Whether a block's output is a convolution's map `b c h w`, whose places need not be patches."""
    return output.dim() == 4 and not channels_last(model)


def block_tokens(model: nn.Module, output: Tensor) -> Tensor:
    """The tokens `b n c` that a block gives, some as a map `b gh gw c`. Unsupported for a convolution's map."""
    if output.dim() == 4 and channels_last(model):
        return rearrange(output, "b gh gw c -> b (gh gw) c")
    if output.dim() != 3:
        raise Unsupported(f"tokens: shape {tuple(output.shape)} is not valid: the model's blocks give maps, no tokens")
    return output


def block_patches(model: nn.Module, output: Tensor, image_size: tuple[int, int]) -> Tensor:
    """The patches `b gh gw c` that a block gives; a convolution's map is read as patches, one a place.

    Unsupported where its tokens do not fit the model's patches.
    """
    if is_convolutional(model, output):
        return rearrange(output, "b c gh gw -> b gh gw c")
    tokens = block_tokens(model, output)
    layout = token_layout(model, image_size, tokens.shape[1])
    return rearrange(tokens[:, layout.num_prefix :], "b (gh gw) c -> b gh gw c", gh=layout.grid[0])


def pictures_of(images: Tensor, pixels: Tensor | None) -> Tensor:
    """`b H W 3`, uint8: the pixels, or else normalised images, each stretched from its least to its greatest number.

    Images of one or two channels are shown in grey, by the first; of more than three, the first three are red, green
    and blue.
    """
    if pixels is None:
        images = images[:, :3] if images.shape[1] > 3 else images
        images = images if images.shape[1] == 3 else images[:, :1].expand(-1, 3, -1, -1)
        low, high = images.amin(dim=(1, 2, 3), keepdim=True), images.amax(dim=(1, 2, 3), keepdim=True)
        pixels = ((images - low) / (high - low).clamp(min=1e-6) * 255).round().to(torch.uint8)
    shown = (str(pixels.dtype).removeprefix("torch."), *pixels.shape)
    fits = pixels.dtype == torch.uint8 and pixels.dim() == 4 and pixels.shape[1] == 3 and len(pixels) >= len(images)
    check(fits, "pixels", shown, f"they must be uint8 b 3 H W, one for each of the {len(images)} images")
    height, width = images.shape[2:]
    return rearrange(pixels[: len(images), :, :height, :width], "b c h w -> b h w c").cpu()
