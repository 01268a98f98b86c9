"""Every setting of a run, and every rule that makes one valid. Nothing else: no torch, no files.

One frozen dataclass a section of the YAML file. `None` in `ModelConfig` means "as the model's name says"; the zoo
(`vit/models/zoo.py`) turns a `ModelConfig` into a full `ViTConfig` or `ResNetConfig`.
"""

from vit.config.data import AugmentConfig, DataConfig, Interpolation, Preprocessing
from vit.config.model import Backend, ModelConfig, ResNetConfig, Stem, ViTConfig
from vit.config.regression import CurveConfig, KernelConfig, RegressionRun
from vit.config.rules import check, check_positive, nearest
from vit.config.run import ClassificationRun, DistillConfig, OptimConfig, RunConfig, TrainConfig
from vit.config.text_data import TextDataConfig
from vit.config.text_model import BertConfig, LayerConfig, TranslatorConfig
from vit.config.translation import SearchConfig, TranslationRun

RUNS: dict[str, type[ClassificationRun] | type[TranslationRun] | type[RegressionRun]] = {
    "classification": ClassificationRun,
    "translation": TranslationRun,
    "regression": RegressionRun,
}
"""The class of a run's settings by its `task`."""

__all__ = [
    "RUNS",
    "AugmentConfig",
    "Backend",
    "BertConfig",
    "ClassificationRun",
    "CurveConfig",
    "DataConfig",
    "DistillConfig",
    "Interpolation",
    "KernelConfig",
    "LayerConfig",
    "ModelConfig",
    "OptimConfig",
    "Preprocessing",
    "RegressionRun",
    "ResNetConfig",
    "RunConfig",
    "SearchConfig",
    "Stem",
    "TextDataConfig",
    "TrainConfig",
    "TranslationRun",
    "TranslatorConfig",
    "ViTConfig",
    "check",
    "check_positive",
    "nearest",
]
