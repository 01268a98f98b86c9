"""Augmentation of a whole training batch on its device; `Augment` is the entry point, `TwoViews` does it twice.

The steps: crop and flip (`crops`, `resampling`), policy and colour jitter (`policies`, `geometry`, `colors`),
normalisation, `erasing`, `mixing`. Every random number comes from `SampleRandom`, so the result for a sample depends on
(seed, epoch, position) alone, for mixing also on its group; never on the rest of the batch.

Pixels stay whole numbers from 0 to 255 until normalisation, and nearly all arithmetic on them is fixed-point (factors
rounded to a power of two, sums below 2²⁴), so float32 computes it without rounding error: the result does not depend
on the order of summation, the number of threads or the batch size.
"""

from vit.data.augment.pipeline import Augment, TwoViews

__all__ = ["Augment", "TwoViews"]
