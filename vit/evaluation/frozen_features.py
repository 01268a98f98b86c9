"""Frozen features of any model: which kinds there are, and how all that are asked for are read in one forward pass."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from copy import deepcopy
from typing import Any, Literal

import torch
from torch import Tensor, nn

from vit.config import check
from vit.data.preprocessing import normalize
from vit.engine import DTYPES, Accelerator, precision_of
from vit.hub import OpenedModel
from vit.libraries.tokens import LibraryTokens, library_tokens
from vit.models import VisionTransformer
from vit.models.inference import for_inference

FEATURES = {
    "head": "the head's input; of a ResNet the pooled map",
    "class": "the class token after the last block and the final norm",
    "patches": "the mean of the patch tokens, likewise",
    "class+patches": "both, concatenated",
    "class-4": "the class tokens of the last four blocks, each after the final norm, concatenated",
    "patches-4": "the means of the patch tokens of the last four blocks, likewise",
    "class+patches-4": "class-4 and the mean of the last block's patch tokens, concatenated (DINOv2)",
}
"""Kinds of features. A convolutional network has one, its pooled map, which stands for each of them."""
LAST_BLOCKS = 4

ReadFeatures = Callable[[Tensor], dict[str, Tensor]]


def resolve_features(opened: OpenedModel, kinds: Sequence[str]) -> dict[str, str]:
    """Map each kind that is asked for to the one that the model has: itself, or `head` for a convolutional network.

    ValueError for a kind that there is not, and for one that the model lacks.
    """
    for kind in kinds:
        check(kind in FEATURES, "--features", kind, f"choose from {', '.join(FEATURES)}")
    model: Any = opened.model
    tokens = library_tokens(model)
    if tokens is None and not _has_tokens(model):
        attends = any("attention" in type(module).__name__.lower() for module in model.modules())
        for kind in kinds if attends else ():
            rule = f"{opened.source} is computed by {opened.implementation}, and only its head's input is read: 'head'"
            check(kind == "head", "--features", kind, rule)
        return dict.fromkeys(kinds, "head")
    for kind in kinds:
        if kind.startswith("class"):
            has_class = _has_class_token(model) if tokens is None else tokens.has_class_token
            check(has_class, "--features", kind, f"{opened.source} has no class token; take 'patches'")
        if kind.endswith("-4"):
            blocks = len(model.blocks if tokens is None else tokens.blocks)
            check(blocks >= LAST_BLOCKS, "--features", kind, f"{opened.source} has {blocks} blocks")
    return {kind: kind for kind in kinds}


def feature_reader(opened: OpenedModel, kinds: Sequence[str], accelerator: Accelerator) -> ReadFeatures:
    """A function from pixels uint8 `b 3 H W` to each kind's features, float32 `b c` on the CPU.

    A Vision Transformer of ours is copied for inference in the accelerator's precision; any other model computes under
    autocast. `kinds` are those of `resolve_features`. The function raises ValueError for features that are not finite.
    """
    precision = precision_of(accelerator)
    device, dtype = accelerator.device, DTYPES[precision]
    opened.check_device(device)
    if opened.dtype == "int8":
        dtype = torch.float32  # of all but the layers of bytes
    model, is_copy = opened.model, isinstance(opened.model, VisionTransformer)
    if isinstance(model, VisionTransformer):
        type_of_copy: torch.dtype | Literal["int8"] = "int8" if opened.dtype == "int8" else dtype
        model = _inference_copy(model, opened.preprocessing.image_size, kinds, device, type_of_copy)
    else:
        model.to(device).eval()
    compute = _feature_function(model, kinds)

    def read(pixels: Tensor) -> dict[str, Tensor]:
        parts = []
        for part in pixels.split(images_at_once(device) or len(pixels)):
            images = normalize(part.to(device, non_blocking=device.type == "cuda"), opened.preprocessing)
            with torch.inference_mode(), nullcontext() if is_copy else accelerator.autocast():
                found = compute(images.to(dtype) if is_copy else images)
            parts.append({kind: features.to("cpu", torch.float32) for kind, features in found.items()})
        features = {kind: torch.cat([part[kind] for part in parts]) for kind in kinds}
        for kind, values in features.items():
            rule = f"its {kind!r} features of an image are infinite or NaN in {precision}"
            check(bool(values.isfinite().all()), "model", opened.source, rule)
        return features

    return read


def images_at_once(device: torch.device) -> int | None:
    """How many images of a batch go through the model at a time; None: all.

    On a CPU the activations of a large batch are new memory in every block, which the system has to clear: 64 images of
    112 pixels through a ViT-S/14 were 1.6 times as fast as 256.
    """
    return 64 if device.type == "cpu" else None


def _inference_copy(
    model: VisionTransformer,
    size: tuple[int, int],
    kinds: Sequence[str],
    device: torch.device,
    dtype: torch.dtype | Literal["int8"],
) -> VisionTransformer:
    """A copy for images of that size; where only the head's input is read it has no head, and gives that."""
    sized = deepcopy(model)
    sized.set_image_size(size)
    if list(kinds) == ["head"]:
        sized.reset_classifier(0)  # `forward` then leaves out the tokens that nobody reads
    return for_inference(sized.to(device), dtype)


def _feature_function(model: Any, kinds: Sequence[str]) -> Callable[[Tensor], Mapping[str, Tensor]]:
    if isinstance(model, VisionTransformer) and list(kinds) == ["head"]:
        return lambda images: {"head": model(images)}
    if _has_tokens(model):
        return lambda images: _token_features(model, images, kinds)
    if list(kinds) != ["head"]:
        tokens = library_tokens(model)
        assert tokens is not None, "resolve_features lets through no others"
        return lambda images: _library_features(model, tokens, images, kinds)
    if hasattr(model, "forward_head"):
        return lambda images: {"head": model.forward_head(model.forward_features(images), pre_logits=True)}
    return lambda images: {"head": head_input(model, images)}


def _token_features(model: Any, images: Tensor, kinds: Sequence[str]) -> dict[str, Tensor]:
    """Every kind, from one pass through a model with the methods of ours and timm's Vision Transformers."""
    layers: list[Any] = []
    if any(kind.endswith("-4") for kind in kinds):
        tokens, layers = model.forward_intermediates(
            images, indices=LAST_BLOCKS, return_prefix_tokens=True, norm=True, output_fmt="NLC"
        )
    else:
        tokens = model.forward_features(images)
    means = [_mean(layer[0] if isinstance(layer, tuple) else layer) for layer in layers]
    classes = [layer[1][:, 0] for layer in layers] if _has_class_token(model) else []
    if not layers:
        means, classes = [_mean(tokens[:, model.num_prefix_tokens :])], [tokens[:, 0]]
    pooled = model.forward_head(tokens, pre_logits=True) if "head" in kinds else None
    return _joined(kinds, pooled, classes, means)


def _library_features(
    model: nn.Module, tokens: LibraryTokens, images: Tensor, kinds: Sequence[str]
) -> dict[str, Tensor]:
    """Every kind, from one pass through a model of torchvision or transformers."""
    pooled: list[Tensor] = []
    count = LAST_BLOCKS if any(kind.endswith("-4") for kind in kinds) else 1
    layers, num_prefix = tokens.read(lambda: pooled.append(head_input(model, images)), images, count)
    classes = [layer[:, 0] for layer in layers]
    return _joined(kinds, pooled[0], classes, [_mean(layer[:, num_prefix:]) for layer in layers])


def _joined(
    kinds: Sequence[str], pooled: Tensor | None, classes: Sequence[Tensor], means: Sequence[Tensor]
) -> dict[str, Tensor]:
    """Every kind from the head's input, the class tokens and the means of the patches after the last blocks, `b c`."""
    parts = {
        "head": [] if pooled is None else [pooled],
        "class": classes[-1:],
        "patches": means[-1:],
        "class+patches": [*classes[-1:], *means[-1:]],
        "class-4": classes,
        "patches-4": means,
        "class+patches-4": [*classes, *means[-1:]],
    }
    return {kind: torch.cat([part.float() for part in parts[kind]], dim=1) for kind in kinds}


def _mean(patches: Tensor) -> Tensor:
    return patches.mean(dim=1, dtype=torch.float32)


def head_input(model: nn.Module, images: Tensor) -> Tensor:
    """The input `b c` of the head for normalised images `b 3 H W`, or the output if there is no head.

    The head is the last linear layer whose output is the model's.
    """
    calls: list[tuple[Tensor, Tensor]] = []

    def keep(_: nn.Module, args: tuple[Tensor, ...], out: Tensor) -> None:
        if args[0].dim() == 2:  # the tokens of every block would fill the memory
            calls.append((args[0], out))

    hooks = [module.register_forward_hook(keep) for module in model.modules() if isinstance(module, nn.Linear)]
    try:
        output: Tensor = model(images)
    finally:
        for hook in hooks:
            hook.remove()
    return next((given for given, out in reversed(calls) if out is output), output)


def _has_tokens(model: nn.Module) -> bool:
    """Whether the model has the methods of ours and timm's Vision Transformers."""
    return all(hasattr(model, name) for name in ("num_prefix_tokens", "forward_intermediates", "forward_head"))


def _has_class_token(model: Any) -> bool:
    owners = (model, getattr(model, "embeds", None))  # timm's NaFlexVit keeps its tokens in `embeds`
    return any(getattr(owner, name, None) is not None for owner in owners for name in ("class_token", "cls_token"))
