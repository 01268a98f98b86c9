"""Statistics of the attention weights by one Triton kernel, and what that refuses.

The program is in `kernel.py`, which is imported on first use. Letters: see `attend.py`.
"""

from __future__ import annotations

from torch import Tensor

from vit.attention.backends import Refused
from vit.attention.backends.triton import DTYPES, WIDEST, refuse_device
from vit.attention.scores import InnerProduct
from vit.attention.statistics.question import Answers, Question


def fused(query: Tensor, key: Tensor, question: Question) -> Answers:
    """The answers, in float32. `Refused` off a CUDA device (but for triton's interpreter)."""
    request = question.request
    refuse_device(query.device, instead="streamed")
    if not isinstance(request.score, InnerProduct):
        raise Refused("triton", f"the score {type(request.score).__name__} is no inner product, use 'streamed'")
    if question.block_size is not None:
        raise Refused("triton", "it chooses its own blocks; leave block_size out or use 'streamed'")
    query, key, factor = request.score.vectors(query, key, request.scale)
    if query.dtype != key.dtype or query.dtype not in DTYPES:
        found = ", ".join(sorted({str(query.dtype), str(key.dtype)}))
        raise Refused("triton", f"it takes float32, bfloat16 or float16, not {found}, use 'streamed'")
    if query.shape[-1] > WIDEST:
        raise Refused("triton", f"it takes heads of at most {WIDEST}, not {query.shape[-1]}, use 'streamed'")
    from vit.attention.statistics.kernel import answer

    return answer(query, key, float(factor), question)
