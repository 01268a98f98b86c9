"""A ViT's complete architecture."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Literal

from vit.config.arguments import check_types
from vit.config.rules import check, check_finite, check_positive, check_rate
from vit.config.sizes import MOST_CHANNELS, MOST_LAYERS, MOST_PIXELS, check_most

Grid = tuple[int, int]
"""Rows and columns of patches."""
Pooling = Literal["cls", "gap", "map", "query", "cls_gap"]
PositionKind = Literal["learned_1d", "learned_2d", "sincos_2d", "relative", "rope", "learned_1d_rope", "none"]
PositionResize = Literal[
    "bicubic_antialiased",
    "bicubic",
    "bicubic_offset",
    "bicubic_corners",
    "bicubic_square",
    "bilinear",
    "bilinear_antialiased",
    "bilinear_corners",
    "bilinear_square",
    "bilinear_corners_square",
    "geometric",
]
LEARNED_POSITIONS = ("learned_1d", "learned_2d", "learned_1d_rope")
ROTARY_POSITIONS = ("rope", "learned_1d_rope")
FeedForwardKind = Literal["gelu", "gelu_tanh", "quick_gelu", "swiglu"]
FinalNorm = Literal["tokens", "pooled", "none"]
NormKind = Literal["layer", "rms"]
StemKind = Literal["patch", "conv", "resnet"]
Initialization = Literal["xavier", "normal", "mimetic"]
Backend = Literal["auto", "reference", "matmul", "sdpa", "flex", "triton"]
_MOST = {
    **dict.fromkeys(("image_size", "patch_size", "rope_grid"), MOST_PIXELS),
    **dict.fromkeys(
        ("width", "representation_width", "num_registers", "in_channels", "swiglu_multiple"), MOST_CHANNELS
    ),
    **dict.fromkeys(("mlp_ratio", "pool_mlp_ratio"), MOST_CHANNELS),
    "depth": MOST_LAYERS,
    "num_classes": 10**8,
}


@dataclass(frozen=True, kw_only=True)
class ViTConfig:
    """Complete architecture of a Vision Transformer. Sizes are (height, width) in pixels."""

    image_size: tuple[int, int] = (224, 224)
    """Height and width of the images in pixels, or one number for both."""
    patch_size: tuple[int, int] = (16, 16)
    """Height and width of a patch in pixels, or one number for both; it divides the image."""
    num_classes: int = 1000
    """Outputs of the head; 0: no head, and `forward` returns the pooled features."""
    in_channels: int = 3
    """Colour channels of the images; training reads 3."""
    width: int = 768
    """Width of the tokens."""
    depth: int = 12
    """Number of blocks."""
    num_heads: int = 12
    """Attention heads of a block; it divides the width."""
    mlp_ratio: float = 4.0
    """Hidden width of the feed-forward layers over the width of the tokens."""
    pooling: Pooling = "cls"
    """How the tokens become the head's input. `cls`: the class token; `gap`: the mean of the patches; `map`: a learned
    query attends to the patches, then a feed-forward layer (SigLIP); `query`: without that layer, and the query is not
    projected (AIMv2); `cls_gap`: class token and mean of the patches concatenated, twice the width (DINOv2's linear
    head).
    """
    pool_prefix: bool = False
    """The mean or the pooling by attention reads the prefix tokens too (Perception Encoder)."""
    pool_heads: int | None = None
    """Heads of the pooling by attention; None: as many as in the blocks."""
    pool_mlp_ratio: float | None = None
    """Hidden width of `map`'s feed-forward layer over the width; None: mlp_ratio."""
    class_token: bool = True
    """A learned token before the patches, whose output the pooling `cls` reads."""
    distillation_token: bool = False
    """A second learned token, which learns from a teacher (DeiT)."""
    distillation_head: bool = True
    """Give the distillation token its own head; false: only the class token's head is used."""
    num_registers: int = 0
    """Learned tokens that are read by no head (registers: Darcet et al. 2024)."""
    positions: PositionKind = "learned_1d"
    """The position embedding of the patches. `learned_1d`: a learned vector for each place (ViT); `learned_2d`: one for
    each row and one for each column; `sincos_2d`: fixed sines and cosines; `relative`: learned biases of the scores
    (BEiT); `rope`: rotated queries and keys; `learned_1d_rope`: both (EVA-02); `none`: not at all.
    """
    position_resize: PositionResize = "bicubic_antialiased"
    """Resizing of learned positions to another grid. The default is timm's; `bicubic`: without antialiasing
    (transformers); `bicubic_offset`: by 0.1 patches too far (DINO, DINOv2); `bicubic_corners`: corner to corner
    (torchvision); `bilinear_corners` (Google); `bilinear_antialiased` (SigLIP 2). `…_square`: a square grid of the
    longer side, cropped at its ends (NaFlex: bicubic, antialiased; RADIO: bilinear, C-RADIOv3's corner to corner).
    Relative biases have `bilinear` (transformers' BEiT) and `geometric` (timm's BEiT). Pretrained weights bring their
    library's way.
    """
    relative_tables: Literal["blocks", "shared", "both"] = "blocks"
    """Relative positions: a table of biases for every block, one for all blocks, or the sum of both (Data2Vec)."""
    relative_prefix: bool = False
    """Relative positions: learn biases from, to and between prefix tokens too (BEiT); otherwise they are 0."""
    rope_temperature: float = 100.0
    """Rotary positions: the slowest frequency is about 1 / rope_temperature of the fastest."""
    rope_coordinates: Literal["patch", "centred"] = "patch"
    """Rotary positions: the patch's row and column, or from -2π to 2π across any image (DINOv3)."""
    rope_grid: tuple[int, int] | None = None
    """Rotary positions: rows and columns are scaled to those of a grid of this size (EVA-02); None: not scaled."""
    rope_offset: float = 0.0
    """Rotary positions: added to rows and columns; prefix tokens stand at 0."""
    rope_columns_first: bool = False
    """Rotary positions: the first half of the frequencies belongs to the columns, not to the rows (RoPE-ViT)."""
    rope_mixed: bool = False
    """Rotary positions: every head of every block learns its frequencies along both axes (Heo et al. 2024)."""
    feedforward: FeedForwardKind = "gelu"
    """Activation of the feed-forward layers; `quick_gelu` is CLIP's, `swiglu` a gated layer (DINOv2-g, EVA-02)."""
    swiglu_multiple: int = 8
    """SwiGLU's hidden width, 2/3 of width · mlp_ratio, is rounded up to a multiple of it."""
    feedforward_norm: bool = False
    """A LayerNorm on SwiGLU's hidden features (EVA-02)."""
    attention_norm: bool = False
    """A LayerNorm between attention and its output's projection (EVA-02's CLIP models)."""
    qk_norm: bool = False
    """A norm on queries and keys of every head (ViT-22B)."""
    qkv_bias: bool = True
    """Biases of queries, keys and values."""
    proj_bias: bool = True
    """Biases of the attention's output and of the feed-forward layers; false in AIMv2."""
    norm: NormKind = "layer"
    """`rms`: RMSNorm in place of every LayerNorm (AIMv2: Fini et al. 2024)."""
    embedding_norm: bool = False
    """A norm on the patches before positions are added (AIMv2)."""
    pre_norm: bool = False
    """A LayerNorm before the first block (CLIP)."""
    final_norm: FinalNorm = "tokens"
    """A norm on all tokens before pooling, on the pooled vector (timm's `fc_norm`), or none."""
    positions_on_prefix: bool = True
    """Learn positions of the class and distillation tokens (ViT) or not (DeiT-III)."""
    positions_on_registers: bool = False
    """Learn positions of the registers too (SoViT-150m with registers)."""
    representation_width: int | None = None
    """A layer of this width with tanh between pooling and head (ViT's `pre_logits`, BERT's pooler); None: none."""
    head_bias: bool = True
    """false: the head is a plain projection (CLIP's image embedding)."""
    layer_scale: float | None = None
    """Initial value of LayerScale; None: none."""
    norm_eps: float = 1e-6
    """Added to the variance in every norm."""
    stem: StemKind = "patch"
    """How patches are embedded. `patch`: one linear layer; `conv`: two small convolutions whose windows overlap;
    `resnet`: the first stage of a ResNet-18 (ViT's hybrid).
    """
    stochastic_depth_rate: float = 0.0
    """Rate of the last block, reached linearly with depth."""
    dropout_rate: float = 0.0
    """Dropout of the embedded tokens and in the feed-forward layers and the attention's output."""
    attention_dropout_rate: float = 0.0
    """Dropout of attention's weights."""
    patch_dropout_rate: float = 0.0
    """Fraction of the patches that are left out of a training image (Li et al. 2023)."""
    init: Initialization = "xavier"
    """Initial weights. `xavier`: fan-averaged, for small widths; `normal`: truncated, std 0.02, as in most published
    ViTs; `mimetic`: `xavier`, but for attention, whose matrices begin as those of trained ViTs look (Trockman and
    Kolter 2023).
    """
    backend: Backend = "auto"
    """The code that computes attention; `auto`: the fastest that this machine and this input allow."""

    def __post_init__(self) -> None:
        check_types("model", self)
        check_finite("model", self)
        check_most("model", self, _MOST)
        for name in ("in_channels", "width", "depth", "num_heads", "mlp_ratio", "swiglu_multiple"):
            check_positive(f"model.{name}", getattr(self, name))
        check(self.num_classes >= 0, "model.num_classes", self.num_classes, "it must be at least 0")
        rule = f"model.width ({self.width}) times it must be at least 1"
        check(round(self.width * self.mlp_ratio) >= 1, "model.mlp_ratio", self.mlp_ratio, rule)
        check(self.num_registers >= 0, "model.num_registers", self.num_registers, "it must be at least 0")
        check_heads(self.width, self.num_heads)
        _check_patches(self.image_size, self.patch_size)
        for name in ("stochastic_depth_rate", "dropout_rate", "attention_dropout_rate", "patch_dropout_rate"):
            check_rate(f"model.{name}", getattr(self, name))
        for name in ("layer_scale", "norm_eps", "representation_width", "pool_heads", "pool_mlp_ratio"):
            check_positive(f"model.{name}", getattr(self, name))
        gated = self.feedforward == "swiglu"
        for name, plain in (
            ("swiglu_multiple", self.swiglu_multiple == 8),
            ("feedforward_norm", not self.feedforward_norm),
        ):
            rule = "it has an effect only with model.feedforward 'swiglu'"
            check(plain or gated, f"model.{name}", getattr(self, name), rule)
        self._check_tokens()
        self._check_pooling()
        self._check_positions()
        if self.stem == "conv":
            fits = all(side % 2 == 0 for side in self.patch_size)
            rule = "the convolutional stem's two strides multiply to the patch: use an even one, or model.stem 'patch'"
            check(fits, "model.patch_size", self.patch_size, rule)
            rule = "the convolutional stem's first layer has half as many channels: use an even width"
            check(self.width % 2 == 0, "model.width", self.width, rule)
        if self.stem == "resnet":
            rule = "the ResNet stem halves the image twice before patches are cut: use a multiple of 4, at least 8"
            fits = min(self.patch_size) >= 8 and all(side % 4 == 0 for side in self.patch_size)
            check(fits, "model.patch_size", self.patch_size, rule)

    def _check_tokens(self) -> None:
        check(
            self.class_token or self.pooling not in ("cls", "cls_gap"),
            "model.class_token",
            self.class_token,
            f"model.pooling {self.pooling!r} reads the class token; set it to true or choose 'gap' or 'map'",
        )
        check(
            not self.distillation_token or self.pooling == "cls",
            "model.distillation_token",
            True,
            "its head is averaged with the class token's, so model.pooling must be 'cls'",
        )
        check(
            self.distillation_head or self.distillation_token,
            "model.distillation_head",
            False,
            "it has an effect only with model.distillation_token",
        )
        check(
            self.representation_width is None or not (self.distillation_token and self.distillation_head),
            "model.representation_width",
            self.representation_width,
            "two heads read the tokens directly; set model.distillation_head to false",
        )
        both = self.pooling == "cls_gap" and self.final_norm == "pooled"
        check(not both, "model.final_norm", "pooled", "model.pooling 'cls_gap' needs 'tokens'")

    def _check_pooling(self) -> None:
        for name, poolings, given in (
            ("pool_prefix", ("gap", "map", "query"), self.pool_prefix),
            ("pool_heads", ("map", "query"), self.pool_heads is not None),
            ("pool_mlp_ratio", ("map",), self.pool_mlp_ratio is not None),
        ):
            rule = f"it has an effect only with model.pooling {' or '.join(map(repr, poolings))}"
            check(not given or self.pooling in poolings, f"model.{name}", getattr(self, name), rule)
        ratio, rule = self.pool_mlp_ratio, "the hidden layer is round(width · pool_mlp_ratio) wide, at least 1"
        check(ratio is None or round(self.width * ratio) >= 1, "model.pool_mlp_ratio", ratio, rule)
        rule = "the model has no prefix tokens (class token, registers)"
        check(not self.pool_prefix or self.num_prefix_tokens > 0, "model.pool_prefix", True, rule)
        check_heads(self.width, self.pool_heads or self.num_heads, "model.pool_heads")

    def _check_positions(self) -> None:
        learned = self.positions in LEARNED_POSITIONS
        placed_before = self.positions_on_prefix or not self.class_token
        check(
            not self.positions_on_registers or (learned and self.num_registers > 0 and placed_before),
            "model.positions_on_registers",
            True,
            "it needs model.num_registers, learned model.positions, and model.positions_on_prefix with a class token",
        )
        rule = f"it has no effect on model.positions {self.positions!r}"
        is_default = self.position_resize == ViTConfig.position_resize
        check(is_default or self.resizes_positions, "model.position_resize", self.position_resize, rule)
        relative = self.positions == "relative"
        rule = "only model.positions 'relative' are resized so"
        check(relative or self.position_resize != "geometric", "model.position_resize", self.position_resize, rule)
        rule = "it has no effect without model.positions 'relative'"
        check(relative or self.relative_tables == "blocks", "model.relative_tables", self.relative_tables, rule)
        rule = "it needs model.positions 'relative' and a prefix token"
        placed = relative and self.num_prefix_tokens > 0
        check(placed or not self.relative_prefix, "model.relative_prefix", self.relative_prefix, rule)
        per_head = (4, self.width // self.num_heads, "model.width / model.num_heads")
        divisor, width, field = {
            "sincos_2d": (4, self.width, "model.width"),
            "learned_2d": (2, self.width, "model.width"),
            **dict.fromkeys(ROTARY_POSITIONS, per_head),
        }.get(self.positions, (1, self.width, "model.width"))
        check(width % divisor == 0, field, width, f"model.positions {self.positions!r} needs a multiple of {divisor}")
        self._check_rope()

    def _check_rope(self) -> None:
        check_positive("model.rope_temperature", self.rope_temperature)
        check(min(self.rope_grid or (1,)) > 0, "model.rope_grid", self.rope_grid, "it must be above 0")
        given = [
            each.name for each in fields(self) if each.name[:5] == "rope_" and getattr(self, each.name) != each.default
        ]
        for name in given:
            rule = f"it has no effect without rotary model.positions ({', '.join(ROTARY_POSITIONS)})"
            check(self.positions in ROTARY_POSITIONS, f"model.{name}", getattr(self, name), rule)
            placed = self.rope_coordinates == "patch" or name not in ("rope_grid", "rope_offset")
            rule = "it has no effect with model.rope_coordinates 'centred'"
            check(placed, f"model.{name}", getattr(self, name), rule)

    @property
    def resizes_positions(self) -> bool:
        """Positions are learned on one grid, and resized to others."""
        return self.positions in (*LEARNED_POSITIONS, "relative")

    @property
    def grid_size(self) -> Grid:
        """Number of patches along height and width."""
        return self.image_size[0] // self.patch_size[0], self.image_size[1] // self.patch_size[1]

    @property
    def pooled_width(self) -> int:
        """Twice the tokens' width where the class token stands beside the patches' mean."""
        return 2 * self.width if self.pooling == "cls_gap" else self.width

    @property
    def head_width(self) -> int:
        """Width of the head's input."""
        return self.representation_width or self.pooled_width

    @property
    def num_prefix_tokens(self) -> int:
        return int(self.class_token) + int(self.distillation_token) + self.num_registers

    @property
    def num_placed_tokens(self) -> int:
        """Number of leading prefix tokens that have a position if positions are learned."""
        placed = int(self.class_token) + int(self.distillation_token) if self.positions_on_prefix else 0
        return placed + (self.num_registers if self.positions_on_registers else 0)


def check_heads(width: int, num_heads: int, name: str = "model.num_heads") -> None:
    if width % num_heads == 0 and num_heads <= width:
        return
    divisors = [n for n in range(1, width + 1) if width % n == 0]
    best = min(divisors, key=lambda n: abs(n - num_heads))
    rule = f"it must divide model.width ({width}); the nearest that does is {best}"
    raise ValueError(f"{name}: {num_heads} is not valid: {rule}")


def _check_patches(image_size: tuple[int, int], patch_size: tuple[int, int]) -> None:
    for side, image, patch in zip(("height", "width"), image_size, patch_size, strict=True):
        check(patch > 0, "model.patch_size", patch_size, "it must be above 0")
        check(image > 0, "model.image_size", image_size, "it must be above 0")
        below, above = image // patch * patch, (image // patch + 1) * patch
        choices = f"sizes are {below} or {above}" if below else f"size is {above}"
        rule = f"the patch {side} {patch} must divide the image {side}; the nearest image {choices}"
        check(image > 0 and image % patch == 0, "model.image_size", image_size, rule)
