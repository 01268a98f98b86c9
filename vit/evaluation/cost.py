"""Computed cost of a model: parameters, multiply-adds, training memory. (`speed` and `memory` measure.)

Multiply-adds and memory come from a pass without data (meta and fake tensors), so they need neither the device nor the
memory in question.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import replace

import torch
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks
from torch.func import functional_call
from torch.nn.attention import SDPBackend, sdpa_kernel

from vit.attention.multihead import MultiHeadAttention, SelfAttention
from vit.config import OptimizerName, ViTConfig, check_arguments
from vit.engine import DTYPES
from vit.evaluation.evaluate import evaluating
from vit.layers.block import Block
from vit.layers.regularization import PatchDropout
from vit.models import Classifier, build_model
from vit.randomness import SampleRandom

_BYTES = 4  # parameters, their gradients and the optimizer's moments are float32 under autocast


@check_arguments
def count_parameters(model: nn.Module) -> int:
    """Count parameters, frozen ones included; one that is used in two places counts once."""
    return sum(parameter.numel() for parameter in model.parameters())


@check_arguments
def multiply_adds(
    model: nn.Module, image_size: tuple[int, int], *, every_token: bool = True, patch_dropout: bool = False
) -> int:
    """Count multiply-adds of one image's forward pass: convolutions and matrix products, also those of attention.

    In its last block, our model skips tokens that its head does not read. They are counted, as in published numbers,
    unless `every_token` is False. `patch_dropout`: leave out patches as a training step does. Biases, norms,
    activations and softmax are not counted.

    The number is the same on any device and for any attention backend, of any library: the pass runs on the meta
    device, where torch decomposes its fused attention into products, and so does ours. A module that cannot be computed
    there, as one that reads numbers of a tensor, sees an image of zeros on its own device.
    """
    tensors = {**dict(model.named_parameters()), **dict(model.named_buffers())}
    meta = {name: tensor.detach().to("meta") for name, tensor in tensors.items()}
    from torch.utils.flop_counter import FlopCounterMode  # imported late: it imports triton

    counter = FlopCounterMode(display=False)
    dtype = next((parameter.dtype for parameter in model.parameters()), torch.float32)
    all_tokens = _all_tokens_computed(model) if every_token else nullcontext()
    with evaluating(model), _meta_backends(model), all_tokens, torch.no_grad(), counter:
        if patch_dropout:
            for module in model.modules():
                module.training = isinstance(module, PatchDropout)
        image = torch.empty(1, 3, *image_size, device="meta", dtype=dtype)
        try:
            functional_call(model, meta, (image,))
        except (RuntimeError, TypeError):
            if isinstance(model, Classifier):
                raise
            return _counted_on_its_device(model, torch.zeros_like(image, device=_device_of(model)))
    return counter.get_total_flops() // 2


def _counted_on_its_device(model: nn.Module, image: Tensor) -> int:
    from torch.utils.flop_counter import FlopCounterMode

    with sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counter:
        model(image)
    return counter.get_total_flops() // 2


def _device_of(model: nn.Module) -> torch.device:
    return next((tensor.device for tensor in (*model.parameters(), *model.buffers())), torch.device("cpu"))


@contextmanager
def _all_tokens_computed(model: nn.Module) -> Iterator[None]:
    """Hook every block, because a hooked block computes all its tokens."""
    blocks = [module for module in model.modules() if isinstance(module, Block)]
    handles = [block.register_forward_hook(lambda *_: None) for block in blocks]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


@contextmanager
def _meta_backends(model: nn.Module) -> Iterator[None]:
    """Choose attention backends that run on the meta device; triton and flex do not."""
    chosen = {m: m.backend for m in model.modules() if isinstance(m, SelfAttention | MultiHeadAttention)}
    for module in chosen:
        module.backend = "auto"
    try:
        yield
    finally:
        for module, backend in chosen.items():
            module.backend = backend


@check_arguments
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
    """Compute the bytes of `weights`, `gradients`, `optimizer`, `ema` weights and `activations` in one process.

    `batch_size` is the micro-batch of the process; frozen parameters have neither gradient nor optimizer state. The
    first four are exact. Activations are the tensors that autograd keeps for the backward pass of model and
    cross-entropy, found by a pass on fake CPU tensors: exact for a ViT on a CPU, a percent off for a ResNet; kernels of
    other devices may keep more or less. Temporaries of kernels and augmentation, the data and the allocator's overhead
    are not included, so the real peak is higher.
    """
    from torch._subclasses.fake_tensor import FakeTensorMode

    meta_model = _on_meta_device(model, image_size, device_type)
    meta_model.gradient_checkpointing = gradient_checkpointing
    with FakeTensorMode(allow_non_fake_inputs=True):
        meta_model.to_empty(device="cpu")  # fake: nothing is allocated
        activations = activation_memory(meta_model, image_size, batch_size, precision=precision)
    trained = sum(parameter.numel() for parameter in model.parameters() if parameter.requires_grad)
    return {
        "weights": sum(tensor.nbytes for tensor in (*model.parameters(), *model.buffers())),
        "gradients": _BYTES * trained,
        "optimizer": _BYTES * _optimizer_numbers(model, optimizer),
        "ema": _BYTES * count_parameters(model) if ema else 0,
        "activations": activations,
    }


def _on_meta_device(model: Classifier, image_size: tuple[int, int], device_type: str) -> Classifier:
    """Build the model on the meta device, equally frozen, with an attention backend that the pass on CPU tensors can
    take, and that keeps as much as the device's own.
    """
    config = replace(model.config, image_size=image_size)
    elsewhere = ("flex", "triton") if device_type == "cpu" else ("auto", "flex", "triton")
    if isinstance(config, ViTConfig) and config.backend in elsewhere:
        config = replace(config, backend="sdpa")
    with torch.device("meta"):
        meta_model = build_model(config)
    for parameter, original in zip(meta_model.parameters(), model.parameters(), strict=True):
        parameter.requires_grad_(original.requires_grad)
    return meta_model


def activation_memory(
    model: Classifier, image_size: tuple[int, int], batch_size: int, *, precision: str = "fp32"
) -> int:
    """Count the bytes that autograd keeps between the forward and backward pass of a step, each storage once.

    Autocast's 16-bit copies of weights are included, the parameters themselves are not. This runs the forward pass;
    inside a fake-tensor mode, with a model built there, nothing is computed.
    """
    storages: dict[int, int] = {}
    kept: list[Tensor] = []  # keeps the storages alive, so that no identity is reused
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
        with torch.autocast(device.type, DTYPES[precision], enabled=precision != "fp32"):
            logits = model.train()(images, rng=rng)
        targets = torch.zeros_like(logits, dtype=torch.float32)
        nn.functional.cross_entropy(logits.float(), targets)
    return sum(storages.values())


def _optimizer_numbers(model: Classifier, optimizer: OptimizerName) -> int:
    """Count the optimizer's numbers: two moments per parameter; one for SGD and for what Muon updates."""
    numbers = 0
    for name, parameter in model.named_parameters():
        if parameter.requires_grad:
            in_block = parameter.ndim in (2, 4) and model.is_in_block(name)
            one = optimizer == "sgd" or (optimizer == "muon" and in_block)
            numbers += parameter.numel() * (1 if one else 2)
    return numbers
