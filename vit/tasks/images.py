"""The part of `Task` that all tasks on images share: data, model, loaders."""

from __future__ import annotations

import math
from dataclasses import asdict
from typing import Any, ClassVar, Generic, TypeVar

import torch
from torch import Tensor, nn

from vit.config import ImageRun, Preprocessing, check
from vit.data.augment import Augment
from vit.data.augmented import AugmentedBatch, AugmentingLoader, UnaugmentedBatch
from vit.data.file_source import FileSource
from vit.data.images import Split, check_test, fingerprint, open_training
from vit.data.loading import EvalLoader, TrainLoader
from vit.engine import Accelerator, gather_object, gather_uneven, rank_and_world_size
from vit.hub import OpenedModel, load_model
from vit.models import Classifier, VisionTransformer, config_from_dict, config_to_dict
from vit.models.model import Model, normalizes_micro_batches
from vit.stopwatch import Timer, untimed
from vit.tasks.image_weights import (
    check_channel_order,
    check_normalization,
    decided_by_weights,
    following_weights,
    notes_of_unknown_normalization,
)
from vit.tasks.task import TaskInfo

Run = TypeVar("Run", bound=ImageRun)
_FEWEST_NORMALIZED = 2
"""Images in a micro-batch over which a trained BatchNorm normalises: one image, or a stand-in, gives no statistics."""


class ImageTask(Generic[Run]):
    """The part of a `Task` that all tasks on images share. ValueError for any setting that cannot be honoured."""

    metric: str
    metric_is_fraction = False
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
        check_channel_order(self.preprocessing, loaded, str(config.model.pretrained))
        if config.data.mean is not None or config.data.std is not None:
            check_normalization(self.preprocessing, loaded, str(config.model.pretrained))
        report = [] if loaded.report is None else [loaded.report.summary()]
        self.info = TaskInfo(
            model_name=config.model.name or str(config.model.pretrained),
            dataset=config.data.name,
            fingerprint=fingerprints,
            unit="images",
            metric=self.metric,
            metric_is_fraction=self.metric_is_fraction,
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
        self.train_loader = AugmentingLoader(steps, self._make_augment(steps), seed=config.seed)

    @property
    def model(self) -> Model:
        """The backbone itself, or what a task trains around it."""
        return self.backbone

    @property
    def num_outputs(self) -> int:
        """Width of the backbone's head; 0: it has none."""
        return len(self.class_names)

    def open_splits(self) -> tuple[Split, Split]:
        """(train, validation). ValueError where there is no test set either."""
        splits = open_training(self.config.data)
        check_test(self.config.data)
        return splits

    def load_teacher(self) -> nn.Module | None:
        """A model that sees the student's images."""
        return None

    @property
    def _place(self) -> dict[str, int]:
        return rank_and_world_size(self.accelerator)

    def validate_on(self, split: Split) -> None:
        """Validate on these images from now on."""
        self.val_loader = self.eval_loader(split)

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
        config, normalizes = self.config, normalizes_micro_batches(self.backbone)  # a frozen BatchNorm does not
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
        if normalizes:
            fewest = loader.smallest_chunk
            rule = (
                "the last step of an epoch, cut into train.accumulation_steps × processes, gives a micro-batch of "
                f"{fewest} images, too few for a ResNet's BatchNorm; "
                "take another batch size or fewer accumulation steps"
            )
            check(fewest >= _FEWEST_NORMALIZED, "data.batch_size", config.data.batch_size, rule)
        return loader

    def _make_augment(self, loader: TrainLoader) -> Augment:
        """ValueError for sizes of growing images, or padding, that do not go with the model's."""
        config, preprocessing = self.config, self.preprocessing
        patch_size = common_patch(self.backbone, *([] if self.teacher is None else [self.teacher]))
        augment = self.augmentation(config.augment, preprocessing, len(self.class_names), patch_size=patch_size)
        if config.augment.crop == "pad":
            augment.check_canvas(loader.canvas_size)
        return augment


def common_patch(*models: nn.Module) -> tuple[int, int]:
    """Height and width that divide the sides of every image size that all the models take."""
    sizes = [model.config.patch_size for model in models if isinstance(model, VisionTransformer)]
    height, width = (math.lcm(*sides) for sides in zip(*sizes, strict=True)) if sizes else (1, 1)
    return height, width
