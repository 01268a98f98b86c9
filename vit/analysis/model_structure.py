"""The structure of a vision model of any library: blocks, patch embedding, grid; and hooks on them.

Owns the names that timm, torchvision and transformers give to these modules. timm's own Transformers are known by where
their parts stand: `blocks` beside a `patch_embed` that tells its grid.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from einops import rearrange
from torch import Tensor, nn

from vit.analysis.unsupported import Unsupported
from vit.config import Grid, check
from vit.layers.patches import check_image_dtype, check_image_shape
from vit.models import VisionTransformer

TensorCallback = Callable[[str, Tensor], None]

BLOCKS = {
    "Block": "norm2",  # ours and timm's
    "EvaBlock": "norm2",
    "RelPosBlock": "norm2",
    "ParallelThingsBlock": "ffns.0.norm",  # attention twice at once, then feed-forward twice at once
    "ResPostBlock": "mlp",  # timm's post-norm blocks
    "ResPostRelPosBlock": "mlp",
    "EvaBlockPostNorm": "mlp",
    "EncoderBlock": "ln_2",  # torchvision's
    "ViTLayer": "layernorm_after",
    "DeiTLayer": "layernorm_after",
    "Dinov2Layer": "norm2",
    "Dinov2WithRegistersLayer": "norm2",
    "DINOv3ViTLayer": "norm2",
    "CLIPEncoderLayer": "layer_norm2",
    "SiglipEncoderLayer": "layer_norm2",
    "Siglip2EncoderLayer": "layer_norm2",
    "Aimv2EncoderLayer": "rms_norm2",
    "ViTMAELayer": "layernorm_after",
    "ViTMSNLayer": "layernorm_after",
    "IJepaLayer": "layernorm_after",
    "BeitLayer": "layernorm_after",
    "Data2VecVisionLayer": "layernorm_after",
}
"""Class of a Transformer block → its module that reads the stream between attention and feed-forward: the norm of the
second branch or, where norms come last, its network."""
RESIDUAL = ("BasicBlock", "Bottleneck", "PreActBottleneck", "BottleneckBlock")
"""A ResNet's blocks, torchvision's and timm's; the last are those of CLIP's, in timm's ByobNet."""
PATCH_EMBEDDING = "patch_embed"
"""timm's name of it."""


def residual_blocks(model: nn.Module) -> dict[str, nn.Module]:
    """The residual blocks by their names, in order: those beside a patch embedding or, without one, of known classes.

    Unsupported where there is none.
    """
    blocks = _blocks_of_patches(model)
    if blocks is not None:
        return blocks
    known = (*BLOCKS, *RESIDUAL)
    found = {
        name: module
        for name, module in model.named_modules()
        if type(module).__name__ in known and not name.startswith(("stem.", "embedding."))
    }
    rule = "its blocks cannot be read: they are neither a plain Vision Transformer's nor a ResNet's"
    if not found:
        raise Unsupported(f"model: {type(model).__name__} is not valid: {rule}")
    return found


def _blocks_of_patches(model: nn.Module) -> dict[str, nn.Module] | None:
    """The list `blocks` beside timm's patch embedding; a convolutional stem inside that has residual blocks too."""
    name, _ = _patch_embedding(model)
    place = name.removesuffix(PATCH_EMBEDDING)
    blocks = getattr(model.get_submodule(place.rstrip(".")), "blocks", None) if name else None
    if not isinstance(blocks, nn.ModuleList | nn.Sequential) or not len(blocks):
        return None
    return {f"{place}blocks.{child}": block for child, block in blocks.named_children()}


def _patch_embedding(model: nn.Module) -> tuple[str, Any]:
    """timm's patch embedding, that of hybrids included, by its name; an empty name and None where there is none."""
    for name, module in model.named_modules():
        if f".{name}".endswith(f".{PATCH_EMBEDDING}") and hasattr(module, "dynamic_feat_size"):
            return name, module
    return "", None


def channels_last(model: nn.Module) -> bool:
    """Whether its blocks give maps `b gh gw c`, as timm's SAM."""
    return str(getattr(getattr(_patch_embedding(model)[1], "output_fmt", None), "value", "")) == "NHWC"


def second_branches(model: nn.Module) -> dict[str, nn.Module]:
    """The module that reads the stream between the two branches of every Transformer block, by the block's name.

    Unsupported for blocks of other classes.
    """
    readers = {}
    for name, block in residual_blocks(model).items():
        kind = type(block).__name__
        if kind not in BLOCKS:
            rule = f"its block {name} ({kind}) is not known to add attention and after it feed-forward"
            raise Unsupported(f"model: {type(model).__name__} is not valid: {rule}")
        readers[name] = block.get_submodule(BLOCKS[kind])
    return readers


def first_convolution(model: nn.Module) -> tuple[str, nn.Conv2d]:
    """The layer that reads the pixels: a ViT's patch projection, a ResNet's first. Unsupported where none does."""
    for name, module in model.named_modules():
        if isinstance(module, nn.Conv2d) and module.in_channels == 3:
            return name, module
    raise Unsupported(f"model: {type(model).__name__} is not valid: no convolution of it reads 3 channels")


def pixel_weights(model: nn.Module) -> tuple[str, Tensor]:
    """The layer that reads the pixels and its weights `c 3 ph pw`; a linear layer's are those on the pixels of a patch.

    Unsupported where no layer reads three channels.
    """
    rows = _linear_patches(model)
    if rows is None:
        name, convolution = first_convolution(model)
        return name, convolution.weight
    name, layer, (ph, pw) = rows
    return name, rearrange(layer.weight, "c (ph pw k) -> c k ph pw", ph=ph, pw=pw)


def _linear_patches(model: Any) -> tuple[str, nn.Linear, tuple[int, int]] | None:
    """The linear layer of timm's NaFlexVit and of transformers' SigLIP 2 on the pixels of a patch, and the patch."""
    for name, module in model.named_modules():
        if isinstance(module, nn.Linear) and name.endswith(("embeds.proj", "embeddings.patch_embedding")):
            owner = model.get_submodule(name.rpartition(".")[0])
            return name, module, _pair(owner.patch_size)
    return None


def pools_patches(model: nn.Module) -> bool:
    """Whether the head reads the patches alone, as pooled models of any library do; there may be a class token."""
    if isinstance(model, VisionTransformer):
        return model.config.pooling in ("gap", "map", "query")
    own = getattr(model, "model", model)
    if type(own).__name__ == "CLIPForImageClassification" or _pools_by_setting(own):
        return True
    return getattr(model, "global_pool", None) in ("avg", "avgmax", "max", "map")


def _pools_by_setting(model: nn.Module) -> bool:
    """Transformers' BEiT and Data2Vec, whose patches are averaged where their configuration says so."""
    return bool(getattr(getattr(model, "config", None), "use_mean_pooling", False))


def logits_of(output: Any) -> Tensor:
    """The logits `b k` of a model of any library. Unsupported where it gives none."""
    answer = output if isinstance(output, Tensor) else getattr(output, "logits", None)
    if answer is None or answer.dim() != 2:
        found = type(output).__name__ if answer is None else f"shape {tuple(answer.shape)}"
        raise Unsupported(f"model: {found} is not valid: it gives no logits, one row an image; take one with a head")
    return answer


def patch_grid(model: Any, image_size: tuple[int, int] | None = None) -> Grid:
    """Patches along height and width: of images of that size, or of those the model was built for.

    Unsupported where the model does not tell its image size, and none is given.
    """
    size = image_size or (model.config.image_size if isinstance(model, VisionTransformer) else _image_size(model))
    if size is None:
        raise Unsupported(f"image_size: None is not valid: {type(model).__name__} does not tell it; say it")
    embedding = _patch_embedding(model)[1]
    if embedding is not None:
        grid = embedding.grid_size if size == embedding.img_size else embedding.dynamic_feat_size(size)
        return int(grid[0]), int(grid[1])
    steps = patch_size(model)
    return size[0] // steps[0], size[1] // steps[1]


def patch_size(model: Any) -> tuple[int, int]:
    """Pixels from a patch to the next, along height and width, as the layer that reads the pixels has them, or as a
    hybrid's stem and its patches have together.
    """
    if isinstance(model, VisionTransformer):
        return model.config.patch_size
    embedding = _patch_embedding(model)[1]
    if embedding is not None:
        return _pair(embedding.feat_ratio(as_scalar=False))
    rows = _linear_patches(model)
    return _pair(first_convolution(model)[1].stride) if rows is None else rows[2]


def crop_to_patches(model: Any, images: Tensor) -> Tensor:
    """The part of `… H W` that the patches lie on: rows and columns at the end that fill no patch left out."""
    (gh, gw), (ph, pw) = patch_grid(model, (images.shape[-2], images.shape[-1])), patch_size(model)
    return images[..., : gh * ph, : gw * pw]


def _image_size(model: Any) -> tuple[int, int] | None:
    embedding = getattr(model, PATCH_EMBEDDING, None) or _patch_embedding(model)[1]
    settings = getattr(model, "config", None)
    settings = getattr(settings, "vision_config", settings)
    for owner, field in ((embedding, "img_size"), (model, "image_size"), (settings, "image_size")):
        if (size := getattr(owner, field, None)) is not None:
            return _pair(size)
    grid = getattr(getattr(model, "embeds", None), "pos_embed_grid_size", None)  # timm's NaFlexVit
    if (count := getattr(settings, "num_patches", None)) is not None:  # transformers' SigLIP 2
        grid = (math.isqrt(count),) * 2
    if grid is None:
        return None
    steps = patch_size(model)
    return grid[0] * steps[0], grid[1] * steps[1]


def _pair(size: Any) -> tuple[int, int]:
    return (size, size) if isinstance(size, int) else (int(size[0]), int(size[1]))


def image_batches(model: nn.Module, images: Tensor | Iterable[Tensor]) -> Iterator[Tensor]:
    """The batches of an analysis, or the one: ValueError for one that is not `b k H W`, and where there is no image."""
    count = 0
    for batch in [images] if isinstance(images, Tensor) else images:
        count += len(check_images(model, batch))
        yield batch
    if not count:
        raise ValueError("images: none is not valid: an analysis needs at least one")


def check_images(model: nn.Module, images: Tensor) -> Tensor:
    """The images; ValueError unless they are `b k H W`, finite, at least one, of the model's channels and type."""
    convolution = next((each for each in model.modules() if isinstance(each, nn.Conv2d)), None)
    check_image_shape(images, 3 if convolution is None else convolution.in_channels)
    if convolution is not None:
        check_image_dtype(images, convolution.weight)
    check(len(images) > 0, "images", tuple(images.shape), "an analysis needs at least one")
    if not bool(images.isfinite().all()):
        raise ValueError("images: infinite or NaN pixels are not valid")
    return images


@contextmanager
def forward_hooks(
    modules: Mapping[str, nn.Module], callback: TensorCallback, *, inputs: bool = False
) -> Iterator[None]:
    """`callback(name, tensor)` for every output (or first input) inside. The hooks are removed in any case."""

    def output_hook(name: str) -> Callable[..., None]:
        return lambda module, args, output: callback(  # noqa: ARG005
            name, output if isinstance(output, Tensor) else output[0]
        )

    def input_hook(name: str) -> Callable[..., None]:
        return lambda module, args, kwargs: callback(name, args[0] if args else next(iter(kwargs.values())))  # noqa: ARG005

    handles = []
    try:
        for name, module in modules.items():
            if inputs:
                handles.append(module.register_forward_pre_hook(input_hook(name), with_kwargs=True))
            else:
                handles.append(module.register_forward_hook(output_hook(name)))
        yield
    finally:
        for handle in handles:
            handle.remove()
