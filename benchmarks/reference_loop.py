"""A plain training loop for comparison: another library's loader, timm's Vision Transformer, torch's AdamW.

A step does the same work as ours: with the same weights, timm's model is checked to give the same logits. Training
starts from other weights than ours.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from benchmarks.reference_loaders import Batches
from benchmarks.reference_models import build_reference
from benchmarks.unsupported import Unsupported
from vit.config import ViTConfig, check
from vit.models import build_model
from vit.models.initialization import perturb_weights
from vit.models.vision_transformer import VisionTransformer
from vit.tasks.classification.training import Classification
from vit.training.session import Session, compile_as_configured


def task_of(session: Session) -> Classification:
    assert isinstance(session.task, Classification)
    return session.task


_UNSUPPORTED = ("dropout_rate", "attention_dropout_rate", "patch_dropout_rate")
"""Settings of our model that timm's, as built here, does not have."""


def timm_model(session: Session) -> tuple[nn.Module, float]:
    """Build timm's counterpart, and return how far its logits are from ours with the same weights.

    ValueError if timm has none. RuntimeError if its logits differ.
    """
    config = task_of(session).model.config
    if not isinstance(config, ViTConfig):
        rule = "the reference loop's model is timm's plain Vision Transformer"
        raise ValueError(f"model.name: {session.task.info.model_name!r} is not valid: {rule}")
    rule = "the reference loop's model does not have it"
    for name in _UNSUPPORTED:
        check(getattr(config, name) == getattr(ViTConfig(), name), f"model.{name}", getattr(config, name), rule)
    untrained = build_model(config)  # a new one, because the session's may be compiled and on a device
    assert isinstance(untrained, VisionTransformer)
    perturb_weights(untrained)
    try:
        model, difference = build_reference("timm", untrained)
    except Unsupported as reason:
        raise ValueError(f"model: the reference loop cannot train it: {reason}") from reason
    compile_as_configured(model, session.config.train)
    return model, difference


class ReferenceLoop:
    """A training loop; a call is one pass over the loader."""

    def __init__(self, session: Session, loader: Batches) -> None:
        from timm.utils import ModelEmaV3

        self._session, self._loader = session, loader
        config, self._device = task_of(session).config, session.accelerator.device
        self._model = timm_model(session)[0].to(self._device).train()
        optim, ema_decay = config.optim, config.train.ema_decay
        self._optimizer = torch.optim.AdamW(
            self._model.parameters(), lr=optim.lr, betas=optim.betas, weight_decay=optim.weight_decay, fused=True
        )
        self._average = None if ema_decay is None else ModelEmaV3(self._model, decay=ema_decay)

    def __call__(self) -> None:
        for images, targets in self._loader:
            self._step(images.to(self._device, non_blocking=True), targets.to(self._device, non_blocking=True))

    def _step(self, images: Tensor, targets: Tensor) -> None:
        config = task_of(self._session).config
        bf16 = self._session.precision == "bf16"
        with torch.autocast(self._device.type, torch.bfloat16, enabled=bf16):
            logits = self._model(images)
        F.cross_entropy(logits.float(), targets, label_smoothing=config.train.label_smoothing).backward()
        if config.optim.clip_norm is not None:
            nn.utils.clip_grad_norm_(self._model.parameters(), config.optim.clip_norm)
        self._optimizer.step()
        self._optimizer.zero_grad()
        if self._average is not None:
            self._average.update(self._model)
