"""`vit eval` of a masked autoencoder: losses, neighbours and pictures of a test set; and its frozen features."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict
from functools import partial
from typing import Any

from vit.config import check
from vit.data.images import fingerprint, open_test, open_training, place_name
from vit.data.loading import EvalLoader
from vit.data.splits import balanced_subset
from vit.engine import make_accelerator
from vit.evaluation.transfer_evaluation import CONVENTIONS as TRANSFER_CONVENTIONS
from vit.evaluation.transfer_evaluation import judge_model, loses_no_transfer, open_transfer_data
from vit.hub import open_model
from vit.hub.run_checkpoint import read_run
from vit.models import VisionTransformer
from vit.models.masked_autoencoder import DecoderConfig, MaskedAutoencoder
from vit.runs import keep_earlier, write_json
from vit.tasks.masked_autoencoder.config import MaskedAutoencoderRun
from vit.tasks.masked_autoencoder.metrics import Meter
from vit.tasks.masked_autoencoder.report import measure
from vit.tasks.task import EvalRequest


def evaluate(request: EvalRequest, config: MaskedAutoencoderRun) -> dict[str, Any]:
    """Evaluate on the test set, store metrics and pictures, and return the metrics.

    The neighbours are training images of the run's data. ValueError for another image size, and for more than one
    process with frozen features.
    """
    rule = "patches are hidden at the size of training; leave it out"
    check(request.image_size is None, "--image_size", request.image_size, rule)
    rule = "pixels are restored in floating point; leave it out"
    check(request.dtype == "auto", "--dtype", request.dtype, rule)
    accelerator = make_accelerator(config.device, config.train.precision)
    if request.transfer and accelerator.num_processes > 1:
        raise ValueError("--transfer: the frozen features are judged by one process; leave out accelerate launch")
    opened = open_model(request.checkpoint, select=request.select, weights=request.weights)
    assert isinstance(opened.model, VisionTransformer)
    tensors, state = read_run(request.checkpoint, request.select, request.weights)
    autoencoder = MaskedAutoencoder(opened.model, DecoderConfig(**state["task"]["decoder"]))
    autoencoder.load_state_dict(tensors)
    images = open_transfer_data(config.data, request.transfer) if request.transfer else None
    train, _ = open_training(config.data)
    place = {"rank": accelerator.process_index, "world_size": accelerator.num_processes}
    neighbours = balanced_subset(train, config.mae.knn_images, stream="neighbours")
    meter = Meter(accelerator, config.mae, EvalLoader(neighbours, opened.preprocessing, config.data, **place))
    split = images.test if images else open_test(config.data)
    loader = EvalLoader(split, opened.preprocessing, config.data, **place)
    result = measure(meter, accelerator.prepare(autoencoder), loader, config.data)
    metrics: dict[str, Any] = {"loss": result.loss, "knn": result.knn, "n_seen": result.num_images}
    if request.transfer and images:
        metrics |= judge_model(opened, images, request.transfer, request.folder, accelerator).summary()
    if accelerator.is_main_process:
        request.folder.mkdir(parents=True, exist_ok=True)
        part = request.transfer.suffix if request.transfer else ""
        stem = f"{place_name(config.data)}_{request.chosen}_{request.weights}{part}"
        if request.transfer:
            metrics["transfer_options"] = asdict(request.transfer)
        kept = keep_earlier(
            request.folder,
            stem,
            [f"{stem}{ending}" for ending in (".json", "_reconstructions.png", "_reconstructions.json")],
            partial(_is_same, state["progress"]["step"], metrics),
        )
        metrics["notes"] = [f"an earlier evaluation, made otherwise, is kept in {kept}"] if kept else []
        result.pictures.save(request.folder / f"{stem}_reconstructions.png")
        record = {
            "checkpoint": str(request.checkpoint),
            "step": state["progress"]["step"],
            "data": {"name": config.data.name, "root": config.data.root, "fingerprint": fingerprint(split)},
            **metrics,
            "conventions": TRANSFER_CONVENTIONS if request.transfer else {},
        }
        write_json(request.folder / f"{stem}.json", record)
        metrics["file"] = str(request.folder / f"{stem}.json")
    accelerator.wait_for_everyone()
    return metrics


def _is_same(step: int, metrics: Mapping[str, Any], before: dict[str, Any]) -> bool:
    """Whether an earlier evaluation gave the same results, but for rounding, and has none that this one lacks."""
    same = [before["step"], before["n_seen"]] == [step, metrics["n_seen"]]
    same &= all(math.isclose(before[name], metrics[name], rel_tol=1e-3, abs_tol=1e-4) for name in ("loss", "knn"))
    return same and loses_no_transfer(before, metrics.get("transfer_options"))
