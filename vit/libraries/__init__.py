"""Facts about other libraries' models, one module per library.

Names, the corresponding architectures of this package, preprocessing, building the library's own model, and training
data. A library is imported only when one of its models is requested.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import nn

from vit.config import Preprocessing

LIBRARIES = ("timm", "torchvision", "hf")
"""Prefixes of a model's name."""
_ALSO = {"hf-hub": "hf"}
"""Other prefixes of the same models, which timm uses."""
RANDOM = "RANDOM"
"""`Provenance.weights` of a model that was never trained."""
NOT_STATED = "not stated"
"""Stands for whatever a source does not say of its weights; every text about provenance has these words."""


CANNOT_BUILD = (
    *(ArithmeticError, AssertionError, AttributeError, ImportError, LookupError, NotImplementedError),
    *(OSError, RuntimeError, TypeError, ValueError),
)
"""Errors that libraries raise for a configuration that none of their models has."""


class NoCounterpart(ValueError):
    """A library has no model of this architecture, or is not installed; the message says which."""


class UnsupportedArchitecture(ValueError):
    """A model that this package does not compute and its own library does."""


@dataclass(frozen=True)
class Provenance:
    """Where a model's weights come from."""

    weights: str
    """`run, step 567, average`, `timm`, `torchvision`, `hf`, a file's name, or `RANDOM`."""
    data: tuple[str, ...] = (NOT_STATED,)
    """Training data sets, in order; empty: none."""
    recipe: str = NOT_STATED
    distillation: str = NOT_STATED
    """`none`, or the teacher."""
    started_from: str = NOT_STATED
    """The weights before training on the last data set, or `random weights`."""
    epochs: str = NOT_STATED
    """Length of the whole training on the last data set."""
    images_seen: str = NOT_STATED
    """In it, until these weights."""
    augmentation: str = NOT_STATED
    precision: str = NOT_STATED
    """Number format of training."""

    @property
    def is_random(self) -> bool:
        return self.weights == RANDOM


NEVER_TRAINED = Provenance(RANDOM, (), *["none"] * 7)


@dataclass(frozen=True, eq=False)
class LibraryModel:
    """A library's own model: images `b 3 H W` to logits `b k`, or to features without a head."""

    model: nn.Module
    preprocessing: Preprocessing | None
    class_names: list[str]
    """Empty where the library has no names."""
    num_classes: int
    provenance: Provenance
    library: str
    """The package whose code computes it."""
    unsupported_preprocessing: str = ""
    """Why the preprocessing that it states is not supported, so that there is none here."""


def library_and_name(source: str) -> tuple[str, str]:
    """Both parts of `LIBRARY:NAME`; two empty ones for any other source."""
    prefix, _, name = source.partition(":")
    library = _ALSO.get(prefix, prefix)
    return (library, name) if library in LIBRARIES and name else ("", "")


def build_error(library: str, what: str, error: Exception) -> ValueError:
    """The error, in one line, for a model that its library does not build as a folder describes it."""
    reason = " ".join(str(error).split())[:200] or type(error).__name__
    return ValueError(f"model.pretrained: {what!r} could not be built by {library} ({reason})")


def download_error(what: str, error: Exception) -> ValueError:
    """The error, in one line, for weights that could not be downloaded."""
    reason = " ".join(str(error).split())[:200]
    hint = "without a network, give the path of a file or folder, or --random_weights"
    return ValueError(f"model.pretrained: {what} could not be fetched ({reason}); {hint}")
