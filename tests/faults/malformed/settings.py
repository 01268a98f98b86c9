"""Malformed settings: wrong values, contradictions, files that are no settings, and what is rightly taken."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import yaml

from tests.faults.malformed.trials import Case

FILE = "c.yaml"
NAN, INFINITY = float("nan"), float("inf")
HUGE = 10**30

CLASSIFICATION: dict[str, Any] = {
    "model": {"name": "vit", "image_size": 8, "patch_size": 4, "width": 16, "depth": 1, "num_heads": 2},
    "data": {"name": "fake", "fake_images": 40, "fake_classes": 3, "batch_size": 8, "workers": 0},
    "train": {"epochs": 1, "precision": "fp32"},
    "device": "cpu",
}
COPYING: dict[str, Any] = {
    "task": "translation",
    "model": {"name": "transformer", "width": 16, "depth": 1, "num_heads": 2},
    "data": {"name": "copying", "copying_sentences": 40, "copying_lengths": [2, 4], "batch_size": 8},
    "train": {"epochs": 1, "precision": "fp32"},
    "device": "cpu",
}
REGRESSION: dict[str, Any] = {
    "task": "regression",
    "data": {"train_points": 20, "val_points": 10, "test_points": 10},
    "train": {"epochs": 1, "precision": "fp32"},
    "device": "cpu",
}
MULTILABEL: dict[str, Any] = {
    "task": "multilabel",
    "model": CLASSIFICATION["model"],
    "data": {"name": "table", "root": "here", "train_table": "a.csv", "test_table": "b.csv", "workers": 0},
    "device": "cpu",
}

# ------------------------------------------------------------------ one wrong value

NO_COUNT = [0, -1, 1.5, "many", True, [3], {"a": 1}, NAN]
NO_RATE = [-0.1, 1, 2, NAN, "much", True, [0.1]]
NO_WORD = ["banana", "", 3, True, ["vit"], {"a": 1}]
NO_FLAG = ["maybe", 1, 0, 2.5, [True]]
WRONG: dict[str, list[Any]] = {
    "task": ["banana", "", 3, None, True, ["classification"], {"name": "classification"}],
    "seed": [-1, 2**63, 1.5, "lucky", None, True, [1]],
    "device": ["gpu", "cuda:7", 3, None],
    "output_dir": ["", " ", 3, ["a"]],
    "optim.name": [*NO_WORD, "Adam"],
    "optim.lr": [0, -1e-3, 1e30, NAN, INFINITY, -INFINITY, "fast", None, True, [1e-3]],
    "optim.weight_decay": [-0.1, NAN, "heavy", None],
    "optim.betas": [[0.9], [0.9, 0.99, 0.999], [0.9, 1.0], [-0.1, 0.9], [0.9, NAN], "0.9", 0.9, None, [0.9, "b"]],
    "optim.layer_decay": [0, -1, 1.1, NAN, None],
    "optim.schedule": [*NO_WORD, "exponential"],
    "optim.warmup_epochs": [-1, 2, NAN, INFINITY, "long"],
    "optim.min_lr": [-1, 1, NAN, "low"],
    "optim.clip_norm": [0, -1, NAN, INFINITY, "hard"],
    "train.epochs": [*NO_COUNT, None, HUGE],
    "train.accumulation_steps": [*NO_COUNT, 3, HUGE],
    "train.precision": [*NO_WORD, "fp8", 16],
    "train.compile": NO_FLAG,
    "train.ema_decay": [1.0, -0.1, 2, NAN, "slow"],
    "train.evaluate_every_epochs": [0, -1, 1.5, None],
    "train.log_every_steps": [0, -1, 1.5, None],
    "train.label_smoothing": [-0.1, 1.0, NAN, None, "soft"],
    "train.loss": [*NO_WORD, "mse"],
    "train.class_weights": ["heavy", [1], [1, 2], [1, 2, 3, 4], [0, 1, 1], [-1, 1, 1], [1, 1, NAN], 3],
    "model.name": ["banana", "", "vit_banana_patch16_224", 3, ["vit"], "a" * 10_000],
    "model.image_size": [0, -8, 9, "big", [8], [8, 8, 3], [8, -8], 8.5, True, HUGE, 10**9],
    "model.patch_size": [0, -4, 3, 16, "small", [4, 4, 4], HUGE],
    "model.num_classes": [0, -1, 7, 1.5, "few"],
    "model.in_channels": [0, 1, 4, -3, "rgb"],
    "model.width": [0, -16, 15, 1.5, "wide", HUGE, 10**9, 10**18],
    "model.depth": [0, -1, 1.5, "deep", HUGE, 10**8, 10**18],
    "model.num_heads": [0, -1, 3, 32, "all", HUGE],
    "model.mlp_ratio": [0, -1, NAN, INFINITY, 1e-9, 1e18, "four"],
    "model.pooling": [*NO_WORD, "CLS"],
    "model.num_registers": [-1, 1.5, "some", HUGE, 10**12],
    "model.positions": NO_WORD,
    "model.stochastic_depth_rate": NO_RATE,
    "model.dropout_rate": NO_RATE,
    "model.representation_width": [0, -1, "wide", 10**15],
    "model.norm_eps": [0, -1, NAN, "tiny"],
    "model.stem": [*NO_WORD, "imagenet"],
    "model.init": NO_WORD,
    "model.backend": [*NO_WORD, "flash"],
    "model.pretrained": ["nowhere.safetensors", "timm:banana", "", ".", 3, "a\0b", "hf:", "no_module.file:f"],
    "model.new_head": [True, *NO_FLAG],
    "model.freeze_backbone": [True, *NO_FLAG],
    "data.name": ["banana", "", 3, None, "torchvision:Banana", "torchvision:", "imagenet"],
    "data.val_fraction": [0, 1, -0.1, NAN, "some"],
    "data.fraction": [0, -1, 1.1, NAN],
    "data.split_seed": [-1, 2**63, "lucky"],
    "data.sampling": NO_WORD,
    "data.batch_size": [*NO_COUNT, None],
    "data.eval_batch_size": [*NO_COUNT, None],
    "data.workers": [-1, 1.5, "all", None, 10**6],
    "data.cache_gib": [-1, NAN, "much", None],
    "data.canvas_size": [0, -1, 1.5, "big", 10**9],
    "data.on_broken_image": NO_WORD,
    "data.crop_fraction": [0, -1, 1.1, NAN, "half"],
    "data.interpolation": [*NO_WORD, "lanczos"],
    "data.mean": [[0.5], [0.5] * 4, 0.5, ["a", "b", "c"], [NAN] * 3, [127.5] * 3, [-0.1] * 3],
    "data.std": [[0, 1, 1], [0.5], [-1, 1, 1], [NAN] * 3, "0.5"],
    "data.fake_images": [*NO_COUNT, 3, 10**12],
    "data.fake_classes": [0, -1, 1.5, 10**12],
    "data.mean_std": [1],
    "augment.crop": [*NO_WORD, "centre"],
    "augment.color_jitter": [-1, NAN, "strong"],
    "augment.mixup_alpha": [-1, NAN, "a"],
    "augment.policy": [*NO_WORD, "trivialaugment"],
    "augment.repeats": [0, -1, 1.5, 10**9],
    "augment.first_image_size": [0, -8, 1.5, 8, 16],
    "augment.size_step": [0, -8, 1.5, 8, 10**12],
    "augment.flip": NO_FLAG,
    "augment.erasing_probability": [-0.1, 1.1, NAN, "often"],
    "augment.grey_probability": [-0.1, 1.1, NAN, "often"],
    "distill.teacher": ["nowhere", "", 3],
    "distill.kind": NO_WORD,
    "distill.temperature": [0, -1, NAN],
    "model": [None, "vit", 3, [], ["name"]],
    "data": [None, "fake", 3, []],
    "optim": ["adamw", 1e-3],
    "lr": [1e-3],
    "optim.learning_rate": [1e-3],
    "train.seed": [3],
    "modle.name": ["vit"],
    "model.Width": [16],
    "optimizer": [{"lr": 1e-3}],
    "Model": [{"name": "vit"}],
}
"""Setting → values that are refused, one by one, in an else valid classification run."""

WRONG_ELSEWHERE: list[tuple[Mapping[str, Any], dict[str, list[Any]]]] = [
    (
        COPYING,
        {
            "model.name": NO_WORD,
            "model.width": [0, -1, 15, "wide", 10**12, HUGE],
            "model.depth": [0, -1, 10**8, HUGE],
            "model.decoder_depth": [0, -1, 10**8],
            "model.hidden_width": [0, -1, 10**15],
            "model.dropout_rate": NO_RATE,
            "model.max_length": [0, -1, 12],
            "model.image_size": [8],
            "data.name": [*NO_WORD, "digits"],
            "data.copying_symbols": [1, 0, -1, 10**15, HUGE],
            "data.copying_lengths": [[0, 3], [4, 2], [3], 3, "short", [2, 10**9]],
            "data.copying_sentences": [9, 0, -1, 10**13, HUGE],
            "data.copying_seed": [-1, 2**63],
            "data.vocabulary_size": [259, 0, 300, HUGE],
            "data.max_length": [0, -1, 3],
            "data.pool": [0, -1, "all", HUGE],
            "data.batch_size": [0, HUGE],
            "search.beam_size": [0, -1, 1.5, HUGE],
            "search.length_penalty": [-1, NAN, "long", 300],
            "search.max_length": [0, -1, "long"],
            "augment.flip": [True],
            "train.class_weights": ["balanced"],
        },
    ),
    (
        REGRESSION,
        {
            "model.initial_width": [0, -1, NAN, "wide"],
            "data.train_points": [1, 0, -1, 10**13, HUGE, 1.5],
            "data.val_points": [0, -1, 10**13],
            "data.test_points": [1, 0, 10**13],
            "data.noise": [-1, NAN, "loud"],
            "data.points_seed": [-1, 2**63],
            "data.passes": [0, -1],
            "data.eval_batch_size": [0, -1],
            "train.accumulation_steps": [21, 0],
            "data.name": ["digits"],
        },
    ),
    (
        MULTILABEL,
        {
            "data.root": ["", "/nowhere", 3, "a\0b"],
            "data.train_table": ["nowhere.csv", "", 3, "/dev/null"],
            "data.separator": ["", 3],
            "data.label_columns": ["a", 3],
        },
    ),
]

TOGETHER: dict[str, dict[str, Any]] = {
    "warm-up longer than the run": {"optim.warmup_epochs": 2, "train.epochs": 1},
    "a floor above the peak": {"optim.lr": 1e-3, "optim.min_lr": 1e-2},
    "inverse square root without warm-up": {"optim.schedule": "inverse_sqrt"},
    "momentum for adamw": {"optim.momentum": 0.5},
    "betas for sgd": {"optim.name": "sgd", "optim.betas": [0.8, 0.9]},
    "a floor for a constant rate": {"optim.schedule": "constant", "optim.min_lr": 1e-5},
    "muon in fp16": {"optim.name": "muon", "train.precision": "fp16"},
    "a cut without crop": {"augment.pad": 2},
    "a scale without crop": {"augment.scale": [0.5, 1.0]},
    "a scale upside down": {"augment.crop": "random_resized", "augment.scale": [1.0, 0.5]},
    "a ratio of nothing": {"augment.crop": "random_resized", "augment.ratio": [0, 1]},
    "a padding as large as what is decoded": {"augment.crop": "pad", "augment.pad": 9},
    "a padding far larger": {"augment.crop": "pad", "augment.pad": 10**9},
    "magnitude without policy": {"augment.magnitude": 5},
    "no operations": {"augment.policy": "randaugment", "augment.num_ops": 0},
    "mixing turned off twice": {"augment.mixup_alpha": 0.2, "augment.mix_probability": 0},
    "mixing group of one": {"augment.mixup_alpha": 0.2, "augment.mix_group": 1},
    "a group that divides nothing": {"augment.mixup_alpha": 0.2, "augment.mix_group": 3},
    "mixing of nothing": {"augment.mix_group": 4},
    "CutMix never": {"augment.mixup_alpha": 0.2, "augment.cutmix_alpha": 1, "augment.cutmix_probability": 0},
    "growing without a first size": {"augment.growing_epochs": 3, "train.epochs": 5},
    "growing longer than the run": {"augment.growing_epochs": 1, "augment.first_image_size": 4},
    "a class token that pooling lacks": {"model.pooling": "cls", "model.class_token": False},
    "registers' positions without registers": {"model.positions_on_registers": True},
    "resizing without positions": {"model.positions": "none", "model.position_resize": "bicubic"},
    "rotary settings without rotary positions": {"model.rope_temperature": 10},
    "rotary on heads of two": {"model.positions": "rope", "model.num_heads": 8},
    "pooling heads without pooling": {"model.pool_heads": 2},
    "SwiGLU's multiple without SwiGLU": {"model.swiglu_multiple": 4},
    "a distillation head without its token": {"model.distillation_head": True},
    "a ResNet's setting on a ViT": {"model.shortcut": "padding"},
    "a ViT's setting on a ResNet": {"model.name": "resnet18"},
    "graphs without compiling": {"train.cuda_graphs": True},
    "graphs on a CPU": {"train.compile": True, "train.cuda_graphs": True},
    "CUDA where there is none": {"device": "mps"},
    "a subset's seed without a subset": {"data.subset_seed": 3},
    "an epoch's length without a subset": {"data.epoch_length": "whole_set"},
    "a test folder for fake images": {"data.test_folder": "test"},
    "a root for digits": {"data.name": "digits", "data.root": "/data"},
    "a download of digits": {"data.name": "digits", "data.download": True},
    "classes of a set that has its own": {"data.name": "digits"},
    "a grid without weights": {"model.pretrained_grid": [2, 2]},
    "more validation than images": {"data.val_fraction": 0.999, "data.fake_images": 4},
    "a folder that is not there": {
        "data.name": "imagefolder",
        "data.root": "/nowhere",
        "data.fake_images": 512,
        "data.fake_classes": 10,
    },
    "temperature without a teacher": {"distill.temperature": 2.0},
    "more micro-batches than images": {"data.batch_size": 8, "train.accumulation_steps": 16},
}
"""Settings that contradict each other."""

# ------------------------------------------------------------------ files that are no settings


def deep(opening: str, closing: str, levels: int) -> str:
    return "model: " + opening * levels + closing * levels + "\n"


def laughs(levels: int, width: int = 9) -> str:
    """Aliases of aliases: width ** levels entries in a few lines."""
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{level}: &a{level} [{', '.join([f'*a{level - 1}'] * width)}]" for level in range(1, levels)]
    return "\n".join(lines) + "\n"


def mapping_laughs(levels: int) -> str:
    lines = ["a0: &a0 {x: 1, y: 2, z: 3}"]
    lines += [
        f"a{level}: &a{level} {{{', '.join(f'k{k}: *a{level - 1}' for k in range(9))}}}" for level in range(1, levels)
    ]
    return "\n".join(lines) + "\n"


FILES: dict[str, str | bytes] = {
    "empty": "",
    "one blank": " ",
    "blank lines": "\n\n\n",
    "comments alone": "# nothing\n# here\n",
    "null": "null\n",
    "a number": "3\n",
    "a word": "vit\n",
    "a list": "- model\n- data\n",
    "a list of sections": "- model: {name: vit}\n",
    "a text": "'model: {name: vit}'\n",
    "true": "true\n",
    "a date": "2024-01-01\n",
    "two documents": "model: {name: vit}\n---\nmodel: {name: vit}\n",
    "tabs": "model:\n\tname: vit\n",
    "an open bracket": "model: {name: vit\n",
    "an open list": "optim:\n  betas: [0.9, 0.99\n",
    "an open quote": "model:\n  name: 'vit\n",
    "a setting twice": "model:\n  name: vit\n  name: vit\n",
    "a section twice": "model:\n  name: vit\nmodel:\n  depth: 3\n",
    "a wrong indentation": "model:\n  name: vit\n width: 3\n",
    "no space behind the colon": "model:\n  name:vit\n  depth:3\n",
    "an unknown tag": "model: !banana {name: vit}\n",
    "a Python object": "model: !!python/object/apply:os.system ['touch owned']\n",
    "a Python name": "model: !!python/name:os.system\n",
    "a tuple tag": "optim:\n  betas: !!python/tuple [0.9, 0.99]\n",
    "a binary tag": "model: !!binary aGVsbG8=\n",
    "a set": "model: !!set {name, width}\n",
    "an alias of nothing": "model: *missing\n",
    "an alias of itself": "model: &m\n  name: *m\n",
    "a list in itself": "optim:\n  betas: &b [0.9, *b]\n",
    "a mapping in itself": "&root\nmodel: *root\n",
    "a mapping in itself two levels down": "model: &m\n  inner: {again: *m}\n",
    "a merge of itself": "model: &m\n  <<: *m\n  name: vit\n",
    "a merge of a word": "model:\n  <<: vit\n",
    "a list as a key": "? [model, data]\n: 3\n",
    "a mapping as a key": "? {model: data}\n: 3\n",
    "a number as a key": "3: 4\n",
    "null as a key": "null: 4\n",
    "an empty key": "'': 4\n",
    "a dot as a key": ".: 4\n",
    "dots": "model..name: vit\n",
    "a key of a million letters": "a" * 1_000_000 + ": 3\n",
    "a value of a million letters": "model:\n  name: " + "a" * 1_000_000 + "\n",
    "a number of a million digits": "seed: " + "9" * 1_000_000 + "\n",
    "a number of five thousand digits": "seed: " + "9" * 5_000 + "\n",
    "a number in base sixty": "seed: " + "59:" * 2_000 + "59\n",
    "a rate far too large": "optim:\n  lr: 1e400\n",
    "lists a thousand deep": deep("[", "]", 1_000),
    "lists a hundred thousand deep": deep("[", "]", 100_000),
    "mappings a thousand deep": deep("{a: ", "}", 1_000),
    "mappings a hundred thousand deep": deep("{a: ", "}", 100_000),
    "indentation a thousand deep": "".join(f"{' ' * level}a:\n" for level in range(1_000)),
    "an open list a million deep": "model: " + "[" * 1_000_000,
    "aliases that multiply": laughs(12),
    "mappings that multiply": mapping_laughs(12),
    "aliases that multiply in a value": "optim:\n  betas: *a9\n" + laughs(10),
    "mappings that multiply in a section": mapping_laughs(9) + "model: {name: *a8}\n",
    "a hundred thousand settings": "".join(f"a{number}: 1\n" for number in range(100_000)),
    "ten thousand settings of one section": "model:\n" + "".join(f"  a{number}: 1\n" for number in range(10_000)),
    "one setting ten thousand times": "model:\n" + "  name: vit\n" * 10_000,
    "JSON cut short": '{"model": {"name": "vit"',
    "XML": "<?xml version='1.0'?><model name='vit'/>\n",
    "TOML": "[model]\nname = 'vit'\n",
    "INI": "[model]\nname: vit\n",
    "Python": "model = dict(name='vit')\n",
    "a shebang of a shell": "#!/bin/sh\nexit 3\n",
    "zeros": b"\0" * 1_000,
    "a zero in a name": b"mod\0el: 3\n",
    "a control sign": b"model: \x07\n",
    "an escape sequence": "model:\n  name: \x1b[31mvit\n",
    "an image": b"\x89PNG\r\n\x1a\n" + bytes(range(256)),
    "a zip": b"PK\x03\x04" + bytes(range(256)),
    "gzip": b"\x1f\x8b\x08" + bytes(range(256)),
    "random bytes": bytes((number * 167 + 13) % 256 for number in range(4_000)),
    "Latin-1": "model:\n  name: façade\n".encode("latin-1"),
    "UTF-16 without a mark": "model:\n  name: vit\n".encode("utf-16-le"),
    "half a letter": "model:\n  name: é".encode()[:-1],
    "a surrogate": b"model: {name: \xed\xa0\x80}\n",
    "a word in quotes for a number": "train: {epochs: '3'}\n",
    "settings with dots in a section": "model:\n  optim.lr: 1\n",
    "a section in a section": "model:\n  data: {name: fake}\n",
}

# ------------------------------------------------------------------ rightly taken

_SMALL = "{name: vit, image_size: 8, patch_size: 4, width: 16, depth: 1, num_heads: 2}"
_LINES = ("name: vit", "image_size: 8", "patch_size: 4", "width: 16", "depth: 1", "num_heads: 2")
TAKEN_FILES: dict[str, str | bytes] = {
    "JSON": json.dumps(CLASSIFICATION),
    "settings by their dotted names": "device: cpu\n" + "".join(f"model.{line}\n" for line in _LINES),
    "Windows' ends of lines": "device: cpu\r\nmodel:\r\n" + "".join(f"  {line}\r\n" for line in _LINES),
    "a mark of UTF-8": f"\ufeffmodel: {_SMALL}\ndevice: cpu\n",
    "an alias that stands once": f"model: &m {_SMALL}\nseed: &s 3\ndata: {{split_seed: *s}}\ndevice: cpu\n",
    "a merge": f"model:\n  <<: {_SMALL}\n  pooling: gap\ndevice: cpu\n",
    "a document's mark": f"---\nmodel: {_SMALL}\ndevice: cpu\n...\n",
}
TAKEN: dict[str, dict[str, Any]] = {
    "10^9 epochs": {"train.epochs": 10**9},
    "10^12 epochs": {"train.epochs": 10**12},
    "10^9 epochs that grow": {
        "train.epochs": 10**9,
        "augment.first_image_size": 4,
        "augment.growing_epochs": 10**9 - 1,
    },
    "10^9 epochs of warm-up": {"train.epochs": 10**9, "optim.warmup_epochs": 10**9},
    "a log every 10^12 steps": {"train.log_every_steps": 10**12},
    "a batch larger than the set": {"data.batch_size": 64},
    "a number as a whole one": {"optim.lr": 1},
    "a rate of 1e-30": {"optim.lr": 1e-30},
    "a rate of 1e8": {"optim.lr": 1e8},
    "the largest seed": {"seed": 2**63 - 1},
    "null where it may be": {"optim.clip_norm": None, "train.ema_decay": None, "data.mean": None, "output_dir": None},
    "a square as one number": {"model.image_size": 8, "model.patch_size": 2},
    "an image of two sides": {"model.image_size": [8, 16]},
    "one class": {"data.fake_classes": 1},
    "a batch of 10^9": {"data.batch_size": 10**9},
    "a distillation token as another register": {"model.distillation_token": True, "model.distillation_head": False},
    "class weights with a loss for each class": {"train.loss": "bce", "train.class_weights": "balanced"},
    "a part that leaves an image a class": {"data.fraction": 1e-9},
    "10^12 epochs in one evaluation": {"train.epochs": 10**12, "train.evaluate_every_epochs": 10**12},
}

# ------------------------------------------------------------------ cases


def changed(base: Mapping[str, Any], settings: Mapping[str, Any]) -> dict[str, Any]:
    """The base with dotted settings put over it."""
    content: dict[str, Any] = {name: dict(part) if isinstance(part, dict) else part for name, part in base.items()}
    for name, value in settings.items():
        section, _, last = name.rpartition(".")
        home = content.setdefault(section, {}) if section else content
        home[last] = value
    return content


def write_settings(content: Mapping[str, Any], folder: Path) -> None:
    text = yaml.safe_dump(dict(content), sort_keys=False, allow_unicode=True)
    (folder / FILE).write_text(text)


def write_bytes(content: str | bytes, folder: Path) -> None:
    (folder / FILE).write_bytes(content.encode() if isinstance(content, str) else content)


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) < 40 else f"{text[:30]}… ({len(text)} letters)"


def _one_by_one(base: Mapping[str, Any], table: Mapping[str, Sequence[Any]]) -> list[Case]:
    task = base.get("task", "classification")
    return [
        Case(
            f"{task}: {name} = {_shown(value)}",
            partial(write_settings, changed(base, {name: value})),
            ("train", "--config", FILE, "--output_dir", "run") if name != "output_dir" else ("train", "--config", FILE),
        )
        for name, values in table.items()
        for value in values
    ]


def _places() -> list[Case]:
    """What is in the place of the file."""
    train = ("train", "--config", FILE, "--output_dir", "run")
    nothing = partial(Path.exists)
    return [
        Case("no file", nothing, train),
        Case("a folder", lambda folder: (folder / FILE).mkdir(), train),
        Case("a pipe", lambda folder: os.mkfifo(folder / FILE), train),
        Case("a link to nothing", lambda folder: (folder / FILE).symlink_to("nothing"), train),
        Case("a link to itself", lambda folder: (folder / FILE).symlink_to(FILE), train),
        Case("a device without an end", lambda folder: (folder / FILE).symlink_to("/dev/zero"), train),
        Case("a device of nothing", lambda folder: (folder / FILE).symlink_to("/dev/null"), train),
        Case("a name of ten thousand letters", nothing, ("train", "--config", "a" * 10_000)),
        Case("a name with a zero", nothing, ("train", "--config", "a\0.yaml")),
        Case("an empty name", nothing, ("train", "--config", "")),
        Case("a blank name", nothing, ("train", "--config", " ")),
        Case("a file below a file", partial(write_bytes, ""), ("train", "--config", f"{FILE}/c.yaml")),
        Case("a packaged name that is near", nothing, ("train", "--config", "digit_vit")),
        Case("a packaged name with a way out", nothing, ("train", "--config", "../pyproject")),
    ]


def cases() -> list[Case]:
    train, plan = ("train", "--config", FILE, "--output_dir", "run"), ("plan", "--config", FILE)
    found = _one_by_one(CLASSIFICATION, WRONG)
    for base, table in WRONG_ELSEWHERE:
        found += _one_by_one(base, table)
    found += [
        Case(f"together: {name}", partial(write_settings, changed(CLASSIFICATION, settings)), train)
        for name, settings in TOGETHER.items()
    ]
    found += [Case(f"file: {name}", partial(write_bytes, text), train) for name, text in FILES.items()]
    found += [Case(f"place: {case.name}", case.write, case.command) for case in _places()]
    found += [
        Case(f"taken: {name}", partial(write_settings, changed(CLASSIFICATION, settings)), plan, taken=name)
        for name, settings in TAKEN.items()
    ]
    found += [
        Case(f"taken file: {name}", partial(write_bytes, text), plan, taken=name) for name, text in TAKEN_FILES.items()
    ]
    return found
