"""Statistics of the attention weights by one Triton kernel, `kernel.py`, imported on first use.

Notation: see `core.py`.
"""

from __future__ import annotations

from torch import Tensor

from vit.attention.backends import Refused
from vit.attention.backends.triton import DTYPES, MAX_WIDTH, check_device
from vit.attention.scores import InnerProduct
from vit.attention.statistics.spec import RawStatistics, StatisticsSpec


def fused(query: Tensor, key: Tensor, spec: StatisticsSpec) -> RawStatistics:
    """The statistics, in float32. `Refused` for other devices than CUDA, except in triton's interpreter."""
    options = spec.options
    check_device(query.device, instead="streamed")
    if not isinstance(options.score, InnerProduct):
        raise Refused("triton", f"the score {type(options.score).__name__} is not an inner product, use 'streamed'")
    if spec.block_size is not None:
        raise Refused("triton", "it chooses its own blocks; leave block_size out or use 'streamed'")
    query, key, factor = options.score.vectors(query, key, options.scale)
    if query.dtype != key.dtype or query.dtype not in DTYPES:
        found = ", ".join(sorted({str(query.dtype), str(key.dtype)}))
        raise Refused("triton", f"it takes float32, bfloat16 or float16, not {found}, use 'streamed'")
    if query.shape[-1] > MAX_WIDTH:
        raise Refused("triton", f"it takes heads of at most {MAX_WIDTH}, not {query.shape[-1]}, use 'streamed'")
    from vit.attention.statistics.kernel import compute

    return compute(query, key, float(factor), spec)
