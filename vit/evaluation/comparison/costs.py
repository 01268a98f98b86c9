"""What each of the compared models takes: time, measured in turns, and memory. Parameters and multiply-adds: `cost`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from accelerate import Accelerator

from vit.evaluation.comparison.contestants import Contestant
from vit.evaluation.memory import inference_memory
from vit.evaluation.speed import CONVENTIONS, Timed, speeds_in_turns

TURNS = 5


def measured_costs(contestants: Sequence[Contestant], accelerator: Accelerator, batch_size: int) -> dict[str, Any]:
    """`models` (name → images/s and peak bytes at `batch_size`), and the `conventions` of both.

    All models are on the device at once, so that their turns can alternate.
    """
    device, autocast = accelerator.device, accelerator.autocast
    timed = {each.name: Timed(each.model.to(device), each.preprocessing.image_size) for each in contestants}
    speeds = speeds_in_turns(timed, batch_size=batch_size, device=device, autocast=autocast, turns=TURNS)
    memory = {
        name: inference_memory(one.model, one.image_size, batch_size=batch_size, device=device, autocast=autocast)
        for name, one in timed.items()
    }
    for one in timed.values():
        one.model.to("cpu")
    precision = {"no": "fp32"}.get(accelerator.mixed_precision, accelerator.mixed_precision)
    where = f"batches of {batch_size} on {device.type}, precision {precision}"
    meter = next(iter(memory.values())).meter
    return {
        "models": {
            name: {
                "images_per_second": speed.median,
                "images_per_second_range": [speed.slowest, speed.fastest],
                "peak_bytes": memory[name].total,
            }
            for name, speed in speeds.items()
        },
        "conventions": CONVENTIONS | {"measured": f"{TURNS} turns, {where}", "peak_memory": f"bytes; meter: {meter}"},
    }
