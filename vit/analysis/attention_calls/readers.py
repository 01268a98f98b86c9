"""The reader of each class of attention modules."""

from __future__ import annotations

from torch import nn

from vit.analysis.attention_calls import timm, transformers
from vit.analysis.attention_calls.call import Reader
from vit.analysis.attention_calls.ours import read_self_attention
from vit.analysis.attention_calls.torch import read_torch

READERS: dict[str, Reader] = {
    "vit.attention.multihead.SelfAttention": read_self_attention,
    **timm.READERS,
    "torch.nn.modules.activation.MultiheadAttention": read_torch,
    **transformers.READERS,
}
"""By the class's full name."""


def attention_reader(module: nn.Module) -> Reader | None:
    """The reader of a module's class, or of the nearest class that it inherits from."""
    names = (f"{cls.__module__}.{cls.__qualname__}" for cls in type(module).__mro__)
    name, reader = next(((name, READERS[name]) for name in names if name in READERS), ("", None))
    if name.startswith("transformers.") and not (hasattr(module, "q_proj") or hasattr(module, "query")):
        return None
    return reader


def known_attention() -> str:
    """The libraries whose classes are in `READERS`, with the modules; of transformers, the models."""
    modules: dict[str, set[str]] = {}
    for name in READERS:
        library, *rest = name.split(".")
        modules.setdefault(library, set()).add(rest[1] if library == "transformers" else rest[-2])
    return ", ".join(f"{library} ({', '.join(sorted(names))})" for library, names in sorted(modules.items()))
