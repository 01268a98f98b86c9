"""The user's own modules: given as they are, or returned by a named function."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path

import torch
from torch import Tensor, nn

from vit.config import Preprocessing, check
from vit.hub.opened import OpenedModel
from vit.libraries import Provenance


def open_function(source: str, preprocessing: Preprocessing | None) -> OpenedModel:
    """Call `package.file:function` and open the module it returns; files of the current directory can be imported."""
    path, _, function = source.partition(":")
    here = str(Path.cwd())
    sys.path.insert(0, here)
    try:
        build = getattr(import_module(path), function)
    except (ImportError, AttributeError) as error:
        raise ValueError(f"model: {source!r} is not valid: {error}") from error
    finally:
        sys.path.remove(here)
    check(callable(build), "model", source, f"{function} is no function")
    try:
        inspect.signature(build).bind()
    except (TypeError, ValueError) as error:  # ValueError: some built-in functions have no signature
        raise ValueError(
            f"model: {source!r} is not valid: its function is called without arguments ({error})"
        ) from error
    sys.path.insert(0, here)  # for imports inside the function
    try:
        built = build()  # an error in the user's own code keeps its traceback
    finally:
        sys.path.remove(here)
    returned = built if isinstance(built, tuple) else (built,)
    model, stated, names = (*returned, None, None)[:3]
    rule = "its function must return a torch.nn.Module, or (module, preprocessing[, class_names])"
    check(isinstance(model, nn.Module) and isinstance(stated, Preprocessing | None), "model", source, rule)
    return open_module(model, source, preprocessing or stated, names or ())


def open_module(
    model: nn.Module, source: str, preprocessing: Preprocessing | None, class_names: Sequence[str] = ()
) -> OpenedModel:
    return OpenedModel(
        name=source.rpartition(":")[2],
        source=source,
        model=model,
        provenance=Provenance("the user's module"),
        stated_preprocessing=preprocessing,
        class_names=list(class_names),
        num_classes=len(class_names),
        implementation="its own code",
    )


def count_classes(opened: OpenedModel) -> int:
    """Columns of the logits for a black image. ValueError where they are no `b k`, or not as many as class names."""
    with torch.inference_mode():
        try:
            logits = opened.model(torch.zeros(1, 3, *opened.preprocessing.image_size))
        except (RuntimeError, TypeError, ValueError, LookupError, AssertionError) as error:
            reason = " ".join(str(error).split())[:200] or type(error).__name__
            height, width = opened.preprocessing.image_size
            image = f"an image of {height}×{width} pixels in float32 on the CPU"
            raise ValueError(f"model: {opened.source!r} fails on {image} ({reason})") from error
    shape = tuple(logits.shape) if isinstance(logits, Tensor) else type(logits).__name__
    fits = isinstance(logits, Tensor) and logits.dim() == 2 and len(opened.class_names) in (0, logits.shape[1])
    named = f" of {len(opened.class_names)} classes" if opened.class_names else ""
    check(fits, "model", opened.source, f"it must return one row of logits{named} per image, and gave {shape}")
    return int(logits.shape[1])
