"""What a model costs on paper: parameters, multiply-adds, memory to train it. (Measured: `speed`, `memory`.)

Multiply-adds and memory are found by a pass without data (meta and fake tensors), so they need neither the device
nor the memory that they are about. This room does not know how a model is trained, only by which rule.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from typing import Literal

import torch
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks
from torch.func import functional_call

from vit.attention.multihead import MultiHeadAttention, SelfAttention
from vit.config import ViTConfig
from vit.evaluation.evaluate import evaluating
from vit.layers.block import Block
from vit.models import Classifier, build_model
from vit.randomness import SampleRandom

OptimizerName = Literal["adamw", "sgd", "lamb", "muon"]
_DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
_BYTES = 4  # parameters, their gradients and the optimizer's moments are float32 under autocast


def count_parameters(model: nn.Module) -> int:
    """Numbers that can be learned, frozen ones included; a parameter used in two places counts once."""
    return sum(parameter.numel() for parameter in model.parameters())


def multiply_adds(model: nn.Module, image_size: tuple[int, int], *, every_token: bool = True) -> int:
    """Multiply-adds of one image's forward pass: every convolution and matrix product, attention's QKᵀ and AV too.

    Our own model leaves out, in its last block, the tokens that its head does not read. They are counted all the same,
    as published numbers do; not with `every_token` False.

    Additions of biases, norms, activations and softmax are not counted. The same number on any device and for any
    attention backend, of any library: the pass runs on the meta device, where torch takes its fused attention apart
    into its products, and so does ours whatever backend the model is set to.
    """
    tensors = {**dict(model.named_parameters()), **dict(model.named_buffers())}
    meta = {name: tensor.detach().to("meta") for name, tensor in tensors.items()}
    from torch.utils.flop_counter import FlopCounterMode  # it imports triton

    counter = FlopCounterMode(display=False)
    dtype = next((parameter.dtype for parameter in model.parameters()), torch.float32)
    watched = _watched(model) if every_token else nullcontext()
    with evaluating(model), _any_backend(model), watched, torch.no_grad(), counter:
        functional_call(model, meta, (torch.empty(1, 3, *image_size, device="meta", dtype=dtype),))
    return counter.get_total_flops() // 2


@contextmanager
def _watched(model: nn.Module) -> Iterator[None]:
    """Where blocks are watched, all their tokens are computed."""
    blocks = [module for module in model.modules() if isinstance(module, Block)]
    handles = [block.register_forward_hook(lambda *_: None) for block in blocks]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


@contextmanager
def _any_backend(model: nn.Module) -> Iterator[None]:
    """Our attention by whichever backend runs on the meta device; triton and flex do not."""
    chosen = {m: m.backend for m in model.modules() if isinstance(m, SelfAttention | MultiHeadAttention)}
    for module in chosen:
        module.backend = "auto"
    try:
        yield
    finally:
        for module, backend in chosen.items():
            module.backend = backend


def training_memory(
    model: Classifier,
    image_size: tuple[int, int],
    *,
    batch_size: int,
    optimizer: OptimizerName = "adamw",
    precision: str = "fp32",
    ema: bool = False,
    gradient_checkpointing: bool = False,
    device_type: str = "cpu",
) -> dict[str, int]:
    """Bytes of `weights`, `gradients`, `optimizer`, `ema` weights and `activations`, in one process.

    `batch_size` is the micro-batch of the process; frozen parameters have neither gradient nor optimizer state. The
    first four are exact. Activations are what autograd keeps for the backward pass of model and cross-entropy, measured
    by a pass on fake CPU tensors: exact for a ViT on a CPU, a percent off for a ResNet, on other devices up to what
    their kernels keep. Not in it: temporaries of kernels and of the augmentation, the data, and the allocator's own
    slack, so the real peak is higher.
    """
    from torch._subclasses.fake_tensor import FakeTensorMode

    twin = _unallocated(model, image_size, device_type)
    twin.gradient_checkpointing = gradient_checkpointing
    with FakeTensorMode(allow_non_fake_inputs=True):
        twin.to_empty(device="cpu")  # fake: nothing is allocated
        activations = activation_memory(twin, image_size, batch_size, precision=precision)
    trained = sum(parameter.numel() for parameter in model.parameters() if parameter.requires_grad)
    return {
        "weights": sum(tensor.nbytes for tensor in (*model.parameters(), *model.buffers())),
        "gradients": _BYTES * trained,
        "optimizer": _BYTES * _optimizer_numbers(model, optimizer),
        "ema": _BYTES * count_parameters(model) if ema else 0,
        "activations": activations,
    }


def _unallocated(model: Classifier, image_size: tuple[int, int], device_type: str) -> Classifier:
    """The same model on the meta device, frozen where it is, with the attention that `device_type` would choose."""
    config = replace(model.config, image_size=image_size)
    if isinstance(config, ViTConfig) and config.backend == "auto" and device_type != "cpu":
        config = replace(config, backend="sdpa")
    with torch.device("meta"):
        twin = build_model(config)
    for mine, theirs in zip(twin.parameters(), model.parameters(), strict=True):
        mine.requires_grad_(theirs.requires_grad)
    return twin


def activation_memory(
    model: Classifier, image_size: tuple[int, int], batch_size: int, *, precision: str = "fp32"
) -> int:
    """Bytes that autograd keeps between the forward and the backward pass of a training step, each storage once.

    16-bit copies of weights that autocast makes are in it, the parameters themselves are not. Runs the forward pass:
    inside a fake-tensor mode, with a model built there, nothing is computed.
    """
    storages: dict[int, int] = {}
    kept: list[Tensor] = []  # holds the storages, so that none is freed and its number used again
    owned = {tensor.untyped_storage()._cdata for tensor in (*model.parameters(), *model.buffers())}

    def pack(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage._cdata not in owned:
            storages[storage._cdata] = storage.nbytes()
            kept.append(tensor.detach())
        return tensor

    device = next(model.parameters()).device
    images = torch.rand(batch_size, 3, *image_size, device=device)
    rng = SampleRandom.at(0, 0, torch.arange(batch_size, device=device))
    with saved_tensors_hooks(pack, lambda tensor: tensor):
        with torch.autocast(device.type, _DTYPES[precision], enabled=precision != "fp32"):
            logits = model.train()(images, rng=rng)
        targets = torch.zeros_like(logits, dtype=torch.float32)
        nn.functional.cross_entropy(logits.float(), targets)
    return sum(storages.values())


def _optimizer_numbers(model: Classifier, optimizer: OptimizerName) -> int:
    """Numbers kept: two moments a parameter; one for SGD, and for a block's matrix under Muon."""
    numbers = 0
    for name, parameter in model.named_parameters():
        if parameter.requires_grad:
            in_block = parameter.ndim == 2 and 0 < model.layer_of(name) < model.num_layers
            one = optimizer == "sgd" or (optimizer == "muon" and in_block)
            numbers += parameter.numel() * (1 if one else 2)
    return numbers
