"""The order in which `auto` tries the backends, chosen by measurement. A backend that refuses is skipped.

`python -m benchmarks attention` repeats the measurements. Notation: see `core.py`.
"""

from __future__ import annotations

import torch
from torch import Tensor

from vit.attention.backends import AttentionOptions
from vit.processor import MULTIPLIES_BFLOAT16

SDPA_FIRST = ("sdpa", "matmul", "reference")
MATMUL_FIRST = ("matmul", "sdpa", "reference")
WITHOUT_SDPA = ("matmul", "reference")


def preferences(query: Tensor, key: Tensor, options: AttentionOptions) -> tuple[str, ...]:
    """The backends that `auto` tries, in order; the last one supports everything."""
    on_cpu, num_keys = query.device.type == "cpu", key.shape[2]
    grad_enabled = torch.is_grad_enabled()
    needs_grad = grad_enabled and query.requires_grad
    if grad_enabled and options.bias is not None and options.bias.requires_grad:
        # On CUDA torch's kernels. triton would not materialize the map for a learned bias, but was slower than sdpa
        # without one (H100: 0.23 against 0.02 ms at 197 tokens, 2.2 against 1.8 at 4,096), and with one was not timed:
        # it is used only when named. Elsewhere sdpa materializes the map and adds the bias in a separate pass.
        return SDPA_FIRST if query.device.type == "cuda" else WITHOUT_SDPA
    # In every case below, longer maps are not worth their memory.
    if on_cpu and needs_grad and query.dtype in (torch.bfloat16, torch.float16) and num_keys <= 512:
        # sdpa's backward is slow in 16 bits: matmul trained 4.9 times faster at 65 tokens, 2.3 at 197, 1.6 at 577, with
        # a mask 4.5, 2.2 and 1.4 (two cores, AVX512_BF16); on one core without it 2.8 times at 65 and equal at 577.
        return MATMUL_FIRST
    if on_cpu and not needs_grad and query.dtype == torch.bfloat16 and MULTIPLIES_BFLOAT16 and num_keys <= 640:
        # oneDNN's bfloat16 products beat sdpa's: 2.2 times faster at 65 tokens, 1.6 at 197, 1.4 at 577, with a mask
        # 1.8, 1.5 and 1.3, for one query over 200 keys 1.8 (two cores, AVX512_BF16); equal at 17, slower for tiny
        # calls; 1.3 and 1.1 at 1,025.
        return MATMUL_FIRST
    if on_cpu and needs_grad and torch.compiler.is_compiling() and num_keys <= 128:
        # The compiler fuses softmax and its gradient with their neighbours: at 64 tokens a float32 step of a small ViT
        # took 0.92 of the time with sdpa in batches of 8 and the same time in batches of 128; at 197 tokens the same;
        # nothing was measured between (two cores, AVX-512).
        return MATMUL_FIRST
    # In float32 sdpa was fastest or within 10 % from 17 to 1025 tokens (one core, and two; AVX-512).
    return SDPA_FIRST
