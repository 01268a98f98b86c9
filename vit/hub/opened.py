"""An opened model: the module with its preprocessing, its classes and where its weights came from."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Generic, Literal

import torch
from torch import nn
from typing_extensions import TypeVar

from vit.config import Preprocessing, check
from vit.hub.identity import model_digest
from vit.libraries import Provenance
from vit.models.inference import check_quantizable, for_inference, quantizable_layers
from vit.models.model import Model as OurModel
from vit.weights.report import LoadReport

Model = TypeVar("Model", bound=nn.Module, covariant=True, default=nn.Module)


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class OpenedModel(Generic[Model]):
    """A model from anywhere with all that is known of it. In evaluation mode; images `b 3 H W` to logits `b k`."""

    name: str
    """The last part of the source, and whether the weights are random."""
    source: str
    """As the user wrote it."""
    model: Model
    provenance: Provenance
    stated_preprocessing: Preprocessing | None = None
    """None where neither the source nor the user states it."""
    unsupported_preprocessing: str = ""
    """Why there is none though the source states one."""
    class_names: list[str]
    """In the order of its head; empty where unknown."""
    num_classes: int
    """0: there is no head, and features take the place of logits."""
    multilabel: bool = False
    """An image has any number of the classes: each logit goes through a sigmoid, and there is no softmax over them."""
    implementation: str = "vit"
    """The package whose code computes it."""
    reason: str = ""
    """Why that package computes it."""
    report: LoadReport | None = None
    """The use of every tensor; None where the library loaded them, and for an architecture's name."""
    dtype: Literal["auto", "int8"] = "auto"
    """`int8`: the blocks' linear layers run in int8."""
    checkpoint: Path | None = None
    """The checkpoint folder of a run."""
    state: Mapping[str, Any] | None = None
    """The state of that checkpoint."""

    @property
    def preprocessing(self) -> Preprocessing:
        """The stated preprocessing. ValueError where neither the source nor the user states it."""
        if self.stated_preprocessing is None:
            reason = self.unsupported_preprocessing or f"{self.source} does not say how its images are prepared"
            raise ValueError(f"preprocessing: it is missing: {reason}; give mean, std and image_size")
        return self.stated_preprocessing

    @property
    def thresholds(self) -> list[float]:
        """The decision threshold of each class of a multi-label model: the run's choice, else 0.5."""
        task = {} if self.state is None else self.state["task"]
        return list(task.get("thresholds", [0.5] * self.num_classes))

    @property
    def is_ours(self) -> bool:
        return self.implementation == "vit"

    def check_single_label(self) -> None:
        """ValueError for a multi-label model, on behalf of code that takes a softmax or the largest logit."""
        rule = "it gives an image any number of labels, and one is needed here; use `vit eval` or `vit predict`"
        check(not self.multilabel, "model", self.source, rule)

    @cached_property
    def identity(self) -> str:
        """12 hexadecimal digits of its weights and of what computes with them, and how these are rounded."""
        return model_digest(self.model) + (f"-{self.dtype}" if self.dtype != "auto" else "")

    def module_on(self, device: torch.device) -> nn.Module:
        """The module that computes predictions, on the device: the model, or its eight-bit copy.

        ValueError where the latter cannot be.
        """
        self.check_device(device)
        return self.model.to(device) if self.dtype == "auto" else self._eight_bits

    @cached_property
    def _eight_bits(self) -> nn.Module:
        self.check_dtype()
        assert isinstance(self.model, OurModel)
        return for_inference(self.model, "int8")

    def check_device(self, device: torch.device) -> None:
        """ValueError where eight bits are not computed: elsewhere than on a CPU, and on other processors than x86."""
        if self.dtype == "auto":
            return
        check(device.type == "cpu", "device", device.type, "eight bits are computed on the CPU; give --device cpu")
        check_quantizable(self.model)

    def check_dtype(self) -> None:
        """ValueError for eight bits of a model that has none: one of another library's code, or without blocks."""
        if self.dtype == "auto":
            return
        rule = f"eight bits are for models that vit computes, and {self.source} is computed by {self.implementation}"
        check(isinstance(self.model, OurModel), "dtype", self.dtype, rule)
        rule = f"{type(self.model).__name__} has no blocks with linear layers"
        check(bool(quantizable_layers(self.model)), "dtype", self.dtype, rule)

    def __repr__(self) -> str:
        """One line: the module, the report and a run's state would fill pages."""
        return f"{type(self).__name__}({self.name!r}: {type(self.model).__name__}, {self.summary()})"

    def summary(self) -> str:
        """Where it came from and who computes it, in one line."""
        loaded = self.source if self.report is None else self.report.summary()
        if self.provenance.is_random:
            loaded += ": random weights"
        reason = f" ({self.reason})" if self.reason else ""
        eight_bits = ", in eight bits" if self.dtype == "int8" else ""
        return f"{loaded}; computed by {self.implementation}{eight_bits}{reason}"
