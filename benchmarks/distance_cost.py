"""Cost of the attention distance of a whole model: streamed through capture, against keeping the maps.

The usual way calls transformers' ViT with `output_attentions=True`, which computes attention eagerly, keeps the map of
every layer, and computes the distances from them. Ours is the same architecture in this package. Both have random
weights and one image. Memory is the peak of the bytes of live tensors besides the weights.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from benchmarks.statistics_cost import peak_memory
from benchmarks.timing import Seconds, quartiles, speedups, time_interleaved
from benchmarks.unsupported import check_installed
from vit.analysis.attention_distance import mean_attention_distance
from vit.analysis.tokens import TokenLayout, token_layout
from vit.config import check, check_positive
from vit.hub import create_model
from vit.processor import machine

PATCH = 16


def bench_distance(
    sizes: Sequence[int] = (224, 512, 1024),
    *,
    turns: int = 1,
    backend: str = "auto",
    width: int = 768,
    depth: int = 12,
    num_heads: int = 12,
) -> dict[str, Any]:
    """Measure seconds and bytes of a plain pass, of ours and of the maps, for each image side in pixels.

    ValueError for a side that is not a multiple of 16, and without transformers.
    """
    check_installed("transformers")
    check(turns >= 1, "--turns", turns, "it must be at least 1")
    for size in sizes:
        check_positive("--sizes", size)
        check(size % PATCH == 0, "--sizes", size, f"patches of {PATCH} must divide it")
    rows = [_compare(size, turns, {"width": width, "depth": depth, "num_heads": num_heads}, backend) for size in sizes]
    return {
        "machine": machine("cpu", ("transformers",)),
        "architecture": {"width": width, "depth": depth, "num_heads": num_heads, "patch": PATCH},
        "sizes": rows,
        "turns": turns,
        "backend": backend,
        "conventions": "seconds, ratios: one image; median and quartiles of the turns, ratios taken within a turn, "
        "processor: time of all threads of the process; bytes: peak of torch's allocations besides weights and image; "
        "difference: between the distances streamed and from the maps of the same model, relative to the largest",
    }


def _compare(size: int, turns: int, shape: dict[str, Any], backend: str) -> dict[str, Any]:
    torch.manual_seed(0)
    images = torch.randn(1, 3, size, size)
    ours = create_model(f"vit_base_patch{PATCH}_224", image_size=size, num_classes=10, **shape).eval()
    usual = _transformers_vit(size, shape)
    layout = token_layout(ours, (size, size), (size // PATCH) ** 2 + 1)
    ways: dict[str, Callable[[], Any]] = {
        "plain": torch.no_grad()(partial(ours, images)),
        "streamed": partial(mean_attention_distance, ours, images, backend=backend),
        "maps": partial(map_distance, usual, images, layout),
    }
    if backend == "compiled":
        ways["streamed"]()  # compiles, which takes memory of its own
    peaks = {name: peak_memory(way, images.device) for name, way in ways.items()}
    times = time_interleaved(ways, turns, "cpu", seed=f"side {size}")
    wall, processor = (
        {name: quartiles([getattr(each, clock) for each in found]) for name, found in times.items()}
        for clock in Seconds._fields
    )

    def ratio(ours: str, theirs: str, clock: str) -> dict[str, float]:
        return quartiles(speedups(times[ours], times[theirs], clock))

    return {
        "side": size,
        "tokens": layout.num_patches + layout.num_prefix,
        "seconds": wall,
        "processor_seconds": processor,
        "bytes": peaks,
        "times_as_fast_as_maps": ratio("streamed", "maps", "wall"),
        "times_less_processor": ratio("streamed", "maps", "processor"),
        "times_less_memory": round(peaks["maps"] / peaks["streamed"], 1),
        "times_a_plain_pass": ratio("plain", "streamed", "wall"),
        "times_a_plain_pass_processor": ratio("plain", "streamed", "processor"),
        "largest_relative_difference": _difference(usual, images, layout, backend),
    }


def map_distance(model: nn.Module, images: Tensor, layout: TokenLayout) -> Tensor:
    """Compute the renormalised distance of each head, l h, from all maps of a model of transformers."""
    with torch.no_grad():
        maps = model(images, output_attentions=True).attentions  # l of b h N N
    places = layout.coordinates()[layout.num_prefix :]
    table = torch.cdist(places, places, compute_mode="donot_use_mm_for_euclid_dist")
    rows = []
    for weights in maps:
        on_patches = weights[:, :, layout.num_prefix :, layout.num_prefix :]
        distances = (on_patches * table).sum(dim=-1) / on_patches.sum(dim=-1)  # b h n
        rows.append(distances.mean(dim=(0, 2)))
    return torch.stack(rows)


def _difference(model: nn.Module, images: Tensor, layout: TokenLayout, backend: str) -> float:
    """Compare both ways on one model: the distances are streamed from the same model that gives the maps."""
    kept = map_distance(model, images, layout)
    streamed = mean_attention_distance(model, images, backend=backend).pixels
    return float((streamed - kept).abs().max() / kept.abs().max())


def _transformers_vit(size: int, shape: dict[str, Any]) -> nn.Module:
    from transformers import ViTConfig, ViTModel

    settings = ViTConfig(
        image_size=size,
        patch_size=PATCH,
        hidden_size=shape["width"],
        num_hidden_layers=shape["depth"],
        num_attention_heads=shape["num_heads"],
        intermediate_size=4 * shape["width"],
        attn_implementation="eager",  # type: ignore[call-arg]
    )
    model: nn.Module = ViTModel(settings, add_pooling_layer=False).eval()
    return model
