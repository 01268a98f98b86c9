"""`open_model`: a model from anywhere, with all that is known of it."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import torch
from torch import nn

from vit.config import ModelConfig, Preprocessing, check_arguments
from vit.config.rules import check, check_seed, nearest
from vit.hub.opened import OpenedModel
from vit.hub.preprocessing import with_preprocessing
from vit.hub.pretrained import load_source, named_architecture
from vit.hub.run_checkpoint import open_run
from vit.hub.sources import option_scopes, short_names, source_kind
from vit.hub.user_modules import count_classes, open_function, open_module
from vit.libraries import NEVER_TRAINED, RANDOM, UnsupportedArchitecture
from vit.models import Classifier, build_model
from vit.weights.sources import library_of, open_library_model, open_source

Implementation = Literal["auto", "ours", "theirs"]
RANDOM_CLASSES = 1000
"""Classes of a head without trained weights, by default."""


@check_arguments
def open_model(
    source: str | Path | nn.Module,
    *,
    select: Literal["best", "last"] = "best",
    weights: Literal["auto", "raw", "ema"] = "auto",
    architecture: str | None = None,
    num_classes: int | None = None,
    image_size: int | tuple[int, int] | None = None,
    preprocessing: Preprocessing | None = None,
    mean: Sequence[float] | None = None,
    std: Sequence[float] | None = None,
    class_names: Sequence[str] = (),
    random_weights: bool = False,
    seed: int = 0,
    implementation: Implementation = "auto",
    dtype: Literal["auto", "int8"] = "auto",
) -> OpenedModel:
    """A model from anywhere, in evaluation mode on the CPU.

    `source`: a run or checkpoint folder; a weights file or folder of any layout; `timm:NAME`, `torchvision:NAME`,
    `hf:NAME_OR_FOLDER`; an architecture's name (random weights); `package.file:function`, which is called and returns
    a module or (module, preprocessing[, class_names]); or a module.

    `select` (best, last) and `weights` (auto, raw, ema) are of runs, `architecture` of files that do not tell it,
    `random_weights` of names without weights at hand, `num_classes` and `seed` of random weights, `class_names` (in the
    head's order) of heads that name none. `preprocessing`, or `mean` and `std`, is how images are prepared where the
    source does not say it, or otherwise than it says; `image_size` replaces the size.
    `implementation`: `ours` computes, `theirs` (the library's own), or auto: ours where it computes the same, else
    theirs. `dtype`: `int8` multiplies bytes in the blocks of a model that we compute (`for_inference`), on the CPU.
    ValueError, in one line, for what is not there and for an option without effect.
    """
    options = dict(locals())  # as they were given
    check_seed("seed", seed)
    place = source if isinstance(source, nn.Module) else str(source)
    kind = source_kind(place)
    scopes = option_scopes(options)
    for option in _given(options):
        kinds, called = scopes.get(option, ((kind,), ""))
        if kind not in kinds:
            raise ValueError(f"{option}: it has no effect on {str(source)!r}, only on {called}")
    if isinstance(place, nn.Module):
        opened = open_module(place, type(place).__name__, preprocessing)
    elif kind == "run":
        opened = open_run(place, select, weights)
    elif kind == "function":
        opened = open_function(place, preprocessing)
    else:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            if kind == "architecture":
                opened = _open_architecture(place, num_classes)
            else:
                opened = _open_weights(place, architecture, implementation, num_classes, is_random=random_weights)
    if class_names:
        opened = _with_class_names(opened, list(class_names), counted_later=kind in ("module", "function"))
    opened = with_preprocessing(opened, preprocessing, mean, std, image_size)
    opened.model.eval()
    if dtype == "int8":
        opened = replace(opened, name=f"{opened.name} · int8", dtype=dtype)
        opened.check_dtype()
    return replace(opened, num_classes=count_classes(opened)) if kind in ("module", "function") else opened


def is_opened_by_default(opened: OpenedModel, source: str | Path) -> bool:
    """Whether `open_model(source)` without options has these weights and this preprocessing."""
    default = open_model(str(source))
    return (default.identity, default.stated_preprocessing) == (opened.identity, opened.stated_preprocessing)


@check_arguments
def open_models(sources: Sequence[str], **options: Any) -> list[OpenedModel]:
    """Open several models in order. Each gets the options that apply to it, and a unique name.

    The options are those of `open_model`; `image_size` and `dtype` may be lists of one value for each model.

    ValueError, before anything is built, for an invalid source, an unknown option, and an option that applies to none
    of the models (except num_classes).
    """
    known = inspect.signature(open_model).parameters
    for option in options.keys() - known:
        raise ValueError(f"{option}: it is no option of open_model; {nearest(option, list(known))}")
    each = {name: _for_each(name, options.pop(name, None), len(sources)) for name in ("image_size", "dtype")}
    check_options(sources, options)
    kinds = [source_kind(source) for source in sources]
    given, scopes = _given(options), option_scopes(options)
    opened = []
    for place, (source, kind, name) in enumerate(zip(sources, kinds, short_names(sources), strict=True)):
        own = {key: value for key, value in given.items() if key not in scopes or kind in scopes[key][0]}
        own |= {option: values[place] for option, values in each.items() if values[place] is not None}
        model = open_model(source, **own)
        marks = [RANDOM] * model.provenance.is_random + [model.dtype] * (model.dtype != "auto")
        opened.append(replace(model, name=" · ".join([name, *marks])))
    return opened


def _for_each(name: str, value: Any, count: int) -> list[Any]:
    """One value for each model. ValueError for another number of them."""
    values = value if isinstance(value, list) else [value]
    check(
        len(values) in (1, count),
        name,
        values,
        f"give one {name.removeprefix('image_')}, or one for each of the {count} models",
    )
    return values * count if len(values) == 1 else values


def check_options(sources: Sequence[str], options: Mapping[str, Any]) -> None:
    """ValueError for an invalid source, and for an option that applies to none of them (except num_classes)."""
    kinds, scopes = [source_kind(source) for source in sources], option_scopes(options)
    for name, value in _given(options).items():
        if name in scopes and name != "num_classes" and not any(kind in scopes[name][0] for kind in kinds):
            raise ValueError(f"--{name}: {value!r} is not valid: it has no effect on {', '.join(sources)}")


def _given(options: Mapping[str, Any]) -> dict[str, Any]:
    """The options of `open_model` that are not at their defaults."""
    defaults = {name: each.default for name, each in inspect.signature(open_model).parameters.items()}
    return {
        name: value
        for name, value in options.items()
        if value is not defaults[name] and (defaults[name] is None or value != defaults[name])
    }


def _open_architecture(name: str, num_classes: int | None) -> OpenedModel[Classifier]:
    config = named_architecture(ModelConfig(name=name), RANDOM_CLASSES if num_classes is None else num_classes)
    return OpenedModel(
        name=f"{name} · {RANDOM}",
        source=name,
        model=build_model(config),
        provenance=NEVER_TRAINED,
        stated_preprocessing=Preprocessing(image_size=config.image_size),
        class_names=[],
        num_classes=config.num_classes,
    )


def _open_weights(
    place: str, architecture: str | None, implementation: Implementation, num_classes: int | None, *, is_random: bool
) -> OpenedModel:
    """Weights of a file, a folder or a library: in our model where it computes the same, else in the library's own."""
    classes = RANDOM_CLASSES if is_random and num_classes is None else num_classes
    name = f"{short_names([place])[0]} · {RANDOM}" if is_random else short_names([place])[0]
    reason = "as asked"
    if implementation != "theirs":
        try:
            source = open_source(place, pretrained=not is_random, num_classes=classes)
            if source.config is None and architecture is None:
                raise ValueError(f"architecture: it is missing: {source.name} does not tell it; {source.hint}")
            opened = load_source(ModelConfig(name=architecture, pretrained=place), source, None, "architecture")
            return replace(opened, name=name)
        except UnsupportedArchitecture as error:
            if implementation == "ours" or library_of(place) is None:
                raise
            reason = str(error).removeprefix("model.pretrained: ")
    theirs = open_library_model(place, pretrained=not is_random, num_classes=classes)
    return OpenedModel(
        name=name,
        source=place,
        model=theirs.model,
        provenance=theirs.provenance,
        stated_preprocessing=theirs.preprocessing,
        unsupported_preprocessing=theirs.unsupported_preprocessing,
        class_names=theirs.class_names,
        num_classes=theirs.num_classes,
        implementation=theirs.library,
        reason=reason,
    )


def _with_class_names(opened: OpenedModel, names: list[str], *, counted_later: bool) -> OpenedModel:
    """`counted_later`: how many classes the head has is not known yet."""
    has_head = opened.num_classes > 0 or counted_later
    check(has_head, "class_names", names[0], f"{opened.source} has no head")
    rule = f"{opened.source} names its classes itself"
    check(opened.class_names in ([], names), "class_names", names[0], rule)
    count = opened.num_classes or len(names)
    check(count == len(names), "class_names", len(names), f"{opened.source} has {count} classes")
    twice = [name for name in names if names.count(name) > 1]
    check(not twice, "class_names", twice[:1], "two classes have the same name")
    return replace(opened, class_names=names)
