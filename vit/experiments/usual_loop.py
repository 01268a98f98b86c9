"""The usual training loop, to be compared with: another library's loader, timm's Vision Transformer, torch's AdamW.

Does the work a step that ours does; timm starts from its own weights. Knows no clock.
"""

from __future__ import annotations

from contextlib import AbstractContextManager

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vit.config import ClassificationRun, ViTConfig, check
from vit.evaluation.cost import count_parameters
from vit.experiments.peer_loaders import Batches
from vit.training.setup import Session, compile_as_configured
from vit.training.tasks.classification import Classification


def task_of(session: Session) -> Classification:
    assert isinstance(session.task, Classification)
    return session.task


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
    compile_as_configured(model, session.config.train)
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
    betas, decay = config.optim.betas, config.optim.weight_decay
    return torch.optim.AdamW(model.parameters(), lr=config.optim.lr, betas=betas, weight_decay=decay, fused=True)


class UsualLoop:
    """A plain training loop; a call is one pass over the loader."""

    def __init__(self, session: Session, loader: Batches) -> None:
        from timm.utils import ModelEmaV3

        self._session, self._loader = session, loader
        config, self._device = task_of(session).config, session.accelerator.device
        self._model = timm_model(session).to(self._device).train()
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
