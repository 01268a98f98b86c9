"""A classifier's predictions and what follows from them: metrics, transfer, cost, robustness."""

from __future__ import annotations

from typing import TYPE_CHECKING

from vit.exports import lazy_exports

if TYPE_CHECKING:
    from vit.evaluation.cost import count_parameters as count_parameters
    from vit.evaluation.cost import multiply_adds as multiply_adds
    from vit.evaluation.cost import training_memory as training_memory
    from vit.evaluation.doctor import Diagnosis as Diagnosis
    from vit.evaluation.doctor import diagnose_preprocessing as diagnose_preprocessing
    from vit.evaluation.doctor import open_images as open_images
    from vit.evaluation.evaluate import predict_all as predict_all
    from vit.evaluation.memory import PeakMemory as PeakMemory
    from vit.evaluation.memory import inference_memory as inference_memory
    from vit.evaluation.metrics import calibration_curve as calibration_curve
    from vit.evaluation.metrics import calibration_error as calibration_error
    from vit.evaluation.metrics import classification_metrics as classification_metrics
    from vit.evaluation.metrics import confusion_matrix as confusion_matrix
    from vit.evaluation.metrics import per_class_accuracy as per_class_accuracy
    from vit.evaluation.model_evaluation import evaluate_model as evaluate_model
    from vit.evaluation.predictions import Predictions as Predictions
    from vit.evaluation.probe import linear_probe as linear_probe
    from vit.evaluation.transfer import few_shot_predictions as few_shot_predictions
    from vit.evaluation.transfer import knn_predictions as knn_predictions
    from vit.evaluation.transfer_evaluation import TransferOptions as TransferOptions
    from vit.evaluation.transfer_evaluation import evaluate_features as evaluate_features
    from vit.evaluation.transfer_evaluation import open_transfer_data as open_transfer_data
else:  # type checkers would take any name for one of `__getattr__`'s
    __getattr__, __dir__, __all__ = lazy_exports(__name__)
