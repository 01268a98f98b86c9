"""The Vision Transformer (Dosovitskiy et al. 2020): images in, logits out.

Tokens stand in the order class, distillation (DeiT: Touvron et al. 2021), registers (Darcet et al. 2024),
patches. This room knows nothing of data, optimizers and files.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from einops import reduce
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from vit.attention.multihead import MultiHeadAttention
from vit.config import ViTConfig
from vit.layers.block import STREAMS, Block
from vit.layers.feedforward import ACTIVATIONS, FeedForward
from vit.layers.patches import PatchEmbedding
from vit.layers.positions import build_positions
from vit.layers.regularization import Dropout, PatchDropout
from vit.models.initialization import initialize
from vit.models.model import Model
from vit.randomness import SampleRandom

PATCH_STREAM, POSITION_STREAM, FIRST_BLOCK_STREAM = 0, 1, 2


class AttentionPool(nn.Module):
    """A learned query attends to the tokens, then a feed-forward layer: `b n c -> b c` (MAP: Zhai et al.
    2022).
    """

    def __init__(self, config: ViTConfig) -> None:
        super().__init__()
        self.probe = nn.Parameter(torch.empty(1, 1, config.width))
        self.attention = MultiHeadAttention(config.width, config.num_heads, backend=config.backend)
        self.norm = nn.LayerNorm(config.width, config.norm_eps)
        activation = ACTIVATIONS["gelu" if config.feedforward == "swiglu" else config.feedforward]
        self.feedforward = FeedForward(config.width, round(config.width * config.mlp_ratio), 0.0, 0, activation)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.attention(self.probe.expand(tokens.shape[0], -1, -1), tokens, tokens)  # b 1 c
        return (x + self.feedforward(self.norm(x)))[:, 0]


class VisionTransformer(Model):
    """`b 3 H W -> b k`. The images may have another size than the configuration's, if the patch divides
    it.
    """

    def __init__(self, config: ViTConfig) -> None:
        super().__init__()
        self.config = config
        self.grid_size = config.grid_size
        self.num_prefix_tokens = config.num_prefix_tokens
        self.gradient_checkpointing = False
        width = config.width
        # CLIP's patch embedding, like timm's, leaves the bias to the norm that follows.
        self.embedding = PatchEmbedding(width, config.patch_size, stem=config.stem, bias=not config.pre_norm)
        self.class_token = _token(1, width) if config.class_token else None
        self.distillation_token = _token(1, width) if config.distillation_token else None
        self.register_tokens = _token(config.num_registers, width) if config.num_registers else None
        self.positions = build_positions(config)
        self.position_dropout = Dropout(config.dropout_rate, POSITION_STREAM)
        self.patch_dropout = PatchDropout(config.patch_dropout_rate, PATCH_STREAM)
        self.pre_norm = nn.LayerNorm(width, config.norm_eps) if config.pre_norm else nn.Identity()
        self.blocks = nn.ModuleList(
            Block(config, _depth_rate(config, index), FIRST_BLOCK_STREAM + STREAMS * index)
            for index in range(config.depth)
        )
        self.norm = nn.LayerNorm(width, config.norm_eps) if config.final_norm == "tokens" else nn.Identity()
        self.attention_pool = AttentionPool(config) if config.pooling == "map" else None
        self.pool_norm = nn.LayerNorm(width, config.norm_eps) if config.final_norm == "pooled" else nn.Identity()
        self.representation = None
        if config.representation_width is not None:
            self.representation = nn.Linear(config.pooled_width, config.representation_width)
        self.head: nn.Linear | nn.Identity = nn.Identity()
        if config.num_classes:
            self.head = nn.Linear(config.head_width, config.num_classes, bias=config.head_bias)
        self.distillation_head = None
        if config.distillation_token and config.distillation_head and config.num_classes:
            self.distillation_head = nn.Linear(width, config.num_classes)
        initialize(self, config)

    def forward(self, images: Tensor, *, rng: SampleRandom | None = None, separate_heads: bool = False) -> Tensor:
        """Logits `b k`; with `separate_heads`, `b 2 k`: class head, distillation head. Without classes,
        features `b c`.

        `rng` gives every sample its own random numbers in training; without it they are torch's.
        """
        tokens = self._tokens(images, rng, self._num_read())
        if self.distillation_head is None:
            if separate_heads:
                raise ValueError(
                    "separate_heads: True is not valid: the model has no second head (model.distillation_token)"
                )
            return self.head(self.pool(tokens))
        class_vector, distillation_vector = self.pool_norm(tokens[:, :2]).unbind(1)
        logits = torch.stack((self.head(class_vector), self.distillation_head(distillation_vector)), dim=1)
        return logits if separate_heads else logits.mean(dim=1)

    def forward_features(self, images: Tensor, rng: SampleRandom | None = None) -> Tensor:
        """All tokens after the last block, `b (prefix + n) c`, normalised unless the norm follows the
        pooling.
        """
        return self._tokens(images, rng, None)

    def _tokens(self, images: Tensor, rng: SampleRandom | None, num_read: int | None) -> Tensor:
        """`forward_features`; where only the first `num_read` tokens are read, the last block computes no others."""
        grid = self.embedding.grid_size(images)
        patches = self.positions(self.embedding(images), grid)
        patches, kept = self.patch_dropout(patches, rng)
        x = self.pre_norm(self.position_dropout(self._with_prefix(patches), rng))
        rotate = self.positions.rotation(grid, kept, images.device)
        biases = self.positions.biases(grid, kept)
        last = len(self.blocks) - 1
        for index, block in enumerate(self.blocks):
            bias = None if biases is None else biases[index]
            x = self._run(block, x, bias, rotate, rng, num_read if index == last else None)
        return self.norm(x)

    def _num_read(self) -> int | None:
        """How many of the first tokens the logits are made of; None: all, or that somebody watches the last of them.

        Dropout of the attention's weights is drawn for all queries, so that skipping some would change the draws.
        """
        config = self.config
        draws = self.training and config.attention_dropout_rate > 0
        if config.pooling != "cls" or draws or _is_watched(self.norm) or _is_watched(self.blocks[-1]):
            return None
        return 2 if config.distillation_token and config.distillation_head else 1

    def patch_embedding(self, images: Tensor) -> Tensor:
        """The patches' vectors before positions, `b n c`."""
        self.embedding.grid_size(images)
        return self.embedding(images)

    def pool(self, tokens: Tensor) -> Tensor:
        """One vector an image from `forward_features`' tokens, `b c`: what the head reads."""
        pooled = self._pool(tokens)
        return pooled if self.representation is None else self.representation(pooled).tanh()

    def _pool(self, tokens: Tensor) -> Tensor:
        patches = tokens[:, self.num_prefix_tokens :]
        if self.attention_pool is not None:
            return self.pool_norm(self.attention_pool(patches))
        if self.config.pooling == "gap":
            return self.pool_norm(reduce(patches, "b n c -> b c", "mean"))
        if self.config.pooling == "cls_gap":
            return torch.cat((tokens[:, 0], reduce(patches, "b n c -> b c", "mean")), dim=1)
        if self.config.distillation_token and self.config.distillation_head:
            return self.pool_norm(tokens[:, :2]).mean(dim=1)
        return self.pool_norm(tokens[:, 0])

    def _with_prefix(self, patches: Tensor) -> Tensor:
        tokens = (self.class_token, self.distillation_token, self.register_tokens)
        present: list[Tensor] = [token for token in tokens if token is not None]
        if not present:
            return patches
        prefix, placed = torch.cat(present, dim=1), self.positions.prefix
        if placed is not None:
            first = placed.shape[1]
            prefix = torch.cat((prefix[:, :first] + placed, prefix[:, first:]), dim=1)
        return torch.cat((prefix.expand(patches.shape[0], -1, -1), patches), dim=1)

    def _run(
        self,
        block: nn.Module,
        x: Tensor,
        bias: Tensor | None,
        rotate: Callable[[Tensor], Tensor] | None,
        rng: SampleRandom | None,
        num_queries: int | None,
    ) -> Tensor:
        if self.gradient_checkpointing and self.training:
            return checkpoint(block, x, bias, rotate, rng, num_queries, use_reentrant=False)
        return block(x, bias, rotate, rng, num_queries)

    @property
    def num_layers(self) -> int:
        return self.config.depth + 1

    def layer_of(self, parameter_name: str) -> int:
        """0 the embedding, `num_layers` what follows the blocks."""
        first, *rest = parameter_name.split(".")
        if first == "blocks":
            return int(rest[0]) + 1
        before = (
            "embedding",
            "positions",
            "pre_norm",
            "class_token",
            "distillation_token",
            "register_tokens",
        )
        return 0 if first in before else self.num_layers

    def no_weight_decay(self) -> set[str]:
        """Norms, biases, scales, positions and tokens."""
        kept = ("positions.", "class_token", "distillation_token", "register_tokens", "attention_pool.probe")
        return {name for name, p in self.named_parameters() if p.dim() <= 1 or name.startswith(kept)}

    def head_names(self) -> tuple[str, ...]:
        names = ("head", "distillation_head")
        return tuple(name for name in names if isinstance(getattr(self, name), nn.Linear))


def _token(count: int, width: int) -> nn.Parameter:
    return nn.Parameter(torch.empty(1, count, width))


def _is_watched(module: nn.Module) -> bool:
    """Whether a hook is told what it, or a part of it, computes."""
    return any(part._forward_hooks or part._forward_pre_hooks for part in module.modules())


def _depth_rate(config: ViTConfig, index: int) -> float:
    return config.stochastic_depth_rate * index / max(config.depth - 1, 1)
