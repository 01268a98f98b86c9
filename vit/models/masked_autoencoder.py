"""The masked autoencoder (He et al. 2022): a Vision Transformer that sees a part of an image's patches, and a light
decoder that predicts the pixels of the others.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from einops import rearrange, repeat
from torch import Tensor, nn

from vit.config import Grid, ViTConfig, check
from vit.layers.block import STREAMS, Block
from vit.layers.norm import build_norm
from vit.layers.positions import sincos_2d
from vit.layers.regularization import smallest
from vit.models.initialization import initialize
from vit.models.model import EncoderModel
from vit.models.vision_transformer import FIRST_BLOCK_STREAM, VisionTransformer
from vit.randomness import SampleRandom


@dataclass(frozen=True)
class DecoderConfig:
    """The shape of the decoder's blocks."""

    width: int
    depth: int
    num_heads: int


class Decoder(nn.Module):
    """`b (prefix + k) c` of the patches that were seen, and their indices `b k`, `-> b n (p q 3)`: all patches' pixels.

    A patch that was not seen enters as a learned vector and its place, in sines and cosines. The blocks are standard
    ones, with the encoder's kind of norm.
    """

    def __init__(self, encoder: ViTConfig, shape: DecoderConfig) -> None:
        super().__init__()
        self.num_prefix_tokens = encoder.num_prefix_tokens
        config = ViTConfig(
            image_size=encoder.image_size,
            patch_size=encoder.patch_size,
            **vars(shape),
            positions="sincos_2d",
            norm=encoder.norm,
            norm_eps=encoder.norm_eps,
            init=encoder.init,
            backend=encoder.backend,
        )
        # a norm that follows the pooling has not been applied to these tokens
        self.input_norm = build_norm(encoder, present=encoder.final_norm == "pooled")
        self.embedding = nn.Linear(encoder.width, config.width)
        self.mask_token = nn.Parameter(torch.empty(1, 1, config.width))
        first = FIRST_BLOCK_STREAM + STREAMS * encoder.depth
        self.blocks = nn.ModuleList(
            Block(config, depth_rate=0.0, stream=first + STREAMS * index) for index in range(config.depth)
        )
        self.norm = build_norm(config)
        height, width = encoder.patch_size
        self.pixels = nn.Linear(config.width, height * width * encoder.in_channels)
        initialize(self, config)

    def forward(self, tokens: Tensor, kept: Tensor, grid: Grid) -> Tensor:
        x = self.embedding(self.input_norm(tokens))
        prefix, seen = x[:, : self.num_prefix_tokens], x[:, self.num_prefix_tokens :]
        patches = self.mask_token.to(x.dtype).expand(len(x), grid[0] * grid[1], -1)
        patches = patches.scatter(1, repeat(kept, "b k -> b k c", c=x.shape[-1]), seen)
        patches = patches + sincos_2d(grid, x.shape[-1], device=x.device).to(x.dtype)
        x = torch.cat((prefix, patches), dim=1)
        for block in self.blocks:
            x = block(x)
        return self.pixels(self.norm(x[:, self.num_prefix_tokens :]))


class MaskedAutoencoder(EncoderModel):
    """Predicts the pixels of every patch from some of them. `config` is the encoder's."""

    def __init__(self, encoder: VisionTransformer, shape: DecoderConfig) -> None:
        """ValueError for an encoder whose tokens hold what other patches show before the first block."""
        super().__init__()
        config = encoder.config
        rule = "its convolutions look beyond a patch, into those that are to be predicted; use 'patch'"
        check(config.stem == "patch", "model.stem", config.stem, rule)
        rule = "the patches that are seen are chosen by mae.mask_ratio; leave it out"
        check(config.patch_dropout_rate == 0, "model.patch_dropout_rate", config.patch_dropout_rate, rule)
        rule = "learned pooling gets no gradient in this task; use 'cls' or 'gap', and add it when fine-tuning"
        check(config.pooling in ("cls", "gap", "cls_gap"), "model.pooling", config.pooling, rule)
        rule = "the layer before the head gets no gradient in this task; leave it out, and add it when fine-tuning"
        check(config.representation_width is None, "model.representation_width", config.representation_width, rule)
        fits = shape.width % 4 == 0 and shape.width % shape.num_heads == 0
        check(fits, "mae.decoder_width", shape.width, f"mae.decoder_heads ({shape.num_heads}) and 4 must divide it")
        rule = "an image of one patch has none to hide"
        check(math.prod(config.grid_size) > 1, "model.patch_size", config.patch_size, rule)
        self.config = config
        self.encoder: VisionTransformer = encoder
        self.encoder.pool_norm.requires_grad_(False)  # it follows the pooling, which no loss depends on
        self.decoder = Decoder(config, shape)

    def forward(self, images: Tensor, kept: Tensor, *, rng: SampleRandom | None = None) -> Tensor:
        """Predicted pixels `b n (p q 3)` from normalised images `b 3 H W` and the indices `b k` of the seen patches."""
        tokens = self.encoder.forward_features(images, rng, kept=kept)
        return self.decoder(tokens, kept, self.encoder.embedding.grid_size(images))

    @property
    def num_layers(self) -> int:
        return self.encoder.num_layers + len(self.decoder.blocks)

    def layer_of(self, parameter_name: str) -> int:
        """The decoder's blocks follow the encoder, and its other parameters come last."""
        first, second, *rest = parameter_name.split(".")
        in_block = first == "decoder" and second == "blocks"
        return self.encoder.num_layers + int(rest[0]) if in_block else super().layer_of(parameter_name)

    def no_weight_decay(self) -> set[str]:
        return super().no_weight_decay() | {"decoder.mask_token"}


def patch_pixels(images: Tensor, patch_size: tuple[int, int]) -> Tensor:
    """`b 3 H W -> b n (p q 3)`, patches row by row."""
    height, width = patch_size
    return rearrange(images, "b k (gh p) (gw q) -> b (gh gw) (p q k)", p=height, q=width)


def pixels_to_images(pixels: Tensor, grid: Grid, patch_size: tuple[int, int]) -> Tensor:
    """The inverse of `patch_pixels`."""
    sizes = {"gh": grid[0], "gw": grid[1], "p": patch_size[0], "q": patch_size[1]}
    return rearrange(pixels, "b (gh gw) (p q k) -> b k (gh p) (gw q)", **sizes)


def num_seen(num_patches: int, mask_ratio: float) -> int:
    """How many patches the encoder sees: at least one, and not all."""
    return min(max(1, round(num_patches * (1 - mask_ratio))), num_patches - 1)


def seen_patches(num_patches: int, mask_ratio: float, rng: SampleRandom) -> Tensor:
    """Random indices `b k`, ascending, of the patches that are seen."""
    return smallest(rng.uniform(num_patches), num_seen(num_patches, mask_ratio))
