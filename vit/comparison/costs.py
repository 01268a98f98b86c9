"""Measured cost of the compared models: inference speed, timed alternately, and peak memory."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from vit.engine import Accelerator, precision_of
from vit.evaluation.memory import inference_memory
from vit.evaluation.speed import CONVENTIONS, TimedModel, interleaved_speeds
from vit.hub import OpenedModel

TURNS = 5


def add_costs(result: dict[str, Any], models: Sequence[OpenedModel], accelerator: Accelerator, batch_size: int) -> None:
    """Add `images_per_second`, its range and `peak_bytes` to each model.

    All models are on the device at once, so that their timings can alternate.
    """
    device, autocast = accelerator.device, accelerator.autocast
    timed = {each.name: TimedModel(each.module_on(device), each.preprocessing.image_size) for each in models}
    speeds = interleaved_speeds(timed, batch_size=batch_size, device=device, autocast=autocast, turns=TURNS)
    memory = {
        name: inference_memory(one.model, one.image_size, batch_size=batch_size, device=device, autocast=autocast)
        for name, one in timed.items()
    }
    for one in timed.values():
        one.model.to("cpu")
    for row in result["models"]:
        speed = speeds[row["name"]]
        row |= {
            "images_per_second": speed.median,
            "images_per_second_range": [speed.slowest, speed.fastest],
            "peak_bytes": memory[row["name"]].total,
        }
    precision = precision_of(accelerator)
    result["conventions"] |= CONVENTIONS | {
        "measured": f"{TURNS} turns, batches of {batch_size} on {device.type}, precision {precision}",
        "peak_memory": f"bytes; meter: {next(iter(memory.values())).meter}",
    }
