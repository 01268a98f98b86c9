"""Settings that tasks share, as frozen dataclasses, one for each section of the YAML file, with their validation.

`None` in `ModelConfig` stands for the value of the named model; the zoo (`vit/models/zoo.py`) turns a `ModelConfig`
into a full `ViTConfig` or `ResNetConfig`.
"""

from vit.config.arguments import check_arguments
from vit.config.data import DATA_SETS, AugmentConfig, DataConfig, Interpolation, Preprocessing, is_data_set
from vit.config.model import ModelConfig
from vit.config.resnet import ResNetConfig, Shortcut
from vit.config.rules import check, check_no_pipe, check_positive, nearest
from vit.config.run import ImageRun, OptimConfig, OptimizerName, RunConfig, TrainConfig
from vit.config.text_model import BertConfig, LayerConfig
from vit.config.vit import Backend, Grid, PositionResize, StemKind, ViTConfig

__all__ = [
    "DATA_SETS",
    "AugmentConfig",
    "Backend",
    "BertConfig",
    "DataConfig",
    "Grid",
    "ImageRun",
    "Interpolation",
    "LayerConfig",
    "ModelConfig",
    "OptimConfig",
    "OptimizerName",
    "PositionResize",
    "Preprocessing",
    "ResNetConfig",
    "RunConfig",
    "Shortcut",
    "StemKind",
    "TrainConfig",
    "ViTConfig",
    "check",
    "check_arguments",
    "check_no_pipe",
    "check_positive",
    "is_data_set",
    "nearest",
]
