"""`vit eval` of an encoder that was trained without labels: a test set, and the frozen features."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from functools import partial
from typing import Any

from vit.config import ImageRun
from vit.data.file_source import check_outside
from vit.data.images import Split, fingerprint, open_test, open_training, place_name
from vit.data.loading import EvalLoader
from vit.engine import check_one_process, make_accelerator, rank_and_world_size
from vit.evaluation.transfer_evaluation import CONVENTIONS, evaluate_features, loses_no_transfer, open_transfer_data
from vit.hub import open_model
from vit.hub.run_checkpoint import read_run
from vit.runs import keep_earlier, write_json
from vit.tasks.earlier import is_repeated
from vit.tasks.encoder_features import Neighbours, neighbours_among
from vit.tasks.encoder_report import EncoderResult
from vit.tasks.image_evaluation import warnings_and_notes
from vit.tasks.task import EvalRequest


class EncoderEvaluation:
    """`vit eval` of an encoder: what it is made of, and what is kept of it.

    The neighbours are training images of the data that is evaluated. ValueError for more than one process with frozen
    features.
    """

    def __init__(self, request: EvalRequest, config: ImageRun) -> None:
        self.request, self.config = request, config
        self.accelerator = make_accelerator(config.device, config.train.precision)
        if request.transfer:
            check_one_process(self.accelerator, "--transfer", "the frozen features are evaluated")
        self.opened = open_model(request.checkpoint, select=request.select, weights=request.weights)
        self.tensors, self.state = read_run(request.checkpoint, request.select, request.weights)
        self._images = open_transfer_data(config.data, request.transfer) if request.transfer else None
        self.split = self._images.test if self._images else open_test(config.data)
        if request.output_dir is not None:
            check_outside("--output_dir", request.output_dir, self.split.source)
        self.loader = self._eval_loader(self.split)

    def neighbours(self, count: int, setting: str) -> Neighbours:
        train, _ = open_training(self.config.data)
        return Neighbours(self.accelerator, self._eval_loader(neighbours_among(train, count, setting)), setting)

    def _eval_loader(self, split: Split) -> EvalLoader:
        return EvalLoader(split, self.opened.preprocessing, self.config.data, **rank_and_world_size(self.accelerator))

    def store(self, result: EncoderResult, picture: str) -> dict[str, Any]:
        """Write metrics and picture, an earlier evaluation with other numbers aside, and return the metrics."""
        request, step = self.request, self.state["progress"]["step"]
        metrics: dict[str, Any] = {"loss": result.loss, "knn": result.knn}
        metrics |= {"n_seen": result.num_images, "n_total": result.num_total}
        data = self.config.data
        features = None
        if (options := request.transfer) and (images := self._images):
            features = images, evaluate_features(self.opened, images, options, request.folder, self.accelerator)
            metrics |= features[1].summary() | {"transfer_options": asdict(options)}
        metrics |= warnings_and_notes(self.opened, data, self.split, self.accelerator, features=features)
        if self.accelerator.is_main_process:
            request.folder.mkdir(parents=True, exist_ok=True)
            part = request.transfer.suffix if request.transfer else ""
            stem = f"{place_name(data)}_{request.chosen}_{request.weights}{part}"
            files = [f"{stem}{ending}" for ending in (".json", f"_{picture}.png", f"_{picture}.json")]
            if kept := keep_earlier(request.folder, stem, files, partial(_is_same, {"step": step, **metrics})):
                metrics["notes"].append(f"an earlier evaluation, made otherwise, is kept in {kept}")
            result.picture.save(request.folder / f"{stem}_{picture}.png")
            record = {
                "checkpoint": str(request.checkpoint),
                "step": step,
                "data": {"name": data.name, "root": data.root, "fingerprint": fingerprint(self.split)},
                **metrics,
                "conventions": CONVENTIONS if request.transfer else {},
            }
            write_json(request.folder / f"{stem}.json", record)
            metrics["file"] = str(request.folder / f"{stem}.json")
        self.accelerator.wait_for_everyone()
        return metrics


def _is_same(record: Mapping[str, Any], before: dict[str, Any]) -> bool:
    """Whether an earlier evaluation gave the same results, but for rounding, and has none that this one lacks."""
    same = is_repeated(before, record, equal=("step", "n_seen"), close=("loss", "knn"))
    return same and loses_no_transfer(before, record.get("transfer_options"))
