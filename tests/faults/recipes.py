"""The smallest run of every task and of every kind of model, for faults that none of them may feel."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

from tests.tasks.contrastive.test_run import CONTRASTIVE
from tests.tasks.masked_autoencoder.test_run import MAE
from tests.tasks.multilabel.tiny_run import write_config, write_set
from tests.tasks.regression.test_training import SMALL as REGRESSION
from tests.tasks.translation.test_training import COPYING
from tests.training.tiny import RANDOM, tiny
from vit.config import RunConfig
from vit.settings import resolve_run
from vit.tasks.translation.config import TranslatorConfig
from vit.training.loop import train

BATCH = {"batch_size": 24, "fake_images": 52}
"""Divided by one, two and three processes, and by two micro-batches of each."""
VIT = tiny(**RANDOM, data=BATCH, train={"epochs": 2, "ema_decay": 0.9, "save_every_steps": 2})
NO_VIT = dict.fromkeys(("patch_size", "depth", "num_heads"))
RUNS: dict[str, RunConfig] = {
    "vit": VIT,
    "accumulation": tiny(data=BATCH, train={"accumulation_steps": 2, "save_every_steps": 2}),
    "resnet": tiny(
        model={"name": "resnet18_cifar", **NO_VIT, "image_size": 8, "width": 16},
        data=BATCH,
        optim={"name": "sgd", "lr": 0.1},
        train={"save_every_steps": 2},
    ),
    "masked_autoencoder": replace(MAE, data=VIT.data, train=replace(MAE.train, epochs=2, save_every_steps=2)),
    "contrastive": replace(CONTRASTIVE, data=VIT.data, train=replace(CONTRASTIVE.train, epochs=2, save_every_steps=2)),
    "transformer": replace(
        COPYING, data=replace(COPYING.data, batch_size=12), train=replace(COPYING.train, save_every_steps=3)
    ),
    "bahdanau": replace(
        COPYING,
        model=TranslatorConfig(name="bahdanau", width=16, hidden_width=16),
        data=replace(COPYING.data, batch_size=12),
        train=replace(COPYING.train, save_every_steps=3),
    ),
    "regression": replace(REGRESSION, train=replace(REGRESSION.train, save_every_steps=5)),
}


def multilabel(root: Path) -> RunConfig:
    """The run of the one task that reads files."""
    write_set(root)
    train = {"epochs": 2, "precision": "fp32", "save_every_steps": 3}
    data = {"root": str(root), "batch_size": 24, "workers": 0, "val_fraction": 0.25}
    return resolve_run(str(write_config(root, train=train, data=data)), []).config


def train_without_figures(config: RunConfig, run: Path, resume: bool = False) -> dict[str, Any]:
    """`train` in a process of its own; drawing takes most of such a run's time, and no part in what it may lose."""
    Figure.savefig = lambda _, path, **__: Path(path).write_bytes(b"drawn")  # type: ignore[method-assign, assignment]
    return train(config, run, resume=resume)
