"""Every rule of validity is tested and names its field; this list is checked to be complete."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

import vit.config.data
import vit.config.model
import vit.config.rules
import vit.config.run
import vit.config.text_model
import vit.tasks.classification.config
import vit.tasks.contrastive.config
import vit.tasks.masked_autoencoder.config
import vit.tasks.multilabel.config
import vit.tasks.regression.config
import vit.tasks.translation.config
from vit.config import (
    AugmentConfig,
    BertConfig,
    DataConfig,
    ModelConfig,
    OptimConfig,
    Preprocessing,
    ResNetConfig,
    TrainConfig,
    ViTConfig,
    nearest,
)
from vit.config.validation import make_settings
from vit.tasks.classification.config import ClassificationRun, ClassificationTrainConfig, DistillConfig
from vit.tasks.contrastive.config import ContrastiveConfig, ContrastiveRun
from vit.tasks.masked_autoencoder.config import MaskedAutoencoderConfig, MaskedAutoencoderRun
from vit.tasks.multilabel.config import MultilabelRun, TableDataConfig
from vit.tasks.regression.config import CurveConfig, KernelConfig, RegressionRun
from vit.tasks.translation.config import (
    SearchConfig,
    TextDataConfig,
    TranslationRun,
    TranslationTrainConfig,
    TranslatorConfig,
)

FROZEN = ModelConfig(pretrained="runs/a", freeze_backbone=True)
BROKEN: list[tuple[str, type, dict[str, Any]]] = [
    *(("model." + name, ViTConfig, {name: 0}) for name in ("width", "depth", "num_heads", "mlp_ratio", "layer_scale")),
    ("model.mlp_ratio", ViTConfig, {"mlp_ratio": 0.0005}),
    ("model.layer_scale", ViTConfig, {"layer_scale": float("inf")}),
    ("model.norm_eps", ViTConfig, {"norm_eps": 0.0}),
    ("model.num_classes", ViTConfig, {"num_classes": -1}),
    ("model.num_registers", ViTConfig, {"num_registers": -1}),
    ("model.num_heads", ViTConfig, {"width": 16, "num_heads": 3}),
    ("model.num_heads", ViTConfig, {"width": 16, "num_heads": 32}),
    ("model.patch_size", ViTConfig, {"patch_size": (0, 16)}),
    ("model.image_size", ViTConfig, {"image_size": (224, 225)}),
    ("model.image_size", ViTConfig, {"image_size": (0, 224)}),
    *(
        ("model." + name, ViTConfig, {name: value})
        for name in ("stochastic_depth_rate", "dropout_rate", "attention_dropout_rate", "patch_dropout_rate")
        for value in (-0.1, 1.0)
    ),
    ("model.class_token", ViTConfig, {"class_token": False}),
    ("model.distillation_token", ViTConfig, {"distillation_token": True, "pooling": "gap"}),
    ("model.class_token", ViTConfig, {"class_token": False, "pooling": "cls_gap"}),
    ("model.final_norm", ViTConfig, {"final_norm": "pooled", "pooling": "cls_gap"}),
    ("model.pretrained_grid", ModelConfig, {"pretrained_grid": (4, 4)}),
    ("model.positions_on_registers", ViTConfig, {"positions_on_registers": True}),
    (
        "model.positions_on_registers",
        ViTConfig,
        {"positions_on_registers": True, "num_registers": 1, "positions": "rope"},
    ),
    ("model.position_resize", ViTConfig, {"position_resize": "bicubic", "positions": "none"}),
    ("model.position_resize", ViTConfig, {"position_resize": "geometric"}),
    ("model.relative_tables", ViTConfig, {"relative_tables": "both"}),
    ("model.relative_prefix", ViTConfig, {"relative_prefix": True}),
    (
        "model.relative_prefix",
        ViTConfig,
        {"relative_prefix": True, "positions": "relative", "class_token": False, "pooling": "gap"},
    ),
    ("model.distillation_head", ViTConfig, {"distillation_head": False}),
    ("model.representation_width", ViTConfig, {"representation_width": 0}),
    ("model.representation_width", ViTConfig, {"representation_width": 8, "distillation_token": True}),
    ("model.width", ViTConfig, {"positions": "sincos_2d", "width": 6, "num_heads": 1}),
    ("model.width", ViTConfig, {"positions": "learned_2d", "width": 7, "num_heads": 1}),
    ("model.width / model.num_heads", ViTConfig, {"positions": "rope", "width": 12, "num_heads": 2}),
    ("model.rope_mixed", ViTConfig, {"rope_mixed": True}),
    ("model.rope_offset", ViTConfig, {"positions": "rope", "rope_coordinates": "centred", "rope_offset": 1.0}),
    ("model.rope_temperature", ViTConfig, {"positions": "rope", "rope_temperature": 0.0}),
    ("model.rope_grid", ViTConfig, {"positions": "rope", "rope_grid": (0, 4)}),
    ("model.feedforward_norm", ViTConfig, {"feedforward_norm": True}),
    ("model.pool_heads", ViTConfig, {"pool_heads": 4}),
    ("model.pool_mlp_ratio", ViTConfig, {"pool_mlp_ratio": 2.0, "pooling": "query"}),
    ("model.pool_prefix", ViTConfig, {"pool_prefix": True, "pooling": "map", "class_token": False}),
    ("model.pool_heads", ViTConfig, {"pool_heads": 5, "pooling": "query"}),
    ("model.swiglu_multiple", ViTConfig, {"swiglu_multiple": 1}),
    ("model.patch_size", ViTConfig, {"stem": "conv", "patch_size": (7, 7)}),
    ("model.width", ViTConfig, {"stem": "conv", "width": 63, "num_heads": 3}),
    ("model.patch_size", ViTConfig, {"stem": "resnet", "patch_size": (4, 4)}),
    ("model.patch_size", ViTConfig, {"stem": "resnet", "patch_size": (14, 14)}),
    ("model.width", ResNetConfig, {"width": 0}),
    ("model.image_size", ResNetConfig, {"image_size": (32, 0)}),
    ("model.depth", ResNetConfig, {"depth": 51}),
    ("model.width", ResNetConfig, {"width": 9, "stem": "deep"}),
    ("model.groups", ResNetConfig, {"groups": 2, "depth": 20}),
    ("model.group_width", ResNetConfig, {"group_width": 128, "depth": 34}),
    ("model.stem", ResNetConfig, {"version": 2, "stem": "deep"}),
    ("model.version", ResNetConfig, {"version": 2, "depth": 18}),
    ("model.width", ResNetConfig, {"version": 2, "width": 48}),
    ("model.num_classes", ResNetConfig, {"num_classes": -1}),
    ("model.new_head", ModelConfig, {"new_head": True}),
    ("model.freeze_backbone", ModelConfig, {"freeze_backbone": True}),
    ("data.mean", Preprocessing, {"image_size": (8, 8), "mean": (float("nan"), 0.0, 0.0)}),
    ("data.crop_fraction", Preprocessing, {"image_size": (8, 8), "crop_fraction": 1.5}),
    ("data.std", Preprocessing, {"image_size": (8, 8), "std": (0.5, 0.0, 0.5)}),
    ("data.image_size", Preprocessing, {"image_size": (0, 8)}),
    *(
        ("data." + name, DataConfig, {name: 0})
        for name in ("batch_size", "eval_batch_size", "fake_images", "fake_classes", "canvas_size")
    ),
    ("data.mean", DataConfig, {"mean": (0.0, 0.0, float("nan"))}),
    *(("data.split_seed", DataConfig, {"split_seed": value}) for value in (-1, 2**63)),
    ("data.root", DataConfig, {"root": ""}),
    ("data.workers", DataConfig, {"workers": -1}),
    ("data.workers", DataConfig, {"workers": 10**6}),
    ("data.canvas_size", DataConfig, {"canvas_size": 10**9}),
    ("data.fake_images", DataConfig, {"name": "fake", "fake_images": 10**12}),
    ("augment.repeats", AugmentConfig, {"repeats": 10**9}),
    ("train.epochs", TrainConfig, {"epochs": 10**30}),
    ("data.cache_gib", DataConfig, {"cache_gib": -1.0}),
    ("data.fraction", DataConfig, {"fraction": 0.0}),
    ("data.fraction", DataConfig, {"fraction": 1.5}),
    ("data.subset_seed", DataConfig, {"subset_seed": 1}),
    ("data.subset_seed", DataConfig, {"fraction": 0.5, "subset_seed": -1}),
    ("data.epoch_length", DataConfig, {"epoch_length": "whole_set"}),
    ("data.val_fraction", DataConfig, {"val_fraction": 1.0}),
    ("data.test_fraction", DataConfig, {"name": "imagefolder", "test_fraction": 0.0}),
    ("data.test_folder", DataConfig, {"name": "digits", "test_folder": "val"}),
    ("data.crop_fraction", DataConfig, {"crop_fraction": 0.0}),
    ("data.std", DataConfig, {"std": (-0.5, 0.5, 0.5)}),
    ("augment.ratio", AugmentConfig, {"ratio": (1.0, float("inf"))}),
    ("augment.scale", AugmentConfig, {"scale": (0.9, 0.1)}),
    ("augment.scale", AugmentConfig, {"scale": (0.5, 1.1)}),
    ("augment.ratio", AugmentConfig, {"ratio": (2.0, 1.0)}),
    *(
        ("augment." + name, AugmentConfig, {name: value})
        for name in ("grey_probability", "erasing_probability", "mix_probability", "cutmix_probability")
        for value in (-0.1, 1.1)
    ),
    *(
        ("augment." + name, AugmentConfig, {name: -0.1})
        for name in ("mixup_alpha", "cutmix_alpha", "color_jitter", "magnitude_std")
    ),
    ("augment.magnitude", AugmentConfig, {"magnitude": 11.0}),
    *(("augment." + name, AugmentConfig, {name: 0}) for name in ("pad", "num_ops", "mix_group", "repeats")),
    ("augment.mix_group", AugmentConfig, {"mix_group": 1}),
    ("augment.first_image_size", AugmentConfig, {"first_image_size": 0, "growing_epochs": 1}),
    ("augment.growing_epochs", AugmentConfig, {"first_image_size": 16}),
    ("augment.growing_epochs", AugmentConfig, {"first_image_size": 16, "growing_epochs": -1}),
    ("augment.growing_epochs", AugmentConfig, {"growing_epochs": 2}),
    ("augment.size_step", AugmentConfig, {"size_step": 8}),
    ("augment.size_step", AugmentConfig, {"first_image_size": 16, "growing_epochs": 2, "size_step": 0}),
    ("augment.pad", AugmentConfig, {"pad": 2}),
    ("augment.scale", AugmentConfig, {"scale": (0.5, 1.0), "crop": "pad"}),
    ("augment.magnitude", AugmentConfig, {"magnitude": 5.0, "policy": "three_augment"}),
    ("augment.mix_probability", AugmentConfig, {"mix_probability": 0.5}),
    ("augment.mix_group", AugmentConfig, {"mix_group": 4}),
    ("augment.mix_probability", AugmentConfig, {"mix_probability": 0.0, "mixup_alpha": 0.1}),
    ("augment.cutmix_probability", AugmentConfig, {"cutmix_probability": 0.3, "mixup_alpha": 0.1}),
    ("augment.cutmix_probability", AugmentConfig, {"cutmix_probability": 0.0, "mixup_alpha": 0.1, "cutmix_alpha": 1.0}),
    ("optim.lr", OptimConfig, {"lr": 0.0}),
    ("optim.lr", OptimConfig, {"lr": 1e10}),
    ("optim.warmup_epochs", OptimConfig, {"schedule": "inverse_sqrt"}),
    ("optim.lr", OptimConfig, {"lr": float("inf")}),
    ("optim.clip_norm", OptimConfig, {"clip_norm": 0.0}),
    *(("optim." + name, OptimConfig, {name: -0.1}) for name in ("weight_decay", "warmup_epochs", "min_lr")),
    ("optim.min_lr", OptimConfig, {"lr": 0.1, "min_lr": 0.2}),
    ("optim.betas", OptimConfig, {"betas": (0.9, 1.0)}),
    ("optim.betas", OptimConfig, {"betas": (-0.5, 0.9)}),
    ("optim.momentum", OptimConfig, {"momentum": 1.0}),
    ("optim.momentum", OptimConfig, {"betas": (0.5, 0.9), "momentum": -0.5}),
    ("optim.layer_decay", OptimConfig, {"layer_decay": 0.0}),
    ("optim.momentum", OptimConfig, {"momentum": 0.95}),
    ("optim.betas", OptimConfig, {"name": "sgd", "betas": (0.9, 0.99)}),
    ("optim.min_lr", OptimConfig, {"schedule": "constant", "min_lr": 1e-5}),
    ("train.cuda_graphs", TrainConfig, {"cuda_graphs": True}),
    ("train.compile_blocks", TrainConfig, {"compile_blocks": True}),
    ("train.save_every_epochs", TrainConfig, {"save_every_epochs": 3}),
    ("distill.kind", DistillConfig, {"kind": "soft"}),
    ("distill.weight", DistillConfig, {"weight": 0.25}),
    ("distill.temperature", DistillConfig, {"teacher": "runs/a", "temperature": 2.0}),
    ("data.download", DataConfig, {"name": "digits", "download": True}),
    *(("data.root", DataConfig, {"name": name, "root": "elsewhere"}) for name in ("digits", "fake")),
    ("data.fake_images", DataConfig, {"name": "digits", "fake_images": 8}),
    ("distill.weight", DistillConfig, {"weight": 0.0}),
    ("distill.weight", DistillConfig, {"teacher": "T", "kind": "patches", "weight": 1.0}),
    ("distill.temperature", DistillConfig, {"temperature": float("inf")}),
    ("distill.temperature", DistillConfig, {"temperature": 0.0}),
    *(
        ("train." + name, TrainConfig, {name: 0})
        for name in (
            *("epochs", "accumulation_steps", "evaluate_every_epochs", "save_every_epochs"),
            *("save_every_steps", "log_every_steps"),
        )
    ),
    ("train.cuda_graphs", TrainConfig, {"compile": True, "cuda_graphs": True, "accumulation_steps": 2}),
    ("train.cuda_graphs", TrainConfig, {"compile": True, "cuda_graphs": True, "compile_blocks": True}),
    ("train.ema_decay", TrainConfig, {"ema_decay": float("nan")}),
    *(
        ("train.label_smoothing", kind, {"label_smoothing": 1.0})
        for kind in (ClassificationTrainConfig, TranslationTrainConfig)
    ),
    ("train.ema_decay", TrainConfig, {"ema_decay": 1.0}),
    (
        "data.batch_size",
        ClassificationRun,
        {"data": DataConfig(batch_size=10), "train": ClassificationTrainConfig(accumulation_steps=4)},
    ),
    (
        "data.batch_size",
        ClassificationRun,
        {"data": DataConfig(batch_size=12), "augment": AugmentConfig(mixup_alpha=0.1, mix_group=8)},
    ),
    (
        "augment.growing_epochs",
        ClassificationRun,
        {"augment": AugmentConfig(first_image_size=4, growing_epochs=3), "train": TrainConfig(epochs=3)},
    ),
    *(("seed", ClassificationRun, {"seed": value}) for value in (-1, 2**63)),
    ("output_dir", ClassificationRun, {"output_dir": " "}),
    (
        "optim.warmup_epochs",
        ClassificationRun,
        {"optim": OptimConfig(warmup_epochs=11), "train": TrainConfig(epochs=10)},
    ),
    *(("data." + name, TextDataConfig, {name: 0}) for name in ("batch_size", "eval_batch_size", "max_length", "pool")),
    ("data.vocabulary_size", TextDataConfig, {"vocabulary_size": 259}),
    ("data.target_language", TextDataConfig, {"target_language": "de"}),
    ("data.val_part", TextDataConfig, {"val_part": "train"}),
    ("data.test_parts", TextDataConfig, {"test_parts": ("val", "train")}),
    ("data.test_parts", TextDataConfig, {"test_parts": ()}),
    ("data.test_parts", TextDataConfig, {"test_parts": ("a", "b", "a")}),
    ("data.copying_symbols", TextDataConfig, {"name": "copying", "copying_symbols": 1}),
    *(
        ("data.copying_lengths", TextDataConfig, {"name": "copying", "copying_lengths": value})
        for value in ((0, 5), (6, 5), (5, 101))
    ),
    ("data.copying_sentences", TextDataConfig, {"name": "copying", "copying_sentences": 9}),
    ("data.copying_seed", TextDataConfig, {"name": "copying", "copying_seed": -1}),
    *(
        ("data." + name, TextDataConfig, {name: 12})
        for name in ("copying_symbols", "copying_sentences", "copying_seed")
    ),
    ("data.copying_lengths", TextDataConfig, {"copying_lengths": (1, 9)}),
    *(
        ("data." + name, TextDataConfig, {"name": "copying", name: value})
        for name, value in (
            ("root", "elsewhere"),
            ("source_language", "fr"),
            ("target_language", "fr"),
            ("val_part", "dev"),
            ("test_parts", ("val",)),
            ("vocabulary_size", 300),
            ("shared_vocabulary", False),
        )
    ),
    *(
        ("model." + name, TranslatorConfig, {name: 0})
        for name in ("width", "depth", "decoder_depth", "num_heads", "hidden_width", "max_length")
    ),
    *(
        ("model." + name, kind, {name: value})
        for kind in (TranslatorConfig, BertConfig)
        for name in ("dropout_rate", "attention_dropout_rate")
        for value in (1.0, float("nan"))
    ),
    *(
        ("model." + name, TranslatorConfig, {"name": "rnn", name: value})
        for name, value in (
            ("num_heads", 4),
            ("norm", "post"),
            ("activation", "gelu"),
            ("positions", "rope"),
            ("attention_dropout_rate", 0.1),
            ("backend", "sdpa"),
            ("hidden_width", 64),
            ("score", "dot"),
            ("max_length", 64),
        )
    ),
    ("model.decoder_depth", TranslatorConfig, {"name": "bahdanau", "decoder_depth": 2}),
    ("model.max_length", TranslatorConfig, {"max_length": 64}),
    ("model.num_heads", TranslatorConfig, {"width": 12, "num_heads": 5}),
    ("model.width", TranslatorConfig, {"width": 9, "num_heads": 3}),
    ("model.width / model.num_heads", TranslatorConfig, {"width": 9, "num_heads": 3, "positions": "rope"}),
    ("model.num_heads", BertConfig, {"num_heads": 5}),
    ("model.norm_eps", BertConfig, {"norm_eps": 0.0}),
    *(("model.in_channels", kind, {"in_channels": 0}) for kind in (ViTConfig, ResNetConfig)),
    ("model.in_channels", ClassificationRun, {"model": ModelConfig(name="vit", in_channels=1)}),
    (
        "train.accumulation_steps",
        RegressionRun,
        {"train": TrainConfig(accumulation_steps=5), "data": CurveConfig(train_points=4)},
    ),
    *(("model.initial_width", KernelConfig, {"initial_width": value}) for value in (0.0, float("inf"))),
    *(("data." + name, CurveConfig, {name: 0}) for name in ("val_points", "passes", "eval_batch_size")),
    *(("data." + name, CurveConfig, {name: 1}) for name in ("train_points", "test_points")),
    *(("data.noise", CurveConfig, {"noise": value}) for value in (-0.1, float("nan"))),
    ("data.points_seed", CurveConfig, {"points_seed": -1}),
    ("train.class_weights", ClassificationTrainConfig, {"class_weights": (1.0, 0.0)}),
    (
        "train.class_weights",
        ClassificationRun,
        {"data": DataConfig(sampling="balanced"), "train": ClassificationTrainConfig(class_weights="balanced")},
    ),
    *(
        ("augment.repeats", kind, {"data": DataConfig(sampling="balanced"), "augment": AugmentConfig(repeats=2)})
        for kind in (ClassificationRun, MaskedAutoencoderRun)
    ),
    *(
        (
            f"train.{name}",
            ClassificationRun,
            {
                "distill": DistillConfig(teacher="t", weight=1.0),
                "train": ClassificationTrainConfig(**{name: value}),  # type: ignore[arg-type]
            },
        )
        for name, value in (("loss", "bce"), ("label_smoothing", 0.1), ("class_weights", "balanced"))
    ),
    ("mae.decoder_depth", MaskedAutoencoderConfig, {"decoder_depth": 2000}),
    ("mae.decoder_width", MaskedAutoencoderConfig, {"decoder_width": 2**21}),
    ("mae.mask_ratio", MaskedAutoencoderConfig, {"mask_ratio": float("nan")}),
    ("mae.mask_ratio", MaskedAutoencoderConfig, {"mask_ratio": 1.0}),
    ("mae.decoder_heads", MaskedAutoencoderConfig, {"decoder_heads": 0}),
    ("mae.knn_images", MaskedAutoencoderConfig, {"knn_images": 19}),
    ("augment", MaskedAutoencoderRun, {"augment": AugmentConfig(mixup_alpha=0.2)}),
    ("model.freeze_backbone", MaskedAutoencoderRun, {"model": FROZEN}),
    ("contrastive.temperature", ContrastiveConfig, {"temperature": float("inf")}),
    ("contrastive.temperature", ContrastiveConfig, {"temperature": 0.0}),
    ("contrastive.projection_width", ContrastiveConfig, {"projection_width": 0}),
    ("contrastive.knn_images", ContrastiveConfig, {"knn_images": 19}),
    ("augment", ContrastiveRun, {"augment": AugmentConfig(mixup_alpha=0.2)}),
    ("augment.repeats", ContrastiveRun, {"augment": AugmentConfig(flip=True, repeats=2)}),
    ("data.sampling", ContrastiveRun, {"data": DataConfig(sampling="balanced")}),
    ("data.epoch_length", ContrastiveRun, {"data": DataConfig(fraction=0.5, epoch_length="whole_set")}),
    ("augment.crop", ContrastiveRun, {"augment": AugmentConfig(crop="none", flip=False)}),
    ("train.accumulation_steps", ContrastiveRun, {"train": TrainConfig(accumulation_steps=2)}),
    ("data.batch_size", ContrastiveRun, {"data": DataConfig(batch_size=1)}),
    ("model.freeze_backbone", ContrastiveRun, {"model": FROZEN}),
    ("optim.weight_decay", RegressionRun, {"optim": OptimConfig(weight_decay=5.0)}),
    (
        "model.pool_mlp_ratio",
        ViTConfig,
        {"width": 64, "num_heads": 4, "pooling": "map", "class_token": False, "pool_mlp_ratio": 0.001},
    ),
    ("data.sampling", TableDataConfig, {"sampling": "balanced"}),
    ("data.name", TableDataConfig, {"name": "digits"}),
    ("data.separator", TableDataConfig, {"separator": ""}),
    ("data.separator", TableDataConfig, {"separator": "|", "label_columns": ("a",)}),
    ("data.label_columns", TableDataConfig, {"label_columns": ("a", "a")}),
    *(("search." + name, SearchConfig, {name: 0}) for name in ("beam_size", "max_length")),
    *(("search.length_penalty", SearchConfig, {"length_penalty": value}) for value in (-0.1, float("nan"))),
    ("search.length_penalty", SearchConfig, {"beam_size": 1, "length_penalty": 0.5}),
    ("train.cuda_graphs", TranslationRun, {"train": TranslationTrainConfig(compile=True, cuda_graphs=True)}),
    (
        "model.share_embeddings",
        TranslationRun,
        {"model": TranslatorConfig(share_embeddings=True), "data": TextDataConfig(shared_vocabulary=False)},
    ),
    ("model.max_length", TranslationRun, {"model": TranslatorConfig(positions="learned", max_length=8)}),
]


def attempt(kind: type, values: dict[str, Any]) -> str:
    with pytest.raises(ValueError, match=" is not valid: ") as caught:
        kind(**values)
    return str(caught.value)


@pytest.mark.parametrize(
    ("name", "kind", "values"), BROKEN, ids=[f"{name}-{index}" for index, (name, *_) in enumerate(BROKEN)]
)
def test_a_broken_rule_names_its_field_in_one_line(name: str, kind: type, values: dict[str, Any]) -> None:
    message = attempt(kind, values)
    assert message.startswith(f"{name}: ")
    assert "\n" not in message


MODULES = (
    vit.config.model,
    vit.config.data,
    vit.config.run,
    vit.config.text_model,
    vit.tasks.classification.config,
    vit.tasks.contrastive.config,
    vit.tasks.masked_autoencoder.config,
    vit.tasks.multilabel.config,
    vit.tasks.regression.config,
    vit.tasks.translation.config,
)
_CALLS = (
    *("check(", "check_rate(", "check_positive(", "check_effect(", "check_finite(", "check_seed("),
    *("check_heads(", "_check_patches(", "raise "),
)


def test_every_rule_in_the_room_is_broken_here() -> None:
    """The lines that call `check` and its kin are the lines from which the errors above were raised."""
    reached = {line for _, kind, values in BROKEN for line in _lines_that_raised(kind, values)}
    missed = []
    for module in MODULES:
        for number, line in enumerate(inspect.getsource(module).splitlines(), 1):
            is_rule = any(call in line for call in _CALLS) and not line.lstrip().startswith("def ")
            if is_rule and (module.__file__, number) not in reached:
                missed.append(f"{module.__name__}:{number} {line.strip()}")
    assert not missed


def _lines_that_raised(kind: type, values: dict[str, Any]) -> set[tuple[str | None, int]]:
    with pytest.raises(ValueError) as caught:  # noqa: PT011
        kind(**values)
    files = {module.__file__ for module in MODULES}
    lines: set[tuple[str | None, int]] = set()
    trace = caught.value.__traceback__
    while trace is not None:
        file = trace.tb_frame.f_code.co_filename
        if file in files:
            first = _first_line_of_statement(trace.tb_frame, trace.tb_lasti)
            lines |= {(file, trace.tb_lineno), (file, first)}
        trace = trace.tb_next
    return lines


def _first_line_of_statement(frame: FrameType, instruction: int) -> int:
    """A call over several lines is reported at its first."""
    positions = list(frame.f_code.co_positions())[instruction // 2]
    assert positions[0] is not None
    return positions[0]


@pytest.mark.parametrize(
    ("kind", "settings"),
    [
        (ClassificationRun, ()),
        (TranslationRun, ("loss", "class_weights")),
        (MultilabelRun, ("loss", "label_smoothing", "class_weights")),
        (RegressionRun, ("loss", "label_smoothing", "class_weights")),
    ],
)
def test_a_task_has_only_the_training_settings_that_it_knows(kind: type, settings: tuple[str, ...]) -> None:
    values = {"loss": "bce", "label_smoothing": 0.1, "class_weights": "balanced"}
    for name, value in values.items():
        if name in settings:
            with pytest.raises(ValueError, match=rf"^train\.{name}: there is no such setting"):
                make_settings(kind, {f"train.{name}": value})
        else:
            assert getattr(make_settings(kind, {f"train.{name}": value}).train, name) == value


def test_a_classifiers_loss_is_one_of_two() -> None:
    with pytest.raises(ValueError, match=r"^train\.loss: 'mse' is not valid: it must be one of 'cross_entropy', 'bce'"):
        make_settings(ClassificationRun, {"train.loss": "mse"})


def test_defaults_are_valid() -> None:
    for kind in (
        ViTConfig,
        ResNetConfig,
        ModelConfig,
        DataConfig,
        AugmentConfig,
        OptimConfig,
        DistillConfig,
        TrainConfig,
        TextDataConfig,
        KernelConfig,
        CurveConfig,
        RegressionRun,
    ):
        kind()
    assert ClassificationRun().data.preprocessing((3, 5)).image_size == (3, 5)


def test_the_message_offers_what_is_near() -> None:
    assert "nearest image sizes are 224 or 240" in attempt(ViTConfig, {"image_size": (225, 224)})
    assert "nearest image size is 16" in attempt(ViTConfig, {"image_size": (15, 224)})
    assert "the nearest that does is 16" in attempt(ViTConfig, {"width": 16, "num_heads": 32})
    assert nearest("adam", ["adamw", "sgd"]) == "did you mean 'adamw'?"
    assert nearest("mnist", ["KMNIST", "MNIST"]) == "did you mean 'MNIST'?"
    assert nearest("zzz", ["sgd", "adamw"]) == "choose from adamw, sgd"


def test_sizes() -> None:
    config = ViTConfig(image_size=(32, 48), patch_size=(8, 16), num_registers=3, distillation_token=True)
    assert config.grid_size == (4, 3)
    assert config.num_prefix_tokens == 5


def test_mixing_needs_an_alpha_and_a_probability() -> None:
    assert not AugmentConfig().mixes
    assert AugmentConfig(cutmix_alpha=1.0).mixes
    assert AugmentConfig(mixup_alpha=0.1, mix_probability=0.5).mixes


def test_this_room_needs_no_torch() -> None:
    for module in (*MODULES, vit.config.rules):
        imported = {name for name, value in vars(module).items() if inspect.ismodule(value)}
        assert imported <= {"difflib"}


def test_a_path_is_not_its_own_suggestion(tmp_path: Path) -> None:
    for name in ("photos", "photo_list.csv", "notes"):
        (tmp_path / name).touch()
    assert vit.config.rules.nearest_path(tmp_path / "photo") == f"did you mean {str(tmp_path / 'photos')!r}?"
    assert vit.config.rules.nearest_path(tmp_path / "notes") == ""
    assert vit.config.rules.nearest_path(tmp_path / "nowhere" / "photo") == ""


@pytest.mark.parametrize(
    ("kind", "settings", "said"),
    [
        (DataConfig, {"batch_size": 12.5}, "data.batch_size: 12.5 is not valid: it must be a whole number"),
        (DataConfig, {"batch_size": "a"}, "data.batch_size: 'a' is not valid: it must be a whole number"),
        (DataConfig, {"workers": True}, "data.workers: True is not valid: it must be a whole number"),
        (AugmentConfig, {"pad": 1.5}, "augment.pad: 1.5 is not valid: it must be a whole number"),
        (OptimConfig, {"lr": "a"}, "optim.lr: 'a' is not valid: it must be a number"),
        (DataConfig, {"root": Path("a")}, "data.root: PosixPath('a') is not valid: it must be text; give str() of it"),
        (TrainConfig, {"epochs": 2.0}, "train.epochs: 2.0 is not valid: it must be a whole number"),
        (BertConfig, {"width": 16.0}, "model.width: 16.0 is not valid: it must be a whole number"),
    ],
)
def test_settings_made_in_python_have_their_types(
    kind: Callable[..., Any], settings: dict[str, Any], said: str
) -> None:
    with pytest.raises(ValueError, match=f"^{re.escape(said)}"):
        kind(**settings)


def test_a_list_in_python_is_a_tuple() -> None:
    mean: Any = [0.5, 0.4, 0.3]
    assert DataConfig(mean=mean) == DataConfig(mean=(0.5, 0.4, 0.3))
    hash(DataConfig(mean=mean))
