"""open_clip (github.com/mlfoundations/open_clip): its own image tower, and the architectures that it shares with us."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial

from torch import Tensor, nn

from vit.config import ViTConfig
from vit.layers.feedforward import ACTIVATIONS
from vit.libraries import NoCounterpart

_SAME = (
    *("pooling", "class_token", "distillation_token", "num_registers", "positions", "qk_norm", "qkv_bias", "pre_norm"),
    *("final_norm", "positions_on_prefix", "representation_width", "layer_scale", "stem"),
    *("proj_bias", "norm", "embedding_norm"),
)
"""Fields that have the same value in all of open_clip's plain towers."""


def open_clip_forward(config: ViTConfig, tensors: Mapping[str, Tensor]) -> Callable[[Tensor], Tensor]:
    """Build open_clip's own image tower with these tensors. ValueError for an architecture that it does not have."""
    from open_clip.transformer import LayerNorm, VisionTransformer

    _check_expressible(config)
    model = VisionTransformer(
        image_size=config.image_size[0],
        patch_size=config.patch_size[0],
        width=config.width,
        layers=config.depth,
        heads=config.num_heads,
        mlp_ratio=config.mlp_ratio,
        output_dim=config.num_classes or config.width,
        act_layer=partial(_Activation, config.feedforward),
        norm_layer=partial(LayerNorm, eps=config.norm_eps),
    )
    if config.num_classes == 0:
        model.proj = None
    model.load_state_dict({name.removeprefix("visual."): tensor for name, tensor in tensors.items()})
    return model.eval()


class _Activation(nn.Module):
    """An activation of ours, with the constructor that open_clip expects."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.activation = ACTIVATIONS[kind]

    def forward(self, x: Tensor) -> Tensor:
        return self.activation(x)


def _check_expressible(config: ViTConfig) -> None:
    clip = ViTConfig(pre_norm=True)
    known = {field: (getattr(config, field) == getattr(clip, field), repr(getattr(clip, field))) for field in _SAME}
    known["feedforward"] = (config.feedforward in ACTIVATIONS, "no gates")
    no_bias = not config.head_bias or config.num_classes == 0
    known["head_bias"] = (no_bias, "a projection without a bias for a head")
    for field, (met, what) in known.items():
        if not met:
            found = getattr(config, field)
            raise NoCounterpart(f"--to: model.{field}: {found!r} is not valid: open_clip has {what}")
