"""Speed, measured in turns: this package's training against the usual loop, on the same images, model, batch and dtype.

The usual loop is a `DataLoader` whose workers decode with PIL and augment image by image with torchvision's v2
transforms, around timm's Vision Transformer and torch's optimizer. Both sides train for a number of steps, one after
the other, several times; the ratio of a turn is taken within it, because machines are noisy.
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

from vit.config import AugmentConfig, Preprocessing, RunConfig, ViTConfig, check
from vit.data.images import Split
from vit.training.interruption import StopRequest
from vit.training.loop import train_step
from vit.training.setup import Session, prepare
from vit.training.state import Progress


def bench_training(config: RunConfig, steps: int, turns: int, workers: int) -> dict[str, Any]:
    """Images/s of both sides in every turn, and the median of the turns' ratios. ValueError for a ResNet."""
    with tempfile.TemporaryDirectory() as folder:
        session = prepare(config, Path(folder))
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
        for step in session.train_loader.epoch(epoch):
            if step.num_images < session.config.data.batch_size:
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
        parts.append(v2.RandomResizedCrop(preprocessing.image_size, config.scale, config.ratio))
    else:
        parts.append(v2.Resize(preprocessing.image_size))
    if config.crop == "pad":
        parts.append(v2.RandomCrop(preprocessing.image_size, padding=config.pad, padding_mode="reflect"))
    if config.flip:
        parts.append(v2.RandomHorizontalFlip())
    if config.policy == "randaugment":
        parts.append(v2.RandAugment(config.num_ops, round(config.magnitude)))
    elif config.policy.startswith("autoaugment"):
        parts.append(v2.AutoAugment(v2.AutoAugmentPolicy(config.policy.removeprefix("autoaugment_"))))
    if config.color_jitter:
        parts.append(v2.ColorJitter(*[config.color_jitter] * 3))
    parts += [v2.PILToTensor(), v2.ToDtype(torch.float32, scale=True)]
    parts.append(v2.Normalize(preprocessing.mean, preprocessing.std))
    if config.erasing_probability:
        parts.append(v2.RandomErasing(config.erasing_probability))
    return v2.Compose(parts)


def _usual_loader(session: Session, workers: int) -> DataLoader[Any]:
    from torchvision.transforms import v2

    augment, num_classes = session.config.augment, len(session.class_names)
    mixes: list[Any] = []
    if augment.mixup_alpha:
        mixes.append(v2.MixUp(alpha=augment.mixup_alpha, num_classes=num_classes))
    if augment.cutmix_alpha:
        mixes.append(v2.CutMix(alpha=augment.cutmix_alpha, num_classes=num_classes))
    mix = v2.RandomApply([v2.RandomChoice(mixes)], augment.mix_probability) if mixes else None

    def collate(samples: list[Any]) -> Any:
        batch = default_collate(samples)
        return batch if mix is None else mix(*batch)

    return DataLoader(
        _PilImages(session.train_split, _pil_transform(augment, session.preprocessing)),
        batch_size=session.config.data.batch_size,
        shuffle=True,
        drop_last=True,
        num_workers=workers,
        persistent_workers=workers > 0,
        collate_fn=collate,
    )


def _timm_model(session: Session) -> nn.Module:
    from timm.models.vision_transformer import VisionTransformer as TimmVisionTransformer

    config = session.bare_model.config
    check(isinstance(config, ViTConfig), "model.name", session.model_name, "timm's side is a Vision Transformer")
    assert isinstance(config, ViTConfig)
    plain = config.positions == "learned_1d" and config.feedforward == "gelu" and not config.qk_norm
    check(plain, "model.positions", config.positions, "timm's side is a plain Vision Transformer")
    return TimmVisionTransformer(
        img_size=config.image_size,
        patch_size=config.patch_size,
        num_classes=config.num_classes,
        global_pool="avg" if config.pooling == "gap" else "token",
        embed_dim=config.width,
        depth=config.depth,
        num_heads=config.num_heads,
        mlp_ratio=config.mlp_ratio,
        class_token=config.class_token,
        fc_norm=config.final_norm == "pooled",
        drop_path_rate=config.stochastic_depth_rate,
    )


def _usual_optimizer(model: nn.Module, config: RunConfig) -> torch.optim.Optimizer:
    if config.optim.name == "muon":
        from timm.optim import Muon

        return Muon(model.parameters(), lr=config.optim.lr, momentum=config.optim.momentum)
    rule = f"the usual loop has adamw and muon, not {config.optim.name}"
    check(config.optim.name == "adamw", "optim.name", config.optim.name, rule)
    return torch.optim.AdamW(model.parameters(), lr=config.optim.lr, weight_decay=config.optim.weight_decay)


def _usual_steps(session: Session, workers: int) -> Iterator[None]:
    from timm.utils import ModelEmaV3

    config, device = session.config, session.accelerator.device
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
