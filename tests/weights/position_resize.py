"""`python -m tests.weights.position_resize docs/position_resize.md [FOLDER]`: the library's outputs at any image size.

Small models with random weights and FOLDER's DINOv2 are opened as they are and given images of other sizes. The library
resizes positions by its own code where that is installed, else by its published formula, written out here.
"""

from __future__ import annotations

import math
import sys
import warnings
from collections.abc import Callable, Iterator
from copy import deepcopy
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from einops import rearrange
from scipy.ndimage import zoom
from torch import Tensor
from torch.nn.functional import interpolate

from tests.weights import clip_towers, facebook_files, hf_models
from tests.weights.hf_models import relative
from tests.weights.proof import fill, filled
from tests.weights.test_npz import NEWER, ORIGINAL, google_arrays
from vit.config import ModelConfig, ViTConfig
from vit.hub.pretrained import load_source
from vit.libraries import Provenance
from vit.libraries.timm_beit import build_beit
from vit.libraries.timm_writing import build_timm
from vit.libraries.torchvision import build_torchvision
from vit.models import VisionTransformer
from vit.weights import facebook
from vit.weights.beit import BEIT
from vit.weights.layout import Layout, invert_rules, strip_prefixes, without_dropped
from vit.weights.npz import BIG_VISION, NPZ
from vit.weights.open_clip import OPEN_CLIP
from vit.weights.sources import Source, open_source
from vit.weights.timm import TIMM
from vit.weights.torchvision import TORCHVISION

Size = tuple[int, int]
Forward = Callable[[Tensor], Tensor]
Tensors = dict[str, Tensor]
PATCH = 14
NATIVE: Size = (336, 336)
SIZES: tuple[Size, ...] = ((224, 224), (98, 98), (112, 168))
PLAIN = ViTConfig(
    image_size=NATIVE, patch_size=(PATCH, PATCH), width=48, depth=2, num_heads=3, num_classes=7, init="normal"
)


# ------------------------------------------------------------------ what the libraries publish


def dino(grid: Tensor, new: Size, offset: float = 0.1) -> Tensor:
    """`interpolate_pos_encoding` of facebookresearch/dino and dinov2, on `1 c side side`."""
    side = grid.shape[-1]
    return interpolate(grid, scale_factor=((new[0] + offset) / side, (new[1] + offset) / side), mode="bicubic")


def dinov2_with_registers(grid: Tensor, new: Size) -> Tensor:
    """The same with `interpolate_offset=0.0, interpolate_antialias=True`, as dinov2's hub has it for registers."""
    return interpolate(grid, size=new, mode="bicubic", antialias=True)


def mae(grid: Tensor, new: Size) -> Tensor:
    """`interpolate_pos_embed` of facebookresearch/mae, and what deit's `main.py` does."""
    return interpolate(grid, size=new, mode="bicubic", align_corners=False)


def big_vision(grid: Tensor, new: Size) -> Tensor:
    """`resample_posemb` of google-research/big_vision, and `interpolate_posembed` of vision_transformer."""
    factors = (1, 1, new[0] / grid.shape[2], new[1] / grid.shape[3])
    return torch.from_numpy(zoom(grid.numpy(), factors, order=1))


def table_resized(tensors: Tensors, key: str, new: Size, how: Callable[[Tensor, Size], Tensor]) -> Tensors:
    """The tensors, with the grid of the table `key`, whose last rows it is, resized."""
    table = tensors[key]
    old = math.isqrt(table.shape[1])  # a few prefix tokens are fewer than the next square
    if new == (old, old):
        return tensors
    prefix, grid = table[:, : -(old**2)], table[:, -(old**2) :]
    resized = rearrange(how(rearrange(grid, "1 (h w) c -> 1 c h w", h=old), new), "1 c h w -> 1 (h w) c")
    return tensors | {key: torch.cat((prefix, resized), dim=1)}


# ------------------------------------------------------------------ models of every layout


@dataclass(frozen=True)
class Case:
    """A model in our code, and the library's output for images of any of `SIZES`."""

    layout: str
    name: str
    source: str
    """Whose code resizes the positions."""
    ours: VisionTransformer
    theirs: Forward
    sizes: tuple[Size, ...] = SIZES
    """Those besides the model's own that the library takes."""

    @torch.no_grad()
    def difference(self, size: Size) -> float:
        images = torch.randn(2, 3, *size, generator=torch.Generator().manual_seed(1))
        return relative(self.ours(images), self.theirs(images))


def opened(tensors: Tensors, layout: Layout, config: ViTConfig) -> VisionTransformer:
    source = Source(layout.name, tensors, config, Provenance("random"), layout=layout, grid=config.grid_size)
    model = load_source(ModelConfig(), source, None).model.eval()
    assert isinstance(model, VisionTransformer)
    return model


def rebuilt(layout: Layout, config: ViTConfig, at_size: Callable[[Size], Tensors]) -> Forward:
    """The library's own model, built anew for images of a size, with the tensors for that size."""

    def forward(images: Tensor) -> Tensor:
        size = (images.shape[2], images.shape[3])
        assert layout.reference is not None
        tensors = without_dropped(layout, at_size((size[0] // PATCH, size[1] // PATCH)))
        return layout.reference(replace(config, image_size=size), tensors)(images)

    return forward


BEIT_OPTIONS = {
    "positions": "relative",
    "relative_prefix": True,
    "layer_scale": 0.1,
    "pooling": "gap",
    "final_norm": "pooled",
}
TIMMS: dict[str, dict[str, Any]] = {
    "ViT": {},
    "DeiT, distilled": {"distillation_token": True},
    "DeiT-III": {"positions_on_prefix": False, "layer_scale": 1e-6},
    "registers": {"num_registers": 4, "positions_on_registers": True},
    "no class token": {"class_token": False, "pooling": "gap"},
    "BEiT": BEIT_OPTIONS,
    "BEiT, one table for all blocks": BEIT_OPTIONS | {"relative_tables": "shared"},
}


def timm_case(name: str) -> Case:
    config = replace(PLAIN, **TIMMS[name])
    layout = BEIT if config.positions == "relative" else TIMM
    build = build_beit if layout is BEIT else build_timm
    with torch.device("meta"):
        empty = build(config)
    model = build(config).eval()  # BEiT's indices are in no state dict: they would be lost with the meta device
    model.load_state_dict(filled(empty).state_dict())

    def forward(images: Tensor) -> Tensor:
        resized = deepcopy(model)
        resized.set_input_size(img_size=tuple(images.shape[2:]))  # type: ignore[operator]
        return resized(images)

    return Case(layout.name, name, "timm", opened(model.state_dict(), layout, config), forward)


OTHER_TIMM: dict[str, tuple[str, dict[str, Any]]] = {
    "EVA": ("eva_giant_patch14_224", {"embed_dim": 48, "num_heads": 3}),
    "EVA-02": ("eva02_tiny_patch14_224", {}),
    "EVA-02, a norm inside the feed-forward network": ("eva02_base_patch14_224", {"embed_dim": 48, "num_heads": 3}),
    "DINOv3": ("vit_small_patch16_dinov3", {"embed_dim": 48, "num_heads": 3}),
    "Perception Encoder": ("vit_pe_core_tiny_patch16_384", {}),
    "RoPE-ViT, axial": ("vit_small_patch16_rope_ape_224", {}),
    "RoPE-ViT, mixed": ("vit_small_patch16_rope_mixed_ape_224", {}),
    "DINOv3, biases of q, k and v": ("vit_tiny_patch16_dinov3_qkvb", {}),
    "AIMv2": ("aimv2_large_patch14_224", {"embed_dim": 64, "num_heads": 2}),
    "NaFlexVit": ("naflexvit_base_patch16_gap", {"embed_dim": 48, "num_heads": 3}),
}
"""Case → a name of timm, and options that make it small."""


def other_timm_case(name: str, folder: Path) -> Case:
    """timm's model with `dynamic_img_size`, which resizes the positions for each image; NaFlexVit does so unasked."""
    import timm
    from timm.models import save_for_hf

    called, smaller = OTHER_TIMM[name]
    own: dict[str, Any] = {"img_size": NATIVE[0], "patch_size": PATCH}
    dynamic: dict[str, Any] = {"dynamic_img_size": True}
    if name == "NaFlexVit":
        own, dynamic = {"patch_size": PATCH, "pos_embed_grid_size": (NATIVE[0] // PATCH, NATIVE[1] // PATCH)}, {}
    options = {"depth": 2, "num_classes": 7, **own, **smaller}
    theirs = fill(timm.create_model(called, **options, **dynamic))
    save_for_hf(theirs, folder, model_args=options, safe_serialization=True)
    source = open_source(str(folder))
    model = load_source(ModelConfig(), source, None).model.eval()
    assert isinstance(model, VisionTransformer)
    assert source.layout is not None
    return Case(source.layout.name, name, "timm", model, theirs)


def torchvision_case() -> Case:
    from torchvision.models.vision_transformer import interpolate_embeddings

    with torch.device("meta"):
        theirs = build_torchvision(PLAIN)
    tensors = dict(filled(theirs).state_dict())

    def at_size(new: Size) -> Tensors:
        return dict(interpolate_embeddings(new[0] * PATCH, PATCH, dict(tensors)))

    ours = opened(tensors, TORCHVISION, PLAIN)
    forward = rebuilt(TORCHVISION, PLAIN, at_size)
    square = tuple(size for size in SIZES if size[0] == size[1])
    return Case("torchvision", "ViT", "torchvision", ours, forward, square)


def open_clip_case() -> Case:
    from open_clip.model import resize_pos_embed

    tensors = dict(clip_towers.clip(quick_gelu=True, image_size=NATIVE, patch_size=PATCH).state_dict())
    config = replace(clip_towers.config(quick_gelu=True), image_size=NATIVE, patch_size=(PATCH, PATCH))

    def forward(images: Tensor) -> Tensor:
        size = tuple(images.shape[2:])
        model = clip_towers.clip(quick_gelu=True, image_size=size, patch_size=PATCH)
        state = dict(tensors)
        resize_pos_embed(state, model)
        model.load_state_dict(state)
        return model.encode_image(images)  # type: ignore[operator]

    return Case("open_clip", "CLIP", "open_clip", opened(tensors, OPEN_CLIP, config), forward)


FACEBOOK: dict[str, Callable[[Tensor, Size], Tensor]] = {
    "DeiT-III": mae,
    "DINO, the teacher of a checkpoint": dino,
    "DINOv2": dino,
    "DINOv2 with registers": dinov2_with_registers,
    "MAE with its decoder": mae,
}


def facebook_case(name: str) -> Case:
    how = FACEBOOK[name]
    shapes = dict(facebook_files.FILES[name][1])
    key = next(key for key in shapes if key.endswith("pos_embed") and not key.startswith("decoder"))
    rows = (NATIVE[0] // PATCH) ** 2 + shapes[key][1] - 4  # the files are for 2×2 patches
    width = facebook_files.WIDTH
    projection = next(key for key in shapes if key.endswith("patch_embed.proj.weight"))
    shapes |= {key: (1, rows, width), projection: (width, 3, PATCH, PATCH)}
    tensors = facebook_files.tensors_of(shapes)
    layout = facebook_files.layout_of(tensors)
    sizes: dict[str, Any] = {"image_size": NATIVE, "patch_size": (PATCH, PATCH)}
    config = layout.config(strip_prefixes(layout, tensors)) or replace(facebook_files.DEIT3_CONFIG, **sizes)
    assert isinstance(config, ViTConfig)
    forward = rebuilt(layout, config, lambda new: table_resized(tensors, key, new, how))
    return Case(layout.name, name, "published formula", opened(tensors, layout, config), forward)


def google_case(layout: Layout) -> Case:
    style = ORIGINAL if layout is NPZ else NEWER
    changes: dict[str, Any] = {} if layout is NPZ else {"class_token": False, "pooling": "gap"}
    config = replace(PLAIN, feedforward="gelu_tanh", **changes)
    tensors = {name: torch.from_numpy(array) for name, array in google_arrays(config, style).items()}
    forward = rebuilt(layout, config, lambda new: table_resized(tensors, str(style["positions"]), new, big_vision))
    return Case(layout.name, "ViT", "published formula", opened(tensors, layout, config), forward)


def huggingface_case(name: str, folder: Path) -> Case:
    """transformers' model with `interpolate_pos_encoding`.

    DINOv2 and SigLIP 2 do it unasked, DINOv3 has no need of it, and AIMv2 takes images of its own size alone.
    """
    case = hf_models.CASES[name]
    grid = {"num_patches": (NATIVE[0] // PATCH) ** 2} if "Siglip2" in name else {"image_size": NATIVE[0]}
    sizes: dict[str, Any] = {"patch_size": PATCH, **grid}
    if "vision_config" in case.settings:
        sizes = {"vision_config": case.settings["vision_config"] | sizes}
    case = replace(case, settings=case.settings | sizes)
    theirs = hf_models.saved(case, folder)
    source = open_source(str(folder))
    model = load_source(ModelConfig(), source, None).model.eval()
    assert isinstance(model, VisionTransformer)
    assert source.layout is not None
    families = ("Dinov2", "DINOv3", "Siglip2", "Aimv2")
    options = {} if name.startswith(families) else {"interpolate_pos_encoding": True}
    forward: Forward = lambda images: hf_models.library_output(case, theirs, images, **options)  # noqa: E731
    return Case(source.layout.name, name, "transformers", model, forward, () if name.startswith("Aimv2") else SIZES)


HUGGING_FACE = tuple(name for name in hf_models.CASES if "48×32" not in name)


def cases() -> Iterator[Case]:
    """A case at a time."""
    yield from (timm_case(name) for name in TIMMS)
    for name in OTHER_TIMM:
        with TemporaryDirectory() as folder:
            yield other_timm_case(name, Path(folder))
    yield torchvision_case()
    yield open_clip_case()
    yield from (google_case(layout) for layout in (NPZ, BIG_VISION))
    yield from (facebook_case(name) for name in FACEBOOK)
    for name in HUGGING_FACE:
        with TemporaryDirectory() as folder:
            yield huggingface_case(name, Path(folder))


# ------------------------------------------------------------------ the page


@torch.no_grad()
def dinov2_cases(folder: Path) -> Iterator[Case]:
    """Real weights of DINOv2, against transformers, and under Facebook's names against its published formula."""
    import transformers

    source = open_source(str(folder))
    model = load_source(ModelConfig(), source, None).model.eval()
    assert isinstance(model, VisionTransformer)
    theirs = transformers.Dinov2Model.from_pretrained(folder).eval()
    name = "ViT-S/14, pretrained"
    yield Case("hf-dinov2", name, "transformers", model, lambda images: theirs(pixel_values=images).pooler_output)
    tensors = invert_rules(facebook.DINOV2, model.state_dict(), model.config).tensors
    tensors["mask_token"] = source.tensors["embeddings.mask_token"]
    config = facebook.DINOV2.config(tensors)
    assert isinstance(config, ViTConfig)
    forward = rebuilt(facebook.DINOV2, config, lambda new: table_resized(tensors, "pos_embed", new, dino))
    yield Case("facebook-dinov2", name, "published formula", opened(tensors, facebook.DINOV2, config), forward)


def line(case: Case) -> str:
    """A row of the table: the difference at the model's own size and at `SIZES`."""
    config = case.ours.config
    cells = [f"{case.difference(config.image_size):.1e}"]
    cells += [f"{case.difference(size):.1e}" if size in case.sizes else "–" for size in SIZES]
    way = config.position_resize if config.resizes_positions else config.positions
    return f"| {case.layout} | {case.name} | `{way}` | {case.source} | {' | '.join(cells)} |"


def write(path: Path, folder: Path | None) -> None:
    """Measure everything and write the page."""
    lines = []
    for case in (*cases(), *(dinov2_cases(folder) if folder else ())):
        lines.append(line(case))
        print(lines[-1], flush=True)
    path.write_text(f"{_HEAD}\n" + "\n".join(lines) + "\n")


_HEAD = """\
# Positions at other image sizes

Learned positions are for one grid of patches, and every library resizes them to other grids in its own way. A model
with weights from another library uses that library's method, so that its outputs equal the library's for images of
any size. The method is `position_resize` in its configuration, which is saved with a run; `model.position_resize`
overrides it. The choice matters: with the weights of DINOv2 ViT-S/14, trained at 518 pixels, the final tokens of
random images of 224 pixels change by 5 % of the largest value when positions are resized with antialiasing, as in
timm, instead of without, as in transformers.

| `model.position_resize` | used by |
|---|---|
| `bicubic_antialiased` | timm and open_clip; DINOv2 with registers; models trained here |
| `bicubic` | transformers, except DINOv2 with registers and SigLIP 2; Facebook's DeiT-III and MAE |
| `bicubic_offset` | Facebook's DINO and DINOv2: the scale factor is that of a grid 0.1 patches larger |
| `bicubic_corners` | torchvision (`interpolate_embeddings`): corners are mapped to corners |
| `bilinear_corners` | Google's vision_transformer and big_vision: the same, bilinear |
| `bilinear_antialiased` | SigLIP 2, in transformers and in timm's NaFlexVit |
| `bilinear` | relative biases in transformers' BEiT and Data2Vec |
| `bicubic_square`, `bilinear_square`, `bilinear_corners_square` | timm's NaFlexVit where it keeps the \
aspect: to a square of the grid's longer side, which is cut to the grid |
| `geometric` | relative biases in timm's BEiT: linear, near offsets moved least |

The library of a file is recognized only by its tensors: DINO and MAE backbones with timm's names are resized as in
timm.

Measured by `python -m tests.weights.position_resize docs/position_resize.md FOLDER`, with FOLDER holding DINOv2
ViT-S/14 as on the Hugging Face Hub: the largest difference between the outputs of our model and the library's,
relative to their largest magnitude, by image size, in float32. The models are small, with images of 336 pixels,
patches of 14 pixels and random weights, unless marked as pretrained (518 pixels). Where the library is not installed,
its published formula resizes the table. torchvision only accepts square images. transformers' AIMv2 only accepts its
own size; ours resizes its positions to other sizes as timm does.

| layout | model | method | compared with | own size | 224 | 98 | 112×168 |
|---|---|---|---|---|---|---|---|"""

if __name__ == "__main__":
    warnings.filterwarnings("ignore")
    torch.set_num_threads(1)
    write(Path(sys.argv[1]), Path(sys.argv[2]) if len(sys.argv) > 2 else None)
