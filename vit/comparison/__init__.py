"""Comparison of several classifiers on the same images: paired statistics, calibration, agreement, cost."""

from __future__ import annotations

from typing import TYPE_CHECKING

from vit.exports import lazy_exports

if TYPE_CHECKING:
    from vit.comparison.agreement import agreement_rates as agreement_rates
    from vit.comparison.agreement import cohens_kappa as cohens_kappa
    from vit.comparison.calibration import CalibrationMetrics as CalibrationMetrics
    from vit.comparison.calibration import calibration_metrics as calibration_metrics
    from vit.comparison.calibration import fit_temperature as fit_temperature
    from vit.comparison.compare import CompareRequest as CompareRequest
    from vit.comparison.compare import Comparison as Comparison
    from vit.comparison.compare import compare_models as compare_models
    from vit.comparison.report import write_report as write_report
    from vit.comparison.transfer import TransferRequest as TransferRequest
    from vit.comparison.transfer import compare_features as compare_features
    from vit.comparison.transfer_report import write_transfer_report as write_transfer_report
    from vit.evaluation.statistics import Interval as Interval
    from vit.evaluation.statistics import discordance as discordance
    from vit.evaluation.statistics import holm as holm
    from vit.evaluation.statistics import mcnemar as mcnemar
    from vit.evaluation.statistics import wilson_interval as wilson_interval
else:  # type checkers would take any name for one of `__getattr__`'s
    __getattr__, __dir__, __all__ = lazy_exports(__name__)
