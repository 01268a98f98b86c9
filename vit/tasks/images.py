"""The parts of `Task` and `Report` that all tasks on images share: data, model, loaders, costs."""

from __future__ import annotations

import logging
import math
from abc import ABC, abstractmethod
from dataclasses import asdict, replace
from functools import cached_property
from typing import Any, ClassVar, Generic, TypeVar

import torch
from torch import Tensor, nn

from vit.config import ImageRun, Preprocessing, check
from vit.data.augment import Augment
from vit.data.augmented import AugmentedBatch, AugmentingLoader, UnaugmentedBatch
from vit.data.folders import FileSource
from vit.data.images import Split, fingerprint
from vit.data.loading import EvalLoader, TrainLoader
from vit.data.streaming import canvas_size
from vit.engine import Accelerator, device_memory, gather_object, gather_uneven, precision_of
from vit.evaluation.cost import multiply_adds, training_memory
from vit.hub import OpenedModel, load_model
from vit.models import Classifier, ResNet, VisionTransformer, build_model, config_from_dict, config_to_dict
from vit.models.model import Model
from vit.models.zoo import architecture_overrides
from vit.stopwatch import Timer, untimed
from vit.tasks.task import TaskInfo
from vit.wording import in_giga

Run = TypeVar("Run", bound=ImageRun)
logger = logging.getLogger(__name__)
_FEWEST_NORMALIZED = 2
"""Images in a micro-batch of a ResNet, which normalises over it: one image, or a stand-in, gives no statistics."""


class ImageTask(ABC, Generic[Run]):
    """The part of a `Task` that all tasks on images share. ValueError for any setting that cannot be honoured."""

    metric: str
    has_accuracy = False
    higher_is_better = True
    accuracies: ClassVar[tuple[str, ...]] = ()
    fewest_in_step: ClassVar[int] = 0
    """A last step of fewer images joins the one before."""
    cuts_steps: ClassVar[bool] = True
    """A step may be cut into micro-batches."""
    augmentation: ClassVar[type[Augment]] = Augment

    def __init__(self, config: Run, accelerator: Accelerator, timer: Timer = untimed) -> None:
        self.config = config
        self.accelerator = accelerator
        with timer("open the data"), accelerator.main_process_first():  # it downloads, where that is asked for
            self.train_split, self.val_split = self.open_splits()
        source = self.train_split.source
        self.class_names, self.data_notes = source.class_names, source.notes if isinstance(source, FileSource) else ()
        with timer("fingerprint of the data"):
            fingerprints = f"{fingerprint(self.train_split)}+{fingerprint(self.val_split)}"
        with timer("model"):
            loaded = load_model(config.model, num_classes=self.num_outputs, at_stated_size=True)
        self._check_classes(loaded)
        self.backbone: Classifier = loaded.model
        self.config = following_weights(config, loaded)
        self.preprocessing = self.config.data.preprocessing(self.backbone.config.image_size)
        if config.data.mean is not None or config.data.std is not None:
            check_normalization(self.preprocessing, loaded, str(config.model.pretrained))
        report = [] if loaded.report is None else [loaded.report.summary()]
        self.info = TaskInfo(
            model_name=config.model.name or str(config.model.pretrained),
            dataset=config.data.name,
            fingerprint=fingerprints,
            unit="images",
            metric=self.metric,
            higher_is_better=self.higher_is_better,
            has_accuracy=self.has_accuracy,
            accuracies=self.accuracies,
            notes=[*report, *notes_of_unknown_normalization(config, loaded)],
            from_weights=decided_by_weights(config, loaded),
            images=(self.train_split, self.val_split),
        )
        steps = self._step_loader()  # whatever is wrong with its settings is said before a teacher is loaded
        self.val_loader = self.eval_loader(self.val_split)
        self.teacher = self.load_teacher()
        self.train_loader = AugmentingLoader(steps, self._augment(), seed=config.seed)

    @property
    def model(self) -> Model:
        """The backbone itself, or what a task trains around it."""
        return self.backbone

    @property
    def num_outputs(self) -> int:
        """Width of the backbone's head; 0: it has none."""
        return len(self.class_names)

    @abstractmethod
    def open_splits(self) -> tuple[Split, Split]:
        """(train, validation). ValueError where there is no test set either."""

    def load_teacher(self) -> nn.Module | None:
        """A model that sees the student's images."""
        return None

    @property
    def _place(self) -> dict[str, int]:
        return {"rank": self.accelerator.process_index, "world_size": self.accelerator.num_processes}

    def eval_loader(self, split: Split) -> EvalLoader:
        return EvalLoader(split, self.preprocessing, self.config.data, **self._place)

    def gather(self, values: Tensor) -> Tensor:
        """The rows of all processes."""
        return gather_uneven(self.accelerator, values)

    def prepare(self, batch: UnaugmentedBatch, device: torch.device) -> AugmentedBatch:
        return batch.augmented(device)

    def sample_name(self, index: int) -> str:
        return self.train_split.source.name(index)

    def broken_images(self) -> list[str]:
        """Names of the training images that could not be decoded so far; every process calls it."""
        names = self.train_loader.loader.broken_names
        return names if self.accelerator.num_processes == 1 else sorted(set(gather_object(names)))

    def state(self) -> dict[str, Any]:
        return {
            "model": config_to_dict(self.backbone.config),
            "preprocessing": asdict(self.preprocessing),
            "class_names": self.class_names,
            "broken": self.broken_images(),
        }

    def load_state(self, state: dict[str, Any]) -> None:
        """ValueError where the state is not that of a run with these settings and images."""
        own = self.state()
        stored: dict[str, Any] = {
            key: tuple(v) if isinstance(v, list) else v for key, v in state["preprocessing"].items()
        }
        same = {
            "model": config_from_dict(state["model"]) == config_from_dict(own["model"]),
            "preprocessing": Preprocessing(**stored) == self.preprocessing,
            "class_names": list(state["class_names"]) == list(own["class_names"]),
        }
        for name in (name for name, is_same in same.items() if not is_same):
            raise ValueError(f"task.{name} is not what the settings make")
        self.train_loader.loader.restore_broken(state["broken"])

    def check_readable(self) -> None:
        """ValueError, in every process, for a class whose training images are all broken, as far as they were read."""
        names = set(self.broken_images())
        labels = self.train_split.labels
        if not names or labels.dim() != 1:
            return
        broken = [self.sample_name(index) in names for index in self.train_split.indices.tolist()]
        intact = torch.bincount(labels[~torch.tensor(broken)], minlength=len(self.class_names))
        for label in torch.nonzero(intact == 0).flatten().tolist():
            count = int((labels == label).sum())
            raise ValueError(
                f"data.root: class {self.class_names[label]!r} has no readable training image; "
                f"{'the only one is' if count == 1 else f'all {count} are'} broken: repair them, or remove the class"
            )

    def _check_classes(self, loaded: OpenedModel[Classifier]) -> None:
        """ValueError for weights whose head is of other classes than the data's, unless it is replaced."""
        model = self.config.model
        replaced = not loaded.class_names or model.new_head or not self.num_outputs
        rule = f"the classes of {model.pretrained} are not the data's; set model.new_head true to train a new head"
        check(replaced or loaded.class_names == self.class_names, "model.new_head", model.new_head, rule)

    def _step_loader(self) -> TrainLoader:
        """Steps of images as they are on disk. ValueError where a ResNet's micro-batch would be too small."""
        config, normalizes = self.config, isinstance(self.backbone, ResNet) and self.backbone.config.version == 1
        loader = TrainLoader(
            self.train_split,
            config.data,
            config.augment,
            image_size=self.preprocessing.image_size,
            seed=config.seed,
            accumulation_steps=config.train.accumulation_steps,
            device=self.accelerator.device,
            fewest=_FEWEST_NORMALIZED if normalizes else 0,
            fewest_in_step=self.fewest_in_step,
            **self._place,
        )
        rule = (
            "the last step of an epoch, cut into train.accumulation_steps × processes, gives a micro-batch of "
            f"{loader.smallest_chunk} images, too few for a ResNet's BatchNorm; "
            "take another batch size or fewer accumulation steps"
        )
        enough = not normalizes or loader.smallest_chunk >= _FEWEST_NORMALIZED
        check(enough, "data.batch_size", config.data.batch_size, rule)
        return loader

    def _augment(self) -> Augment:
        """ValueError for sizes of growing images, or padding, that do not go with the model's."""
        config, preprocessing = self.config, self.preprocessing
        patch_size = common_patch(self.backbone, *([] if self.teacher is None else [self.teacher]))
        augment = self.augmentation(config.augment, preprocessing, len(self.class_names), patch_size=patch_size)
        if config.augment.crop == "pad":
            augment.check_canvas(canvas_size(self.train_split, config.data, preprocessing.image_size))
        return augment


def notes_of_broken(summary: dict[str, Any]) -> list[str]:
    """A line about images that were left out, by the numbers of a run's summary."""
    parts = {"training": "train", "test": "test"}
    numbers = {part: (summary.get(f"{key}.n_broken", 0), summary.get(f"{key}.n_total")) for part, key in parts.items()}
    texts = [f"{broken:,.0f} of {total:,.0f} {part} images" for part, (broken, total) in numbers.items() if broken]
    return [f"{' and '.join(texts)} could not be read and were left out"] if texts else []


def common_patch(*models: nn.Module) -> tuple[int, int]:
    """Height and width that divide the sides of every image size that all the models take."""
    sizes = [model.config.patch_size for model in models if isinstance(model, VisionTransformer)]
    height, width = (math.lcm(*sides) for sides in zip(*sizes, strict=True)) if sizes else (1, 1)
    return height, width


def following_weights(config: Run, loaded: OpenedModel[Classifier]) -> Run:
    """The settings of the images that pretrained weights decide, where they are not set: mean, spread and size.

    Without weights, or where these do not say it, mean and spread are those of every setting that is left out.
    """
    stated = loaded.stated_preprocessing or config.data.preprocessing(loaded.model.config.image_size)
    data = replace(config.data, mean=config.data.mean or stated.mean, std=config.data.std or stated.std)
    model = config.model
    if model.pretrained is not None and model.name is None and model.image_size is None:
        model = replace(model, image_size=loaded.model.config.image_size)
    return replace(config, data=data, model=model)


def decided_by_weights(config: ImageRun, loaded: OpenedModel[Classifier]) -> list[str]:
    """The names of the settings that `following_weights` takes from pretrained weights."""
    if config.model.pretrained is None:
        return []
    unset = {"data.mean": config.data.mean is None, "data.std": config.data.std is None}
    left = [name for name, is_left in unset.items() if is_left and loaded.stated_preprocessing is not None]
    return [*left, *(["model.image_size"] if config.model.name is None and config.model.image_size is None else [])]


def notes_of_unknown_normalization(config: ImageRun, loaded: OpenedModel[Classifier]) -> list[str]:
    """A line where neither the settings nor the pretrained weights say how pixels are normalised."""
    name, data = config.model.pretrained, config.data
    if name is None or loaded.stated_preprocessing is not None or (data.mean is not None and data.std is not None):
        return []
    why = loaded.unsupported_preprocessing or f"{name} does not say how its images were normalised"
    return [f"{why}: data.mean and data.std are taken to be 0.5"]


def check_normalization(preprocessing: Preprocessing, loaded: OpenedModel, name: str) -> None:
    """ValueError for weights that were made for another mean or spread of the pixels; a warning where the weights state
    them in a way that cannot be read.
    """
    if loaded.stated_preprocessing is None:
        if loaded.unsupported_preprocessing:
            reason = loaded.unsupported_preprocessing
            logger.warning("data.mean and data.std are not compared with those of %s: %s", name, reason)
        return
    for field in ("mean", "std"):
        theirs, ours = getattr(loaded.preprocessing, field), getattr(preprocessing, field)
        same = all(abs(a - b) < 1e-4 for a, b in zip(theirs, ours, strict=True))
        check(same, f"data.{field}", ours, f"{name} was trained with {theirs}; set data.{field} to it")


class ImageReport:
    """The part of a `Report` that all tasks on images share: costs."""

    def __init__(self, task: ImageTask[Any]) -> None:
        self._task = task

    def costs(self) -> dict[str, Any]:
        """The summary's numbers about the model and the training images; every process calls it."""
        return {
            "gmacs": self._multiply_adds(self._task.preprocessing.image_size) / 1e9,
            "train.gmacs": self._training_multiply_adds() / 1e9,
            "train.n_total": len(self._task.train_split),
            "train.n_broken": len(self._task.broken_images()),
            "data.notes": "; ".join(self._task.data_notes),
        }

    def notes(self) -> list[str]:
        """Lines for the user about the images, and about memory where there is too little."""
        return [*self._task.data_notes, *self._notes_of_memory()]

    def _notes_of_memory(self) -> list[str]:
        accelerator = self._task.accelerator
        on_device = accelerator.num_processes if accelerator.device.type == "cpu" else 1
        try:
            needed = on_device * sum(self._memory.values())
        except (NotImplementedError, RuntimeError, ValueError):  # a model that cannot be traced trains all the same
            return []
        there = device_memory(accelerator.device)
        if needed <= there:
            return []
        cut = "raise train.accumulation_steps, " if self._task.cuts_steps else ""
        remedy = f"lower data.batch_size or model.image_size, {cut}or set "
        return [
            f"training needs about {needed / 2**30:.0f} GiB, and this {accelerator.device.type} has "
            f"{there / 2**30:.0f}; {remedy}train.gradient_checkpointing true"
        ]

    def num_test_images(self) -> int | None:
        """None where the test set is not opened before training."""
        return None

    def describe(self) -> dict[str, str]:
        task, size = self._task, self._task.preprocessing.image_size
        first = task.train_loader.augment.image_size(0)
        grows = f" (the first epoch's {first})" if first != size else ""
        given = architecture_overrides(task.config.model)
        changed = [f"{name} {value}" for name, value in given.items() if name != "image_size"]
        shape = f" with {', '.join(changed)}" if changed else ""
        head = f"{task.num_outputs} classes" if task.num_outputs else "no head"
        test = self.num_test_images()
        to_test = "" if test is None else f", {test:,} to test"
        products = "" if isinstance(task.model, ResNet) else ", attention's products included"
        return {
            "model": f"{task.info.model_name}{shape}, image {size}{grows}, {head}",
            "multiply-adds an image": f"{in_giga(self._multiply_adds(size))} forward{products}",
            "images": f"{len(task.train_split):,} to train on, {task.val_loader.num_total:,} to validate{to_test}; "
            f"{task.config.data.batch_size} a step",
            **{("note" if place == 0 else f"note {place + 1}"): note for place, note in enumerate(self.notes())},
        }

    def plan(self, precision: str) -> dict[str, str]:  # noqa: ARG002
        task, config = self._task, self._task.config
        factor = 1 if config.model.freeze_backbone else 3  # backward is twice forward
        samples = task.train_loader.samples_per_epoch
        operations = 2 * factor * self._training_multiply_adds() * config.train.epochs * samples
        parts = ", ".join(f"{name} {size / 2**20:.0f}" for name, size in self._memory.items())
        return {
            "training arithmetic": f"{operations / 1e15:.4g} PFLOP (forward and backward, 2 operations a multiply-add)",
            "memory": f"about {sum(self._memory.values()) / 2**20:.0f} MiB a process ({parts}), "
            "and 1 GiB or more for libraries and temporaries",
        }

    def _training_multiply_adds(self) -> float:
        """The backbone's forward pass of an image, of all its views, a mean over the epochs."""
        epochs = self._task.config.train.epochs
        augment = self._task.train_loader.augment
        sizes = augment.epochs_by_size(epochs)
        return augment.views * sum(self._step_multiply_adds(size) * count for size, count in sizes.items()) / epochs

    def _step_multiply_adds(self, image_size: tuple[int, int]) -> int:
        """The forward pass of one image in a training step."""
        return self._multiply_adds(image_size, patch_dropout=True)

    def _multiply_adds(self, image_size: tuple[int, int], *, patch_dropout: bool = False) -> int:
        """Counted on a model without weights: a forward pass of a sharded one needs every process."""
        with torch.device("meta"):
            meta_model = build_model(self._task.backbone.config)
        return multiply_adds(meta_model, image_size, patch_dropout=patch_dropout)

    @cached_property
    def _memory(self) -> dict[str, int]:
        """Bytes by what they hold, in one process."""
        task, train = self._task, self._task.config.train
        images = min(task.config.data.batch_size, task.train_loader.samples_per_epoch)
        in_a_step = task.train_loader.augment.views * images
        parts = training_memory(
            task.backbone,
            task.preprocessing.image_size,
            batch_size=-(-in_a_step // train.accumulation_steps // task.accelerator.num_processes),
            optimizer=task.config.optim.name,
            precision=precision_of(task.accelerator),
            ema=train.ema_decay is not None,
            gradient_checkpointing=train.gradient_checkpointing,
            device_type=task.accelerator.device.type,
        )
        if (images := task.train_loader.loader.bytes_on_device()) > 0:
            parts["images"] = images
        if task.teacher is not None:
            parts["teacher"] = sum(tensor.nbytes for tensor in task.teacher.state_dict().values())
        return parts
