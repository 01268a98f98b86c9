"""Models of this package by name and with weights from elsewhere, for training on: `create_model`, `load_model`."""

from __future__ import annotations

from dataclasses import fields, replace
from pathlib import Path
from typing import Any

from vit.config import ModelConfig, ResNetConfig, ViTConfig, check
from vit.config.validation import make_settings
from vit.hub.opened import OpenedModel
from vit.hub.run_checkpoint import open_run
from vit.hub.sources import short_names, source_kind
from vit.hub.user_modules import open_function
from vit.libraries import NEVER_TRAINED, library_and_name, timm
from vit.models import Classifier, build_model, resolve
from vit.models.zoo import PLAIN, architecture_overrides, is_known, resolve_num_classes
from vit.runs import holds_checkpoints
from vit.weights.files import SUFFIXES
from vit.weights.loader import load_weights
from vit.weights.sources import Source, open_source
from vit.weights.untold import difference_untold


def create_model(name: str | None = None, *, pretrained: str | None = None, **options: Any) -> Classifier:
    """A model by its name in `list_models()`, as `create_model("vit_base_patch16_224", num_classes=10, image_size=64)`.

    The names of timm's plain Vision Transformers are understood too. `pretrained` is a run folder, a weights file, a
    folder of timm's or Hugging Face's, `timm:NAME`, `torchvision:NAME` or `hf:NAME`; without a name, the architecture
    is its own. `options` are the fields of `ModelConfig`. ValueError for an unknown name or option, for an option of
    another type and for weights that do not fit.
    """
    rule = "it says which weights, as 'timm:NAME' or a file"  # to a user of timm, True is those of the name
    check(not isinstance(pretrained, bool), "model.pretrained", pretrained, rule)
    check(pretrained != "", "model.pretrained", pretrained, rule)
    if pretrained is None and isinstance(name, str):
        place = _place_of_weights(name) or (name if holds_checkpoints(Path(name)) else "")
        check(not place, "model.name", name, f"it names weights; create_model(pretrained={place!r})")
    settings = {"name": name, "pretrained": pretrained, **options}
    return load_model(make_settings(ModelConfig, settings, "model")).model


def load_model(
    config: ModelConfig, num_classes: int | None = None, *, at_stated_size: bool = False
) -> OpenedModel[Classifier]:
    """The configured model with its pretrained weights, if any, frozen as configured. `num_classes` is the data's.

    `at_stated_size`: where neither a name nor a size is given, the model has the size at which the source of the
    weights prepares images, such as 224 for DINOv2, whose own is 518; its own where patches do not divide that.

    ValueError when the weights have other classes than the data and `model.new_head` is false.
    """
    if config.pretrained is not None:
        source = _read_source(config.pretrained)
        if at_stated_size and config.name is None and config.image_size is None:
            config = replace(config, image_size=_stated_size(source))
        loaded = load_source(config, source, num_classes)
        if config.freeze_backbone:
            heads = tuple(f"{name}." for name in loaded.model.head_names())
            for name, parameter in loaded.model.named_parameters():
                parameter.requires_grad_(name.startswith(heads))
        return loaded
    architecture = named_architecture(config, num_classes)
    return OpenedModel(
        name=str(config.name),
        source=str(config.name),
        model=build_model(architecture),
        provenance=NEVER_TRAINED,
        class_names=[],
        num_classes=architecture.num_classes,
    )


def _read_source(place: str) -> Source:
    """The tensors of a run, of another library, or of one of this package's models that a function returns."""
    kind = source_kind(place, "model.pretrained")
    rule = "it is an architecture, without weights; model.name takes it"
    check(kind != "architecture", "model.pretrained", place, rule)
    if kind == "run":
        opened: OpenedModel = open_run(place, "best", "auto")
    elif kind == "function":
        opened = open_function(place, None)
    else:
        return open_source(place)
    if not isinstance(opened.model, Classifier):
        rule = f"it is a {type(opened.model).__name__}, not a model of this package"
        raise ValueError(f"model.pretrained: {place!r} is not valid: {rule}")
    config = opened.model.config
    return Source(
        name=place,
        tensors=opened.model.state_dict(),
        config=config,
        provenance=opened.provenance,
        preprocessing=opened.stated_preprocessing,
        class_names=opened.class_names,
        grid=config.grid_size if isinstance(config, ViTConfig) else None,
        states_config=True,
    )


def _stated_size(source: Source) -> tuple[int, int] | None:
    """None where it is not stated, or is no size for the architecture."""
    if source.preprocessing is None or source.config is None:
        return None
    size = source.preprocessing.image_size
    patch = source.config.patch_size if isinstance(source.config, ViTConfig) else (1, 1)
    return None if any(side % step for side, step in zip(size, patch, strict=True)) else size


def load_source(
    config: ModelConfig, source: Source, num_classes: int | None, option: str = "model.name"
) -> OpenedModel[Classifier]:
    """Load the weights into our model of the named architecture, or of theirs changed by the fields that are set.

    `option` is that by which the architecture was named.
    """
    if config.name:
        classes = source.num_classes if num_classes is None and config.num_classes is None else num_classes
        architecture = named_architecture(config, classes, option)
    elif source.config:
        architecture = _changed(source.config, config, num_classes)
    else:
        raise ValueError(f"model.name: it is missing: {source.name} does not tell the architecture; {source.hint}")
    if isinstance(architecture, ViTConfig) and architecture.resizes_positions and config.position_resize is None:
        own = getattr(source.config, "position_resize", architecture.position_resize)
        usual = None if source.own_config else source.layout
        resize = own if usual is None else usual.resize_of(architecture, source.tensors)
        architecture = replace(architecture, position_resize=resize)
    model = build_model(architecture)
    grid = config.pretrained_grid or source.grid
    new_head, layout = config.new_head, source.layout
    try:
        report = load_weights(model, source.tensors, source.name, source_grid=grid, new_head=new_head, layout=layout)
    except ValueError as error:
        like = source.find_like() if config.name == PLAIN else None  # which says nothing of the weights
        if like is None:
            raise
        mark = "" if str(error).endswith("?") else ";"
        raise ValueError(f"{error}{mark} its shapes are those of {like}: add --model.name {like}") from error
    _check_untold(config, source, architecture, option)
    report.selection = source.note
    return OpenedModel(
        name=short_names([source.name])[0],
        source=source.name,
        model=model,
        provenance=source.provenance,
        stated_preprocessing=source.preprocessing,
        unsupported_preprocessing=source.unsupported_preprocessing,
        class_names=source.class_names or [],
        num_classes=architecture.num_classes,
        report=report,
    )


def _check_untold(config: ModelConfig, source: Source, architecture: ViTConfig | ResNetConfig, option: str) -> None:
    """ValueError where the named architecture differs from the source's in a field that no tensor tells.

    A field that the user set stands. Tensors are loaded before, so that what they tell is equal here.
    """
    own = source.config
    if not (source.states_config and isinstance(own, ViTConfig) and isinstance(architecture, ViTConfig)):
        return
    for name, (theirs, ours) in difference_untold(own, architecture).items():
        advice = f"leave {option} out"
        if option == "model.name":
            advice = f"leave the name {config.name} out, or set model.{name}"
        rule = f"{source.name} has {theirs!r}, which no tensor tells; {advice}"
        check(getattr(config, name) is not None, f"model.{name}", ours, rule)


def _place_of_weights(name: str) -> str:
    """The `model.pretrained` that a name of pretrained weights stands for; empty for any other name."""
    if library_and_name(name)[0]:
        return name
    is_file = Path(name).suffix in SUFFIXES
    return f"timm:{name}" if not is_file and timm.names_weights(name) else ""


def named_architecture(
    config: ModelConfig, num_classes: int | None, option: str = "model.name"
) -> ViTConfig | ResNetConfig:
    """The architecture of a name of ours or, where we have none of that name, of timm's.

    ValueError for a name of weights: of its architecture alone, the weights would be random.
    """
    place = _place_of_weights(config.name or "")
    advice = f"write --model.pretrained {place}"
    if config.pretrained:
        tagged = place.startswith("timm:")
        advice = f"name its architecture alone, {place[5:].partition('.')[0]}" if tagged else "leave it out"
    check(not place, option, config.name, f"it names pretrained weights; {advice}")
    if config.name is None or is_known(config.name) or not timm.is_vit(config.name):
        return resolve(config, num_classes)
    return _changed(timm.config_by_name(config.name), config, num_classes)


def _changed(
    source: ViTConfig | ResNetConfig, config: ModelConfig, num_classes: int | None
) -> ViTConfig | ResNetConfig:
    overrides = architecture_overrides(config)
    known = {item.name for item in fields(source)}
    for name, value in overrides.items():
        rule = f"it has no effect on the model {config.name or config.pretrained}"
        check(name in known, f"model.{name}", value, rule)
    return replace(source, **(overrides | resolve_num_classes(config.num_classes, num_classes)))
