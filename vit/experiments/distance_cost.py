"""What the attention distance of a whole model costs: streamed through capture, against keeping the maps, in one run.

The usual way asks transformers' ViT for `output_attentions=True`, which computes attention eagerly and keeps the map of
every layer, and then makes the distances of them. Ours is the same architecture in this package. Both have random
weights and one image. Memory is the most that is alive at once beside the weights, counted by tensors.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from vit.analysis.attention_distance import mean_attention_distance
from vit.analysis.tokens import TokenLayout, token_layout
from vit.config import check, check_positive
from vit.evaluation.memory import TENSOR_METER, LiveTensors, storages
from vit.experiments.absent import check_installed
from vit.experiments.turns import Seconds, machine, spread, time_in_turns, times_as_fast
from vit.hub import create_model

PATCH = 16


def bench_distance(
    sizes: Sequence[int] = (224, 512, 1024), *, turns: int = 1, width: int = 768, depth: int = 12, num_heads: int = 12
) -> dict[str, Any]:
    """Seconds and bytes of the plain pass, of ours and of the maps, and the largest difference, for each image side.

    ValueError for a side that patches of 16 do not divide, and without transformers.
    """
    check_installed("transformers")
    check(turns >= 1, "--turns", turns, "it must be at least 1")
    for size in sizes:
        check_positive("--sizes", size)
        check(size % PATCH == 0, "--sizes", size, f"patches of {PATCH} must divide it")
    rows = [_compare(size, turns, {"width": width, "depth": depth, "num_heads": num_heads}) for size in sizes]
    return {
        "machine": machine("cpu", ("transformers",)),
        "architecture": {"width": width, "depth": depth, "num_heads": num_heads, "patch": PATCH},
        "sizes": rows,
        "turns": turns,
        "conventions": "seconds, ratios: of one image; median and quartiles of the turns, ratios taken within a turn, "
        f"processor: of all threads of the process; bytes: {TENSOR_METER}; difference: of the streamed distances from "
        "those of the maps of the same model, relative to the largest",
    }


def _compare(size: int, turns: int, shape: dict[str, Any]) -> dict[str, Any]:
    torch.manual_seed(0)
    images = torch.randn(1, 3, size, size)
    ours = create_model(f"vit_base_patch{PATCH}_224", image_size=size, num_classes=10, **shape).eval()
    usual = _transformers_vit(size, shape)
    layout = token_layout(ours, (size, size), (size // PATCH) ** 2 + 1)
    ways: dict[str, Callable[[], Any]] = {
        "plain": partial(_plain, ours, images),
        "streamed": partial(mean_attention_distance, ours, images),
        "maps": partial(map_distance, usual, images, layout),
    }
    weights = {*storages(ours), *storages(usual)}
    peaks = {name: _peak(way, weights) for name, way in ways.items()}
    times = time_in_turns(ways, turns, "cpu", draw=f"side {size}")
    wall, processor = (
        {name: spread([getattr(each, clock) for each in found]) for name, found in times.items()}
        for clock in Seconds._fields
    )

    def ratio(ours: str, theirs: str, clock: str) -> dict[str, float]:
        return spread(times_as_fast(times[ours], times[theirs], clock))

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
        "largest_relative_difference": _difference(usual, images, layout),
    }


def _plain(model: nn.Module, images: Tensor) -> None:
    with torch.no_grad():
        model(images)


def map_distance(model: nn.Module, images: Tensor, layout: TokenLayout) -> Tensor:
    """The usual way: all maps of a model of transformers, then the renormalised distance of each head, l h."""
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


def _difference(model: nn.Module, images: Tensor, layout: TokenLayout) -> float:
    """Of the two ways on one model: what is streamed is captured from the very model that gives the maps."""
    kept, streamed = map_distance(model, images, layout), mean_attention_distance(model, images).pixels
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


def _peak(work: Callable[[], object], known: set[int]) -> int:
    with LiveTensors(set(known)) as meter:
        work()
    return meter.peak
