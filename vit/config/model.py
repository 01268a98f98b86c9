"""Settings of a run's model: a name or pretrained weights, and overrides of its architecture (`vit`, `resnet`)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any, TypeVar, get_type_hints

from vit.config.arguments import check_types
from vit.config.resnet import ResNetConfig
from vit.config.rules import check
from vit.config.vit import PositionResize, ViTConfig

Kind = TypeVar("Kind")


def _with_overrides(*architectures: type) -> Callable[[type[Kind]], type[Kind]]:
    """Make a class decorator that adds each field of the architectures as an optional one, None by default.

    Image and patch sizes may also be one number, the side of a square. This way names, types and descriptions are
    written once, in the architectures.
    """
    hints: dict[str, Any] = {}
    for architecture in architectures:
        for name, hint in get_type_hints(architecture).items():
            known = hints.get(name, hint)
            hints[name] = known if known == hint else known | hint
            if name in ("image_size", "patch_size"):
                hints[name] |= int

    def add(kind: type[Kind]) -> type[Kind]:
        for name, hint in hints.items():
            kind.__annotations__[name] = hint | None
            setattr(kind, name, None)
        return kind

    return add


@dataclass(frozen=True, kw_only=True)
@_with_overrides(ViTConfig, ResNetConfig)
class ModelConfig:
    """A model by name; every other architectural field overrides the named architecture's."""

    name: str | None = None
    """One of `vit.list_models()`; None: the architecture of `pretrained`."""
    pretrained: str | None = None
    """A run folder, a weights file or folder, `timm:NAME`, `torchvision:NAME`, `hf:NAME` or `package.file:function`."""
    pretrained_grid: tuple[int, int] | None = None
    """Patch grid (height, width) of the pretrained positions, if their number fits several."""
    new_head: bool = False
    """Replace the head if the pretrained weights have other classes than the data."""
    freeze_backbone: bool = False
    """Train the head only."""
    if TYPE_CHECKING:  # the decorator adds the other fields
        num_classes: int | None
        in_channels: int | None
        image_size: tuple[int, int] | None
        position_resize: PositionResize | None

        def __init__(
            self,
            *,
            name: str | None = None,
            pretrained: str | None = None,
            pretrained_grid: tuple[int, int] | None = None,
            new_head: bool = False,
            freeze_backbone: bool = False,
            **architecture: Any,
        ) -> None: ...

    def __post_init__(self) -> None:
        check_types("model", self)
        check(
            self.pretrained is not None or not (self.new_head or self.freeze_backbone),
            "model.new_head" if self.new_head else "model.freeze_backbone",
            True,
            "it has no effect without model.pretrained",
        )
        without_effect = self.pretrained is None and self.pretrained_grid is not None
        check(not without_effect, "model.pretrained_grid", self.pretrained_grid, "it has no effect without pretrained")


ARCHITECTURE = frozenset(item.name for kind in (ViTConfig, ResNetConfig) for item in fields(kind)) - {"num_classes"}
"""The fields of `ModelConfig` that a model's name decides where they are not given."""
