"""The usual training loop, to be compared with: another library's loader, timm's Vision Transformer, torch's AdamW.

Does the work a step that ours does: timm's model is shown to answer as ours with the same weights, which are not those
that ours starts from. Knows no clock.
"""

from __future__ import annotations

from contextlib import AbstractContextManager

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vit.config import ClassificationRun, ViTConfig, check
from vit.experiments.absent import Absent
from vit.experiments.peer_loaders import Batches
from vit.experiments.peers import build_peer
from vit.models import build_model
from vit.models.vision_transformer import VisionTransformer
from vit.training.setup import Session, compile_as_configured
from vit.training.tasks.classification import Classification
from vit.weights.convert import perturb


def task_of(session: Session) -> Classification:
    assert isinstance(session.task, Classification)
    return session.task


_ONE_SIDED = ("dropout_rate", "attention_dropout_rate", "patch_dropout_rate")
"""What our model does in training and timm's, as it is built here, does not."""


def timm_model(session: Session) -> tuple[nn.Module, float]:
    """timm's counterpart to be trained, and how far its answers are from ours where both have the same weights.

    ValueError where timm has none. RuntimeError where its answers are others.
    """
    config = task_of(session).model.config
    if not isinstance(config, ViTConfig):
        what = "the usual loop's model is timm's plain Vision Transformer"
        raise ValueError(f"model.name: {session.task.model_name!r} is not valid: {what}")
    rule = "the usual loop's model does not have it"
    for name in _ONE_SIDED:
        check(getattr(config, name) == getattr(ViTConfig(), name), f"model.{name}", getattr(config, name), rule)
    twin = build_model(config)  # not the one that trains: it may be compiled, and on a device
    assert isinstance(twin, VisionTransformer)
    perturb(twin)
    try:
        model, difference = build_peer("timm", twin)
    except Absent as reason:
        raise ValueError(f"model: the usual loop cannot train it: {reason}") from reason
    compile_as_configured(model, session.config.train)
    return model, difference


def _usual_optimizer(model: nn.Module, config: ClassificationRun) -> torch.optim.Optimizer:
    betas, decay = config.optim.betas, config.optim.weight_decay
    return torch.optim.AdamW(model.parameters(), lr=config.optim.lr, betas=betas, weight_decay=decay, fused=True)


class UsualLoop:
    """A plain training loop; a call is one pass over the loader."""

    def __init__(self, session: Session, loader: Batches) -> None:
        from timm.utils import ModelEmaV3

        self._session, self._loader = session, loader
        config, self._device = task_of(session).config, session.accelerator.device
        self._model = timm_model(session)[0].to(self._device).train()
        self._optimizer = _usual_optimizer(self._model, config)
        decay = config.train.ema_decay
        self._average = None if decay is None else ModelEmaV3(self._model, decay=decay)

    def __call__(self) -> None:
        for images, targets in self._loader:
            self._step(images.to(self._device, non_blocking=True), targets.to(self._device, non_blocking=True))

    def _step(self, images: Tensor, targets: Tensor) -> None:
        config = task_of(self._session).config
        with _autocast(self._session):
            logits = self._model(images)
        F.cross_entropy(logits.float(), targets, label_smoothing=config.train.label_smoothing).backward()
        if config.optim.clip_norm is not None:
            nn.utils.clip_grad_norm_(self._model.parameters(), config.optim.clip_norm)
        self._optimizer.step()
        self._optimizer.zero_grad()
        if self._average is not None:
            self._average.update(self._model)


def _autocast(session: Session) -> AbstractContextManager[None]:
    device = session.accelerator.device.type
    return torch.autocast(device, torch.bfloat16, enabled=session.precision == "bf16")
