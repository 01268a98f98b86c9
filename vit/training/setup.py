"""From a configuration to everything the loop needs. What can refuse a setting does so before training starts."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
from accelerate import Accelerator
from accelerate.utils import DistributedType, gather_object, is_tensorboard_available
from torch import Tensor, nn
from torch.optim import Optimizer

from vit.config import ModelConfig, Preprocessing, RunConfig, check
from vit.data.augment import Augment
from vit.data.images import Split, check_test, fingerprint, open_training
from vit.data.loading import EvalLoader, TrainLoader
from vit.engine import gather_uneven, has_fast_bf16, make_accelerator
from vit.hub import LoadedModel, load_model
from vit.models import Classifier, ResNet
from vit.training.averaging import WeightAverage
from vit.training.optim import build_optimizers
from vit.training.tasks import Classification, Teacher
from vit.weights.report import LoadReport

log = logging.getLogger(__name__)


@dataclass
class Session:
    """One process's part of a run."""

    config: RunConfig
    run: Path
    accelerator: Accelerator
    model: nn.Module
    """As prepared: wrapped where there are several processes."""
    optimizers: list[Optimizer]
    average: WeightAverage | None
    task: Classification
    train_split: Split
    train_loader: TrainLoader
    val_loader: EvalLoader
    preprocessing: Preprocessing
    class_names: list[str]
    data_fingerprint: str
    load_report: LoadReport | None
    """What became of the pretrained weights, where there were any."""

    @property
    def bare_model(self) -> Classifier:
        return self.accelerator.unwrap_model(self.model)

    @property
    def is_main(self) -> bool:
        return bool(self.accelerator.is_main_process)

    @property
    def model_name(self) -> str:
        return self.config.model.name or str(self.config.model.pretrained)

    @property
    def precision(self) -> str:
        return {"no": "fp32"}.get(self.accelerator.mixed_precision, str(self.accelerator.mixed_precision))

    @property
    def two_heads(self) -> bool:
        """Whether the teacher speaks to a head of its own."""
        return self.task.teacher is not None and bool(getattr(self.bare_model.config, "distillation_token", False))

    @property
    def total_steps(self) -> int:
        return self.config.train.epochs * self.train_loader.steps_per_epoch

    @property
    def total_images(self) -> int:
        return self.config.train.epochs * self.train_loader.images_per_epoch

    @property
    def gather(self) -> Callable[[Tensor], Tensor]:
        return lambda values: gather_uneven(self.accelerator, values)

    def broken_images(self) -> list[str]:
        """Names of the training images that could not be decoded so far; every process must ask."""
        names = self.train_loader.broken_names
        return names if self.accelerator.num_processes == 1 else sorted(set(gather_object(names)))


def prepare(config: RunConfig, run: Path) -> Session:
    """Open the data, build the model and everything around it. ValueError for any setting that cannot be honoured."""
    accelerator = make_accelerator(config.device, config.train.precision, **_trackers(config, run))
    _check_precision(config, accelerator)
    with accelerator.main_process_first():  # it downloads, where that is asked for
        train_split, val_split = open_training(config.data)
        check_test(config.data)
    class_names = train_split.source.class_names
    loaded = _load_model(config, accelerator, class_names)
    preprocessing = _preprocessing(config, loaded)
    train_loader, val_loader = _loaders(config, accelerator, train_split, val_split, preprocessing)
    _check_batch_norm(loaded.model, config, train_loader)
    task = _task(config, accelerator, preprocessing, class_names)
    optimizers = build_optimizers(loaded.model, config.optim, has_fast_bf16(accelerator.device.type))
    model, *optimizers = accelerator.prepare(loaded.model, *optimizers)
    decay = config.train.ema_decay
    return Session(
        config=config,
        run=run,
        accelerator=accelerator,
        model=model,
        optimizers=optimizers,
        average=None if decay is None else WeightAverage(accelerator.unwrap_model(model), decay),
        task=task,
        train_split=train_split,
        train_loader=train_loader,
        val_loader=val_loader,
        preprocessing=preprocessing,
        class_names=class_names,
        data_fingerprint=_fingerprint(train_split, val_split),
        load_report=loaded.report,
    )


def _load_model(config: RunConfig, accelerator: Accelerator, class_names: list[str]) -> LoadedModel:
    """The configured model with its weights, frozen and switched as configured."""
    torch.manual_seed(config.seed)
    loaded = load_model(config.model, num_classes=len(class_names))
    _check_class_names(config.model, loaded, class_names)
    _check_sharding(config, accelerator, loaded.model)
    _freeze(loaded.model, config.model)
    _set_switches(loaded.model, config)
    return loaded


def _loaders(
    config: RunConfig, accelerator: Accelerator, train: Split, val: Split, preprocessing: Preprocessing
) -> tuple[TrainLoader, EvalLoader]:
    place = {"rank": accelerator.process_index, "world_size": accelerator.num_processes}
    train_loader = TrainLoader(
        train,
        config.data,
        config.augment,
        image_size=preprocessing.image_size,
        seed=config.seed,
        accumulation_steps=config.train.accumulation_steps,
        **place,
    )
    return train_loader, EvalLoader(val, preprocessing, config.data, **place)


def _task(
    config: RunConfig, accelerator: Accelerator, preprocessing: Preprocessing, class_names: list[str]
) -> Classification:
    augment = Augment(config.augment, preprocessing, len(class_names))
    teacher = _teacher(config, accelerator, preprocessing, class_names)
    return Classification(augment, config.train, config.seed, teacher)


def _fingerprint(train: Split, val: Split) -> str:
    return f"{fingerprint(train)}+{fingerprint(val)}"


def _trackers(config: RunConfig, run: Path) -> dict[str, object]:
    if not config.train.tensorboard:
        return {}
    rule = "tensorboard is not installed, nothing would be written; install the extra 'tensorboard'"
    check(is_tensorboard_available(), "train.tensorboard", True, rule)
    return {"log_with": "tensorboard", "project_dir": str(run)}


def _preprocessing(config: RunConfig, loaded: LoadedModel) -> Preprocessing:
    """The data section's, at the model's image size."""
    wanted = config.data.preprocessing(loaded.model.config.image_size)
    _check_normalization(wanted, loaded, str(config.model.pretrained))
    return wanted


def _check_normalization(wanted: Preprocessing, loaded: LoadedModel, name: str) -> None:
    """Weights that were made for another mean or spread of the pixels are refused."""
    if loaded.preprocessing is None:
        return
    for field in ("mean", "std"):
        theirs, ours = getattr(loaded.preprocessing, field), getattr(wanted, field)
        same = all(abs(a - b) < 1e-4 for a, b in zip(theirs, ours, strict=True))
        check(same, f"data.{field}", ours, f"{name} was trained with {theirs}; set data.{field} to it")


def _check_class_names(config: ModelConfig, loaded: LoadedModel, class_names: list[str]) -> None:
    """As many classes, but other ones: the old head would give them the wrong meanings."""
    same = loaded.class_names is None or config.new_head or loaded.class_names == class_names
    rule = f"the classes of {config.pretrained} are not the data's; set model.new_head true to train a new head"
    check(same, "model.new_head", config.new_head, rule)


def _check_precision(config: RunConfig, accelerator: Accelerator) -> None:
    check(
        not (accelerator.mixed_precision == "fp16" and config.optim.name == "muon"),
        "train.precision",
        "fp16",
        "Accelerate's loss scaling supports one optimizer and optim.name 'muon' needs two; use bf16",
    )


def _check_sharding(config: RunConfig, accelerator: Accelerator, model: Classifier) -> None:
    """What torch cannot split over processes."""
    if accelerator.distributed_type != DistributedType.FSDP:
        return
    rule = "FSDP was tried with Vision Transformers only; launch without --use_fsdp"
    check(not isinstance(model, ResNet), "model.name", config.model.name, rule)
    rule = "torch's fused SGD does not take the weights that FSDP split; use adamw, or launch without --use_fsdp"
    check(config.optim.name != "sgd", "optim.name", config.optim.name, rule)
    rule = "a compiled model is not split by FSDP here; leave it out, or launch without --use_fsdp"
    check(not config.train.compile, "train.compile", True, rule)


def _freeze(model: Classifier, config: ModelConfig) -> None:
    """Leave only the head trainable."""
    if not config.freeze_backbone:
        return
    heads = tuple(f"{name}." for name in model.head_names())
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(name.startswith(heads))


def set_training_mode(model: nn.Module) -> None:
    """Training mode, in which a frozen BatchNorm keeps its statistics."""
    model.train()
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d) and not module.weight.requires_grad:
            module.eval()


def _check_batch_norm(model: Classifier, config: RunConfig, loader: TrainLoader) -> None:
    """A ResNet normalises over a micro-batch: one image, or a stand-in, has no statistics to speak of."""
    if isinstance(model, ResNet) and loader.smallest_chunk < 2:
        parts = "train.accumulation_steps × processes"
        raise ValueError(
            f"data.batch_size: {config.data.batch_size} is not valid: the last step of an epoch, cut into {parts}, "
            f"gives a micro-batch of {loader.smallest_chunk} images, too few for a ResNet's BatchNorm; "
            "take another batch size or fewer accumulation steps"
        )


def _set_switches(model: Classifier, config: RunConfig) -> None:
    if config.train.gradient_checkpointing:
        rule = "a ResNet's BatchNorm would count every recomputed batch twice"
        check(not isinstance(model, ResNet), "train.gradient_checkpointing", True, rule)
        model.gradient_checkpointing = True
    if config.train.compile:
        model.compile()


def _teacher(
    config: RunConfig, accelerator: Accelerator, preprocessing: Preprocessing, class_names: list[str]
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
