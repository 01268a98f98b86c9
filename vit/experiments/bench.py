"""Speed, measured in turns: this package's training against the usual loop, on the same images, model, batch and dtype.

The usual loop is a `DataLoader` whose workers decode with PIL and augment image by image with torchvision's v2
transforms, around timm's Vision Transformer and torch's optimizer. Both sides train for a number of steps, one after
the other, several times; the ratio of a turn is taken within it, because machines are noisy.

Both sides do the same work a step. A setting that the usual loop has no counterpart of is refused. Two differ in kind,
not in cost: torchvision mixes a whole batch with one ratio, and timm starts from its own weights.
"""

from __future__ import annotations

import itertools
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset, default_collate
from tqdm import tqdm

from vit.config import AugmentConfig, ClassificationRun, Preprocessing, ViTConfig, check
from vit.data.images import Split
from vit.evaluation.cost import count_parameters
from vit.training.interruption import StopRequest
from vit.training.loop import train_step
from vit.training.setup import Session, prepare
from vit.training.state import Progress
from vit.training.tasks.classification import Classification


def bench_training(config: ClassificationRun, steps: int, turns: int, workers: int) -> dict[str, Any]:
    """Images/s of both sides in every turn, and the median of the turns' ratios.

    ValueError for a ResNet and for every other setting that only one of the sides would honour.
    """
    for name, value, least in (("steps", steps, 1), ("turns", turns, 1), ("loader_workers", workers, 0)):
        check(value >= least, f"--{name}", value, f"it must be at least {least}")
    _check_settings(config)
    with tempfile.TemporaryDirectory() as folder:
        session = prepare(config, Path(folder))
        _check_session(session)
        sides = {"vit": _our_steps(session), "usual": _usual_steps(session, workers)}
        for side in sides.values():  # first steps compile, allocate and fill the workers' queues
            _time(side, 3, config.data.batch_size)
        rates: dict[str, list[float]] = {name: [] for name in sides}
        for _ in tqdm(range(turns), desc="turns", disable=None):
            for name, side in sides.items():
                rates[name].append(_time(side, steps, config.data.batch_size))
    ratios = [ours / theirs for ours, theirs in zip(rates["vit"], rates["usual"], strict=True)]
    return {
        "device": session.accelerator.device.type,
        "precision": session.precision,
        "threads": torch.get_num_threads(),
        "batch_size": config.data.batch_size,
        "compile": config.train.compile,
        "images_per_second": {name: [round(rate, 1) for rate in values] for name, values in rates.items()},
        "median": {name: round(statistics.median(values), 1) for name, values in rates.items()},
        "ratios": [round(ratio, 3) for ratio in ratios],
        "median_ratio": round(statistics.median(ratios), 3),
        "conventions": "images/s over a whole step: load, augment, forward, backward, clip, optimizer, average",
    }


def _check_settings(config: ClassificationRun) -> None:
    """What the usual loop does not do would be work of one side only."""
    augment, optim, train = config.augment, config.optim, config.train
    crops = augment.crop == "random_resized"
    allowed: dict[str, tuple[Any, bool, str]] = {
        "augment.policy": (augment.policy, augment.policy != "three_augment", "three_augment"),
        "augment.magnitude": (
            augment.magnitude,
            augment.magnitude == round(augment.magnitude),
            "a part of a magnitude",
        ),
        "augment.magnitude_std": (augment.magnitude_std, augment.magnitude_std == 0, "a spread of magnitudes"),
        "augment.repeats": (augment.repeats, augment.repeats == 1, "repeated augmentation"),
        "data.antialias": (config.data.antialias, config.data.antialias, "resizing without antialiasing"),
        "data.crop_fraction": (config.data.crop_fraction, crops or config.data.crop_fraction == 1, "a centre crop"),
        "optim.name": (optim.name, optim.name in ("adamw", "muon"), "it; use adamw or muon"),
        "optim.layer_decay": (optim.layer_decay, optim.layer_decay == 1, "rates a layer"),
        "train.accumulation_steps": (train.accumulation_steps, train.accumulation_steps == 1, "micro-batches"),
        "train.loss": (train.loss, train.loss == "cross_entropy", "bce"),
        "train.gradient_checkpointing": (True, not train.gradient_checkpointing, "gradient checkpointing"),
        "distill.teacher": (config.distill.teacher, config.distill.teacher is None, "a teacher"),
        "model.freeze_backbone": (True, not config.model.freeze_backbone, "frozen layers"),
    }
    for name, (value, is_allowed, what) in allowed.items():
        check(is_allowed, name, value, f"the usual loop it is compared with does not have {what}")


def _check_session(session: Session) -> None:
    task = _task(session)
    batch_size, num_images = task.config.data.batch_size, len(task.train_split)
    rule = f"only whole batches are timed and there are {num_images} training images"
    check(batch_size <= num_images, "data.batch_size", batch_size, rule)
    check(session.precision != "fp16", "train.precision", "fp16", "the usual loop scales no loss; use bf16 or fp32")
    if session.accelerator.num_processes > 1:
        raise ValueError("accelerate: the usual loop runs in one process; leave out accelerate launch")


def _task(session: Session) -> Classification:
    assert isinstance(session.task, Classification)
    return session.task


def _time(side: Iterator[None], steps: int, batch_size: int) -> float:
    started = time.perf_counter()
    for _ in range(steps):
        next(side)
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    return steps * batch_size / (time.perf_counter() - started)


# ------------------------------------------------------------------ this package


def _our_steps(session: Session) -> Iterator[None]:
    """Whole steps of the training loop, full batches only, epoch after epoch."""
    progress, stop = Progress(), StopRequest()
    session.model.train()
    for epoch in itertools.count():
        progress.epoch = epoch
        for step in session.task.train_loader.epoch(epoch):
            if step.num_samples < _task(session).config.data.batch_size:
                continue
            train_step(session, progress, step, stop)
            progress.step += 1
            if session.average is not None:
                session.average.update(session.bare_model, progress.step)
            yield


# ------------------------------------------------------------------ the usual loop


class _PilImages(Dataset[tuple[Tensor, int]]):
    """Decode and transform one image at a time, as most training scripts do."""

    def __init__(self, split: Split, transform: Callable[[Any], Tensor]) -> None:
        self.split = split
        self.transform = transform

    def __len__(self) -> int:
        return len(self.split)

    def __getitem__(self, row: int) -> tuple[Tensor, int]:
        index = int(self.split.indices[row])
        return self.transform(self.split.source.read(index)), int(self.split.source.labels[index])


def _pil_transform(config: AugmentConfig, preprocessing: Preprocessing) -> Callable[[Any], Tensor]:
    """torchvision v2 transforms with the configured augmentation's meaning."""
    from torchvision.transforms import v2

    parts: list[Any] = []
    if config.crop == "random_resized":
        filter = v2.InterpolationMode(config.interpolation)
        parts.append(v2.RandomResizedCrop(preprocessing.image_size, config.scale, config.ratio, interpolation=filter))
    else:
        parts += _resize_parts(preprocessing)
    if config.crop == "pad":
        parts.append(v2.RandomCrop(preprocessing.image_size, padding=config.pad, padding_mode="reflect"))
    if config.flip:
        parts.append(v2.RandomHorizontalFlip())
    if config.policy == "randaugment":
        parts.append(v2.RandAugment(config.num_ops, round(config.magnitude), num_magnitude_bins=11))
    elif config.policy.startswith("autoaugment"):
        parts.append(v2.AutoAugment(v2.AutoAugmentPolicy(config.policy.removeprefix("autoaugment_"))))
    if config.color_jitter:
        parts.append(v2.ColorJitter(*[config.color_jitter] * 3))
    parts += [v2.PILToTensor(), v2.ToDtype(torch.float32, scale=True)]
    parts.append(v2.Normalize(preprocessing.mean, preprocessing.std))
    if config.erasing_probability:
        parts.append(v2.RandomErasing(config.erasing_probability))
    return v2.Compose(parts)


def _resize_parts(preprocessing: Preprocessing) -> list[Any]:
    from torchvision.transforms import v2

    filter, size = v2.InterpolationMode(preprocessing.interpolation), preprocessing.image_size
    shorter: Any = size[0] if size[0] == size[1] else size
    return [v2.Resize(shorter, interpolation=filter), v2.CenterCrop(size)]


def _usual_loader(session: Session, workers: int) -> DataLoader[Any]:
    from torchvision.transforms import v2

    task = _task(session)
    augment, num_classes = task.config.augment, len(task.class_names)
    mixes: list[Any] = []
    if augment.mixup_alpha:
        mixes.append(v2.MixUp(alpha=augment.mixup_alpha, num_classes=num_classes))
    if augment.cutmix_alpha:
        mixes.append(v2.CutMix(alpha=augment.cutmix_alpha, num_classes=num_classes))
    odds = [1 - augment.cutmix_probability, augment.cutmix_probability] if len(mixes) == 2 else None
    mix = v2.RandomApply([v2.RandomChoice(mixes, odds)], augment.mix_probability) if mixes else None

    def collate(samples: list[Any]) -> Any:
        batch = default_collate(samples)
        return batch if mix is None else mix(*batch)

    return DataLoader(
        _PilImages(task.train_split, _pil_transform(augment, task.preprocessing)),
        batch_size=task.config.data.batch_size,
        shuffle=True,
        drop_last=True,
        num_workers=workers,
        persistent_workers=workers > 0,
        collate_fn=collate,
    )


_TIMM_OPTIONS = {
    "image_size": "img_size",
    "patch_size": "patch_size",
    "num_classes": "num_classes",
    "width": "embed_dim",
    "depth": "depth",
    "num_heads": "num_heads",
    "mlp_ratio": "mlp_ratio",
    "class_token": "class_token",
    "num_registers": "reg_tokens",
    "qk_norm": "qk_norm",
    "qkv_bias": "qkv_bias",
    "pre_norm": "pre_norm",
    "layer_scale": "init_values",
    "stochastic_depth_rate": "drop_path_rate",
}

_NO_COUNTERPART = (
    *("distillation_token", "positions", "feedforward", "stem", "representation_width", "head_bias"),
    *("dropout_rate", "attention_dropout_rate", "patch_dropout_rate"),
)


def _timm_model(session: Session) -> nn.Module:
    from timm.models.vision_transformer import VisionTransformer as TimmVisionTransformer

    config = _task(session).model.config
    rule = "the usual loop's model is timm's plain Vision Transformer"
    if not isinstance(config, ViTConfig):
        raise ValueError(f"model.name: {session.task.model_name!r} is not valid: {rule}")
    for name in _NO_COUNTERPART:
        check(getattr(config, name) == getattr(ViTConfig(), name), f"model.{name}", getattr(config, name), rule)
    model: nn.Module = TimmVisionTransformer(
        global_pool=_timm_pooling(config),
        fc_norm=config.final_norm == "pooled",
        no_embed_class=not config.positions_on_prefix,
        **{theirs: getattr(config, ours) for ours, theirs in _TIMM_OPTIONS.items()},
    )
    _check_same_size(session.bare_model, model)
    if session.config.train.compile:
        model.compile()
    return model


def _timm_pooling(config: ViTConfig) -> str:
    names = {"gap": "avg", "cls": "token", "map": "map"}
    rule = f"timm's plain Vision Transformer has {', '.join(sorted(names))}"
    check(config.pooling in names, "model.pooling", config.pooling, rule)
    return names[config.pooling]


def _check_same_size(ours: nn.Module, theirs: nn.Module) -> None:
    """Positions of registers may be counted in; no layer can be missing unseen."""
    sizes = [count_parameters(model) for model in (ours, theirs)]
    if abs(sizes[0] - sizes[1]) > 0.01 * sizes[0]:
        raise ValueError(f"model.name: timm's counterpart has {sizes[1]:,} parameters, not {sizes[0]:,}")


def _usual_optimizer(model: nn.Module, config: ClassificationRun) -> torch.optim.Optimizer:
    if config.optim.name == "muon":
        from timm.optim import Muon

        decay, momentum = config.optim.weight_decay, config.optim.momentum
        return Muon(model.parameters(), lr=config.optim.lr, weight_decay=decay, momentum=momentum)
    betas, decay = config.optim.betas, config.optim.weight_decay
    return torch.optim.AdamW(model.parameters(), lr=config.optim.lr, betas=betas, weight_decay=decay)


def _usual_steps(session: Session, workers: int) -> Iterator[None]:
    from timm.utils import ModelEmaV3

    config, device = _task(session).config, session.accelerator.device
    model = _timm_model(session).to(device).train()
    optimizer = _usual_optimizer(model, config)
    average = None if config.train.ema_decay is None else ModelEmaV3(model, decay=config.train.ema_decay)
    loader = _usual_loader(session, workers)
    while True:
        for images, targets in loader:
            with _autocast(session):
                logits = model(images.to(device, non_blocking=True))
            loss = F.cross_entropy(logits.float(), targets.to(device), label_smoothing=config.train.label_smoothing)
            loss.backward()
            if config.optim.clip_norm is not None:
                nn.utils.clip_grad_norm_(model.parameters(), config.optim.clip_norm)
            optimizer.step()
            optimizer.zero_grad()
            if average is not None:
                average.update(model)
            yield


def _autocast(session: Session) -> AbstractContextManager[None]:
    device = session.accelerator.device.type
    return torch.autocast(device, torch.bfloat16, enabled=session.precision == "bf16")
