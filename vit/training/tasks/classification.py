"""Training an image classifier: which images, which model, what is lost, and how it is judged."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import asdict, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from accelerate import Accelerator
from accelerate.utils import gather_object
from torch import Tensor, nn

from vit.config import ClassificationRun, ModelConfig, Preprocessing, check
from vit.data.augment import Augment
from vit.data.augmented import AugmentedBatch, AugmentedLoader
from vit.data.images import check_test, fingerprint, open_test, open_training
from vit.data.loading import EvalLoader, TrainLoader
from vit.engine import gather_uneven
from vit.evaluation.cost import multiply_adds, training_memory
from vit.evaluation.evaluate import predict
from vit.evaluation.metrics import classification_metrics
from vit.evaluation.predictions import Predictions
from vit.hub import LoadedModel, load_model
from vit.models import Classifier, ResNet, VisionTransformer, build_model, config_to_dict
from vit.randomness import SampleRandom
from vit.training.interruption import NonFinite
from vit.training.tasks.losses import Teacher, target_losses
from vit.training.tasks.task import Goal


class Classification:
    """The `Task` of a `ClassificationRun`. ValueError for any setting that cannot be honoured."""

    unit = "images"
    counts_hits = True
    goal = Goal("top1")

    def __init__(self, config: ClassificationRun, accelerator: Accelerator) -> None:
        self.config = config
        self.accelerator = accelerator
        with accelerator.main_process_first():  # it downloads, where that is asked for
            self.train_split, self.val_split = open_training(config.data)
            check_test(config.data)
        self.class_names = self.train_split.source.class_names
        self.fingerprint = f"{fingerprint(self.train_split)}+{fingerprint(self.val_split)}"
        loaded = _load_model(config.model, self.class_names)
        self.model: Classifier = loaded.model
        self.dataset = config.data.name
        self.model_name = config.model.name or str(config.model.pretrained)
        self.load_report = loaded.report
        self.preprocessing = config.data.preprocessing(self.model.config.image_size)
        _check_normalization(self.preprocessing, loaded, str(config.model.pretrained))
        self.loader = TrainLoader(
            self.train_split,
            config.data,
            config.augment,
            image_size=self.preprocessing.image_size,
            seed=config.seed,
            accumulation_steps=config.train.accumulation_steps,
            device=accelerator.device,
            **self._place,
        )
        self.val_loader = EvalLoader(self.val_split, self.preprocessing, config.data, **self._place)
        _check_batch_norm(self.model, config, self.loader)
        self.teacher = _load_teacher(config, accelerator, self.preprocessing, self.class_names)
        patch_size = _common_patch(self.model, *([] if self.teacher is None else [self.teacher.model]))
        augment = Augment(config.augment, self.preprocessing, len(self.class_names), patch_size=patch_size)
        self.train_loader = AugmentedLoader(self.loader, augment, seed=config.seed)

    @property
    def _place(self) -> dict[str, int]:
        return {"rank": self.accelerator.process_index, "world_size": self.accelerator.num_processes}

    @property
    def two_heads(self) -> bool:
        """Whether the teacher speaks to a head of its own."""
        return self.teacher is not None and getattr(self.model, "distillation_head", None) is not None

    def notes(self) -> list[str]:
        return [] if self.load_report is None else [self.load_report.summary()]

    def losses(self, model: nn.Module, batch: AugmentedBatch, epoch: int) -> tuple[Tensor, Tensor]:
        """Run the model, compare with the targets and, where there is one, with the teacher."""
        rng = SampleRandom.at(self.config.seed, epoch, batch.positions).fork("model")
        logits = model(batch.images, rng=rng, separate_heads=self.two_heads)
        pupil, distilled = (logits[:, 0], logits[:, 1]) if self.two_heads else (logits, logits)
        losses = target_losses(pupil, batch.targets, self.config.train)
        if self.teacher is not None:
            weight = self.teacher.config.weight
            losses = (1 - weight) * losses + weight * self.teacher.losses(distilled, batch.images)
        return losses, pupil.argmax(dim=1) == batch.targets.argmax(dim=1)

    def names(self, indices: Iterable[int]) -> list[str]:
        return [self.train_split.source.name(index) for index in indices]

    def validate(self, model: nn.Module) -> dict[str, float]:
        predictions = self._predict(model, self.val_loader)
        if not np.isfinite(predictions.logits).all():
            raise NonFinite("the model's answers to validation images are not finite")
        return classification_metrics(predictions)

    def test(self, model: nn.Module) -> Predictions:
        loader = self._test_loader
        return replace(self._predict(model, loader), fingerprint=fingerprint(loader.split))

    @cached_property
    def _test_loader(self) -> EvalLoader:
        """Opened when training is over."""
        return EvalLoader(open_test(self.config.data), self.preprocessing, self.config.data, **self._place)

    def _predict(self, model: nn.Module, loader: EvalLoader) -> Predictions:
        return predict(
            model,
            loader,
            self.class_names,
            device=self.accelerator.device,
            gather=lambda values: gather_uneven(self.accelerator, values),
        )

    def broken_images(self) -> list[str]:
        """Names of the training images that could not be decoded so far; every process must ask."""
        names = self.loader.broken_names
        return names if self.accelerator.num_processes == 1 else sorted(set(gather_object(names)))

    def state(self) -> dict[str, Any]:
        return {
            "model": config_to_dict(self.model.config),
            "preprocessing": asdict(self.preprocessing),
            "class_names": self.class_names,
            "broken": self.broken_images(),
        }

    def recall(self, state: dict[str, Any]) -> None:
        self.loader.recall_broken(state["broken"])

    def summary(self, best: Predictions, last: Predictions) -> dict[str, Any]:
        return {
            "gmacs": self._multiply_adds() / 1e9,
            "train.n_total": len(self.train_split),
            "train.n_broken": len(self.broken_images()),
            **{f"test.{name}": value for name, value in classification_metrics(best).items()},
            "last.test.top1": classification_metrics(last)["top1"],
        }

    def _multiply_adds(self, image_size: tuple[int, int] | None = None) -> int:
        """Counted on a twin without weights: a pass of a sharded model is every process's."""
        with torch.device("meta"):
            twin = build_model(self.model.config)
        return multiply_adds(twin, image_size or self.preprocessing.image_size)

    def write(self, run: Path, best: Predictions, summary: dict[str, Any]) -> None:
        from vit.training.tasks.classification_card import draw_run, model_card

        (run / "predictions").mkdir(exist_ok=True)
        best.save(run / "predictions" / "test.npz")
        draw_run(run, best)
        (run / "README.md").write_text(model_card(run, summary, self.class_names, self.config.model.pretrained))

    def plan(self, precision: str) -> dict[str, str]:
        config, size, macs = self.config, self.preprocessing.image_size, self._multiply_adds()
        factor = 1 if config.model.freeze_backbone else 3  # backward is twice forward
        sizes = [self.train_loader.augment.image_size(epoch) for epoch in range(config.train.epochs)]
        costs = {each: self._multiply_adds(each) for each in set(sizes)}
        operations = 2 * factor * sum(costs[each] for each in sizes) * self.train_loader.samples_per_epoch
        grows = f" (the first epoch's {sizes[0]})" if sizes[0] != size else ""
        return {
            "model": f"{self.model_name}, image {size}{grows}, {len(self.class_names)} classes",
            "multiply-adds an image": f"{macs / 1e9:.4f} G forward, attention's products included",
            "images": f"{len(self.train_split):,} to train on, {self.val_loader.num_total:,} to validate, "
            f"{config.data.batch_size} a step",
            "training arithmetic": f"{operations / 1e15:.4g} PFLOP (forward and backward, 2 operations a multiply-add)",
            "memory": _shown(self._memory(precision)),
        }

    def _memory(self, precision: str) -> dict[str, int]:
        """Bytes by what they hold, in one process."""
        train = self.config.train
        parts = training_memory(
            self.model,
            self.preprocessing.image_size,
            batch_size=self.config.data.batch_size // train.accumulation_steps // self.accelerator.num_processes,
            optimizer=self.config.optim.name,
            precision=precision,
            ema=train.ema_decay is not None,
            gradient_checkpointing=train.gradient_checkpointing,
            device_type=self.accelerator.device.type,
        )
        if (images := self.loader.bytes_on_device()) > 0:
            parts["images"] = images
        if self.teacher is not None:
            parts["teacher"] = sum(tensor.nbytes for tensor in self.teacher.model.state_dict().values())
        return parts


def _shown(parts: dict[str, int]) -> str:
    shown = ", ".join(f"{name} {size / 2**20:.0f}" for name, size in parts.items())
    return f"about {sum(parts.values()) / 2**20:.0f} MiB a process ({shown})"


# ------------------------------------------------------------------ the model


def _load_model(config: ModelConfig, class_names: list[str]) -> LoadedModel:
    """The configured model with its weights, frozen as configured."""
    loaded = load_model(config, num_classes=len(class_names))
    same = loaded.class_names is None or config.new_head or loaded.class_names == class_names
    rule = f"the classes of {config.pretrained} are not the data's; set model.new_head true to train a new head"
    check(same, "model.new_head", config.new_head, rule)
    if config.freeze_backbone:
        heads = tuple(f"{name}." for name in loaded.model.head_names())
        for name, parameter in loaded.model.named_parameters():
            parameter.requires_grad_(name.startswith(heads))
    return loaded


def _common_patch(*models: nn.Module) -> tuple[int, int]:
    """What the sides of an image are multiples of, that all of them take."""
    sizes = [model.config.patch_size for model in models if isinstance(model, VisionTransformer)]
    height, width = (math.lcm(*sides) for sides in zip(*sizes, strict=True)) if sizes else (1, 1)
    return height, width


def _load_teacher(
    config: ClassificationRun, accelerator: Accelerator, preprocessing: Preprocessing, class_names: list[str]
) -> Teacher | None:
    """The frozen teacher, which must know the student's classes and see the student's images."""
    name = config.distill.teacher
    if name is None:
        return None
    rule = "a weights file does not say its architecture; give a run folder or timm:NAME"
    check(not Path(name).is_file(), "distill.teacher", name, rule)
    try:
        loaded = load_model(ModelConfig(pretrained=name))
    except ValueError as error:
        raise ValueError(f"distill.teacher: {str(error).removeprefix('model.pretrained: ')}") from error
    known = loaded.class_names
    num_classes = loaded.model.config.num_classes
    rule = f"it has {num_classes} classes and the data {len(class_names)}"
    check(num_classes == len(class_names), "distill.teacher", name, rule)
    check(known is None or known == class_names, "distill.teacher", name, "its classes are not the data's")
    _check_normalization(preprocessing, loaded, name)
    model = loaded.model.to(accelerator.device).eval().requires_grad_(False)
    return Teacher(model, config.distill)


def _check_normalization(wanted: Preprocessing, loaded: LoadedModel, name: str) -> None:
    """Weights that were made for another mean or spread of the pixels are refused."""
    if loaded.preprocessing is None:
        return
    for field in ("mean", "std"):
        theirs, ours = getattr(loaded.preprocessing, field), getattr(wanted, field)
        same = all(abs(a - b) < 1e-4 for a, b in zip(theirs, ours, strict=True))
        check(same, f"data.{field}", ours, f"{name} was trained with {theirs}; set data.{field} to it")


def _check_batch_norm(model: Classifier, config: ClassificationRun, loader: TrainLoader) -> None:
    """A ResNet normalises over a micro-batch: one image, or a stand-in, has no statistics to speak of."""
    if isinstance(model, ResNet) and loader.smallest_chunk < 2:
        parts = "train.accumulation_steps × processes"
        raise ValueError(
            f"data.batch_size: {config.data.batch_size} is not valid: the last step of an epoch, cut into {parts}, "
            f"gives a micro-batch of {loader.smallest_chunk} images, too few for a ResNet's BatchNorm; "
            "take another batch size or fewer accumulation steps"
        )
