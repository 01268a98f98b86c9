"""The usual training loop, to be compared with.

A `DataLoader` that decodes with PIL, torchvision's v2 transforms image by image, timm's Vision Transformer, torch's
optimizer.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset, default_collate

from vit.config import AugmentConfig, ClassificationRun, Preprocessing, ViTConfig, check
from vit.data.images import Split
from vit.evaluation.cost import count_parameters
from vit.training.setup import Session
from vit.training.tasks.classification import Classification


def task_of(session: Session) -> Classification:
    assert isinstance(session.task, Classification)
    return session.task


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


def usual_loader(session: Session, workers: int) -> DataLoader[Any]:
    from torchvision.transforms import v2

    task = task_of(session)
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
    "positions_on_registers",
    *("dropout_rate", "attention_dropout_rate", "patch_dropout_rate"),
)


def timm_model(session: Session) -> nn.Module:
    from timm.models.vision_transformer import VisionTransformer as TimmVisionTransformer

    config = task_of(session).model.config
    rule = "the usual loop's model is timm's plain Vision Transformer"
    if not isinstance(config, ViTConfig):
        raise ValueError(f"model.name: {session.task.model_name!r} is not valid: {rule}")
    for name in _NO_COUNTERPART:
        check(getattr(config, name) == getattr(ViTConfig(), name), f"model.{name}", getattr(config, name), rule)
    model: nn.Module = TimmVisionTransformer(
        global_pool=_timm_pooling(config),
        final_norm=config.final_norm != "none",
        fc_norm=config.final_norm == "pooled",
        no_embed_class=not config.positions_on_prefix,
        **{theirs: getattr(config, ours) for ours, theirs in _TIMM_OPTIONS.items()},
    )
    check_same_size(session.bare_model, model)
    if session.config.train.compile:
        model.compile()
    return model


def _timm_pooling(config: ViTConfig) -> str:
    names = {"gap": "avg", "cls": "token", "map": "map"}
    rule = f"timm's plain Vision Transformer has {', '.join(sorted(names))}"
    check(config.pooling in names, "model.pooling", config.pooling, rule)
    return names[config.pooling]


def check_same_size(ours: nn.Module, theirs: nn.Module) -> None:
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


def usual_steps(session: Session, workers: int) -> Iterator[None]:
    from timm.utils import ModelEmaV3

    config, device = task_of(session).config, session.accelerator.device
    model = timm_model(session).to(device).train()
    optimizer = _usual_optimizer(model, config)
    average = None if config.train.ema_decay is None else ModelEmaV3(model, decay=config.train.ema_decay)
    loader = usual_loader(session, workers)
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
