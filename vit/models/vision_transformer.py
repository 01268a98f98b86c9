"""The Vision Transformer (Dosovitskiy et al. 2020): images in, logits out.

The order of tokens is class, distillation (DeiT: Touvron et al. 2021), registers (Darcet et al. 2024), patches. The
methods of a backbone (features of any block, a new head, another image size) have timm's names.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace

import torch
from einops import rearrange, reduce
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from vit.config import ViTConfig, check_arguments
from vit.layers.block import STREAMS, Block
from vit.layers.norm import build_norm
from vit.layers.patches import PatchEmbedding
from vit.layers.pooling import AttentionPool, QueryPool
from vit.layers.positions import build_positions
from vit.layers.regularization import Dropout, PatchDropout, take_patches
from vit.models.backbone import Backbone, Intermediates, OutputFormat, check_output_format, select_blocks
from vit.models.initialization import initialize, initialize_head
from vit.randomness import SampleRandom

PATCH_STREAM, POSITION_STREAM, FIRST_BLOCK_STREAM = 0, 1, 2


class VisionTransformer(Backbone):
    """`b 3 H W -> b k` (or `config.in_channels` channels). Any image size that the patch divides is accepted."""

    head: nn.Linear | nn.Identity
    distillation_head: nn.Linear | None

    def __init__(self, config: ViTConfig) -> None:
        super().__init__()
        self.config = config
        self.grid_size = config.grid_size
        self.num_prefix_tokens = config.num_prefix_tokens
        self.gradient_checkpointing = False
        width = config.width
        # CLIP's patch embedding, like timm's, leaves the bias to the norm that follows.
        self.embedding = PatchEmbedding(
            width, config.patch_size, stem=config.stem, bias=not config.pre_norm, in_channels=config.in_channels
        )
        self.class_token = _token(1, width) if config.class_token else None
        self.distillation_token = _token(1, width) if config.distillation_token else None
        self.register_tokens = _token(config.num_registers, width) if config.num_registers else None
        self.positions = build_positions(config)
        self.position_dropout = Dropout(config.dropout_rate, POSITION_STREAM)
        self.patch_dropout = PatchDropout(config.patch_dropout_rate, PATCH_STREAM)
        self.embedding_norm = build_norm(config, present=config.embedding_norm)
        self.pre_norm = build_norm(config, present=config.pre_norm)
        self.blocks = nn.ModuleList(
            Block(
                config,
                depth_rate=config.stochastic_depth_rate * index / max(config.depth - 1, 1),
                stream=FIRST_BLOCK_STREAM + STREAMS * index,
            )
            for index in range(config.depth)
        )
        self.norm = build_norm(config, present=config.final_norm == "tokens")
        self.attention_pool: AttentionPool | QueryPool | None = None
        if config.pooling in ("map", "query"):
            self.attention_pool = AttentionPool(config) if config.pooling == "map" else QueryPool(config)
        self.pool_norm = build_norm(config, present=config.final_norm == "pooled")
        self.representation = None
        if config.representation_width is not None:
            self.representation = nn.Linear(config.pooled_width, config.representation_width)
        self._add_heads()
        initialize(self, config)

    def _add_heads(self) -> None:
        config = self.config
        self.head = nn.Identity()
        if config.num_classes:
            self.head = nn.Linear(config.head_width, config.num_classes, bias=config.head_bias)
        self.distillation_head = None
        if config.distillation_token and config.distillation_head and config.num_classes:
            self.distillation_head = nn.Linear(config.width, config.num_classes)

    def forward(self, images: Tensor, *, rng: SampleRandom | None = None, separate_heads: bool = False) -> Tensor:
        """Logits `b k`; with `separate_heads`, `b 2 k`: class head, distillation head. Without classes, features `b c`.

        In training, random numbers come from `rng`, per sample, or from torch's generator.
        """
        return self.forward_head(self._tokens(images, rng, self._num_read()), separate_heads=separate_heads)

    def forward_features(
        self, images: Tensor, rng: SampleRandom | None = None, *, kept: Tensor | None = None
    ) -> Tensor:
        """All tokens after the last block, `b (prefix + n) c`, normalised unless the norm follows the pooling.

        `kept`: the indices, int64 `b k`, of the only patches that the blocks see; then `b (prefix + k) c`.
        """
        return self._tokens(images, rng, None, kept=kept)

    def forward_head(self, tokens: Tensor, pre_logits: bool = False, *, separate_heads: bool = False) -> Tensor:
        """Logits from `forward_features`' tokens; with `pre_logits`, the head's input, `b c`.

        ValueError for `separate_heads` of a model with one head, and together with `pre_logits`.
        """
        if pre_logits and separate_heads:
            raise ValueError("separate_heads: True is not valid: pre_logits is what the class head reads")
        if self.distillation_head is None and separate_heads:
            rule = "the model has no second head (model.distillation_token)"
            raise ValueError(f"separate_heads: True is not valid: {rule}")
        if pre_logits or self.distillation_head is None:
            return self.pool(tokens) if pre_logits else self.head(self.pool(tokens))
        class_vector, distillation_vector = self.pool_norm(tokens[:, :2]).unbind(1)
        logits = torch.stack((self.head(class_vector), self.distillation_head(distillation_vector)), dim=1)
        return logits if separate_heads else logits.mean(dim=1)

    def forward_intermediates(
        self,
        images: Tensor,
        indices: int | Sequence[int] | None = None,
        return_prefix_tokens: bool = False,
        norm: bool = False,
        output_fmt: OutputFormat = "NCHW",
        intermediates_only: bool = False,
        rng: SampleRandom | None = None,
    ) -> Intermediates | tuple[Tensor, Intermediates]:
        """`forward_features` and the patches after the selected blocks, `b c gh gw` or (`NLC`) `b n c` each.

        `indices`: a number of last blocks, or a list of blocks, negative ones from the end; None: all. `norm` applies
        the final norm to each. `return_prefix_tokens` pairs each with the prefix tokens, `b p c`, if the model has any.
        `intermediates_only` returns the list alone and stops after the last selected block. ValueError for an index out
        of range, and for `NCHW` while patch dropout leaves no grid.
        """
        check_output_format(output_fmt, ("NCHW", "NLC"))
        if output_fmt == "NCHW" and self.training and self.config.patch_dropout_rate > 0:
            raise ValueError("output_fmt: 'NCHW' is not valid: patch dropout leaves no grid; 'NLC', or model.eval()")
        chosen, first = select_blocks(len(self.blocks), indices), self.num_prefix_tokens
        streams: list[Tensor] = []
        last = max(chosen) if intermediates_only else None
        tokens = self._tokens(images, rng, None, chosen=chosen, streams=streams, last=last)
        if norm:
            streams = [self.norm(stream) for stream in streams]
        patches = [stream[:, first:] for stream in streams]
        if output_fmt == "NCHW":
            gh, _ = self.embedding.grid_size(images)
            patches = [rearrange(each, "b (gh gw) c -> b c gh gw", gh=gh).contiguous() for each in patches]
        prefixes = [stream[:, :first] for stream in streams]
        intermediates = list(zip(patches, prefixes, strict=True)) if return_prefix_tokens and first else patches
        return intermediates if intermediates_only else (tokens, intermediates)

    def _tokens(
        self,
        images: Tensor,
        rng: SampleRandom | None,
        num_read: int | None,
        *,
        kept: Tensor | None = None,
        chosen: Collection[int] = (),
        streams: list[Tensor] | None = None,
        last: int | None = None,
    ) -> Tensor:
        """`forward_features`; with `num_read`, the final block computes only that many of the first tokens.

        `kept` takes the place of patch dropout. `streams` receives the residual stream after each of the `chosen`
        blocks; blocks after `last` are skipped.
        """
        grid = self.embedding.grid_size(images)
        patches = self.positions(self.embedding_norm(self.embedding(images)), grid)
        if kept is None:
            patches, kept = self.patch_dropout(patches, rng)
        else:
            patches = take_patches(patches, kept)
        x = self.pre_norm(self.position_dropout(self._with_prefix(patches), rng))
        rotations = self.positions.rotations(grid, kept, images.device)
        biases = self.positions.biases(grid, kept)
        final = len(self.blocks) - 1
        for index, block in enumerate(self.blocks):
            bias = None if biases is None else biases[index]
            rotate = None if rotations is None else rotations[index]
            num_queries = num_read if index == final else None
            if self.gradient_checkpointing and self.training:
                x = checkpoint(block, x, bias, rotate, rng, num_queries, use_reentrant=False)
            else:
                x = block(x, bias, rotate, rng, num_queries)
            if streams is not None and index in chosen:
                streams.append(x)
            if index == last:
                break
        return self.norm(x)

    def _num_read(self) -> int | None:
        """The number of first tokens that the logits depend on; None: compute all."""
        config = self.config
        # attention dropout is drawn for all queries: skipping some would change the draws
        has_dropout = self.training and config.attention_dropout_rate > 0
        if config.pooling != "cls" or has_dropout or _has_hooks(self.norm) or _has_hooks(self.blocks[-1]):
            return None
        return 2 if config.distillation_token and config.distillation_head else 1

    def reset_classifier(self, num_classes: int) -> None:
        """Replace the head (of a distilled model, both) by a newly initialized one; 0 classes: none."""
        self.config = replace(self.config, num_classes=num_classes)
        self._add_heads()
        for head in (self.head, self.distillation_head):
            if isinstance(head, nn.Linear):
                initialize_head(head.to(next(self.parameters())).train(self.training))

    @check_arguments
    def set_image_size(self, image_size: int | tuple[int, int]) -> None:
        """Resize learned positions to images of (height, width), or to square ones, as loading weights does.

        ValueError where the patch does not divide it. Without this call such images work too, but positions are
        resized in every pass.
        """
        size = (image_size, image_size) if isinstance(image_size, int) else (image_size[0], image_size[1])
        self.config = replace(self.config, image_size=size)
        if self.grid_size != self.config.grid_size:
            self.grid_size = self.config.grid_size
            self.positions.set_grid(self.grid_size)

    def set_grad_checkpointing(self, enable: bool = True) -> None:
        """Recompute each block's activations in the backward pass of training instead of keeping them."""
        self.gradient_checkpointing = enable

    @property
    def num_features(self) -> int:
        """Width of the tokens, as timm names it."""
        return self.config.width

    @property
    def head_hidden_size(self) -> int:
        """Width of the head's input, as timm names it."""
        return self.config.head_width

    @property
    def num_classes(self) -> int:
        """Classes of the head; 0: there is no head."""
        return self.config.num_classes

    def patch_embedding(self, images: Tensor) -> Tensor:
        """Patch vectors before positions are added, `b n c`."""
        self.embedding.grid_size(images)
        return self.embedding(images)

    def pool(self, tokens: Tensor) -> Tensor:
        """The head's input from `forward_features`' tokens: one vector per image, `b c`."""
        patches = tokens[:, self.num_prefix_tokens :]
        read = tokens if self.config.pool_prefix else patches
        if self.attention_pool is not None:
            pooled = self.pool_norm(self.attention_pool(read))
        elif self.config.pooling == "gap":
            pooled = self.pool_norm(reduce(read, "b n c -> b c", "mean"))
        elif self.config.pooling == "cls_gap":
            pooled = torch.cat((tokens[:, 0], reduce(patches, "b n c -> b c", "mean")), dim=1)
        elif self.config.distillation_token and self.config.distillation_head:
            pooled = self.pool_norm(tokens[:, :2]).mean(dim=1)
        else:
            pooled = self.pool_norm(tokens[:, 0])
        return pooled if self.representation is None else self.representation(pooled).tanh()

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

    @property
    def num_layers(self) -> int:
        return self.config.depth + 1

    def layer_of(self, parameter_name: str) -> int:
        """Depth of a parameter: 0 before the blocks, `num_layers` after them.

        BEiT's fine-tuning (`optim_factory.get_num_layer_for_vit`) and MAE's (`lr_decay.get_layer_id_for_vit`) count so:
        the final norm learns at the head's rate. timm's `group_matcher` puts `norm` with the last block.
        """
        first, *rest = parameter_name.split(".")
        if first == "blocks":
            return int(rest[0]) + 1
        before = (
            "embedding",
            "embedding_norm",
            "positions",
            "pre_norm",
            "class_token",
            "distillation_token",
            "register_tokens",
        )
        return 0 if first in before else self.num_layers

    def no_weight_decay(self) -> set[str]:
        """Names of parameters without weight decay: norms, biases, scales, positions and tokens."""
        kept = ("positions.", "class_token", "distillation_token", "register_tokens", "attention_pool.probe")
        return {name for name, p in self.named_parameters() if p.dim() <= 1 or name.startswith(kept)}

    def head_names(self) -> tuple[str, ...]:
        names = ("head", "distillation_head")
        return tuple(name for name in names if isinstance(getattr(self, name), nn.Linear))


def _token(count: int, width: int) -> nn.Parameter:
    return nn.Parameter(torch.empty(1, count, width))


def _has_hooks(module: nn.Module) -> bool:
    """Whether anyone looks at the inputs, outputs or gradients of its parts. Hooks of all modules at once do not count:
    those of torch's FlopCounterMode must not change what it counts.
    """
    return any(
        (part._forward_hooks or part._forward_pre_hooks or part._backward_hooks or part._backward_pre_hooks)
        for part in module.modules()
    )
