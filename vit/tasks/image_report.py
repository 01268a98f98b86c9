"""The part of `Report` that all tasks on images share: data, copies in the test set, costs."""

from __future__ import annotations

from functools import cached_property
from typing import Any

import torch

from vit.data.file_source import FileSource
from vit.data.identity import notes_of_copies
from vit.data.images import Split, open_test
from vit.engine import device_memory, precision_of
from vit.evaluation.cost import multiply_adds, training_memory
from vit.models import ResNet, build_model
from vit.models.zoo import architecture_overrides
from vit.tasks.images import ImageTask
from vit.wording import in_giga

MOST_COMPARED = 30_000
"""Images whose files are compared before or after training; more would take longer than a minute or two."""


class ImageReport:
    """The data and costs of a task on images, for the header, the plan and the summary."""

    training_only = "patch dropout"
    """The reason for which an image costs other multiply-adds in a training step than in an evaluation."""

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
        """Lines for the user about the images, about memory where there is too little, and about test images that are
        trained on, as far as their files say it before anything is trained.
        """
        copies: list[str] = []
        if (test := self.early_test) is not None:
            copies = notes_of_copies(test, self._task.train_split, self._task.val_split, most=MOST_COMPARED)
        return [*self._task.data_notes, *self._notes_of_memory(), *copies]

    @cached_property
    def early_test(self) -> Split | None:
        """The names of the test set's files; no image is read. None where it cannot be opened yet: it can come later
        than training begins, and is checked then.
        """
        if not isinstance(self._task.train_split.source, FileSource):
            return None
        try:
            return open_test(self._task.config.data)
        except (OSError, ValueError):
            return None

    def _notes_of_memory(self) -> list[str]:
        accelerator = self._task.accelerator
        on_device = accelerator.num_processes if accelerator.device.type == "cpu" else 1
        needed = on_device * sum(self._memory.values())
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
        parts = ", ".join(f"{name} {size / 2**20:.0f}" for name, size in self._memory.items())
        memory = f"about {sum(self._memory.values()) / 2**20:.0f} MiB a process ({parts}), "
        memory += "and 1 GiB or more for libraries and temporaries"
        return self._arithmetic() | {"memory": memory if self._memory else "not known: the model cannot be traced"}

    def _arithmetic(self) -> dict[str, str]:
        """Multiply-adds of an image in training, where they are not those of an evaluation, and of all steps."""
        config, loader, an_image = self._task.config, self._task.train_loader, self._training_multiply_adds()
        passes = 1 if config.model.freeze_backbone else 3  # backward is twice forward
        operations = 2 * passes * an_image * config.train.epochs * loader.samples_per_epoch
        total = f"{operations / 1e15:.4g} PFLOP (forward and backward, 2 operations a multiply-add)"
        why = "; ".join(self._why_training_differs())
        own = {"multiply-adds in training": f"{in_giga(an_image)} forward, mean over the epochs: {why}"} if why else {}
        return own | {"training arithmetic": total}

    def _why_training_differs(self) -> list[str]:
        augment, size = self._task.train_loader.augment, self._task.preprocessing.image_size
        reasons = {
            f"{augment.views} views of an image": augment.views > 1,
            "growing images": len(augment.epochs_by_size(self._task.config.train.epochs)) > 1,
            self.training_only: self._step_multiply_adds(size) != self._multiply_adds(size),
        }
        return [reason for reason, holds in reasons.items() if holds]

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
        """Bytes by what they hold, in one process. Empty for a model that cannot be traced: it trains all the same."""
        task, train = self._task, self._task.config.train
        images = min(task.config.data.batch_size, task.train_loader.samples_per_epoch)
        in_a_step = task.train_loader.augment.views * images
        try:
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
        except (NotImplementedError, RuntimeError, ValueError):
            return {}
        if (images := task.train_loader.loader.bytes_on_device()) > 0:
            parts["images"] = images
        if task.teacher is not None:
            parts["teacher"] = sum(tensor.nbytes for tensor in task.teacher.state_dict().values())
        return parts


def notes_of_broken(summary: dict[str, Any]) -> list[str]:
    """A line about images that were left out, by the numbers of a run's summary."""
    parts = {"training": "train", "test": "test"}
    numbers = {part: (summary.get(f"{key}.n_broken", 0), summary.get(f"{key}.n_total")) for part, key in parts.items()}
    texts = [f"{broken:,.0f} of {total:,.0f} {part} images" for part, (broken, total) in numbers.items() if broken]
    return [f"{' and '.join(texts)} could not be read and were left out"] if texts else []
