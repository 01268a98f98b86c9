"""The last block skips tokens that the head does not read, without changing any result."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, cast

import pytest
import torch
from torch import Tensor

from vit.config import ViTConfig
from vit.evaluation.cost import multiply_adds
from vit.models.vision_transformer import VisionTransformer
from vit.randomness import SampleRandom

SMALL = ViTConfig(image_size=(8, 12), patch_size=(4, 4), width=24, depth=2, num_heads=3, num_classes=5)
NUM_TOKENS = 7
READ: dict[str, tuple[dict[str, Any], int]] = {
    # what differs, tokens that are read
    "plain": ({}, 1),
    "registers": ({"num_registers": 2, "layer_scale": 0.1, "qk_norm": True}, 1),
    "two heads": ({"distillation_token": True}, 2),
    "distillation token unread": ({"distillation_token": True, "distillation_head": False}, 1),
    "rotary": ({"positions": "rope"}, 1),
    "relative": ({"positions": "relative"}, 1),
    "normalised when pooled": ({"final_norm": "pooled"}, 1),
    "means": ({"pooling": "gap", "class_token": False}, NUM_TOKENS - 1),
    "class token and mean": ({"pooling": "cls_gap"}, NUM_TOKENS),
    "attention pool": ({"pooling": "map"}, NUM_TOKENS),
}


def _model(**changes: Any) -> VisionTransformer:
    torch.manual_seed(0)
    model = VisionTransformer(replace(SMALL, **changes))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(std=0.3)
    return model.double()


def _images() -> Tensor:
    return torch.randn(2, 3, 8, 12, generator=torch.Generator().manual_seed(1), dtype=torch.float64)


def _watch(model: VisionTransformer) -> list[Tensor]:
    """The output of the last block. The hook itself makes the model compute all tokens."""
    seen: list[Tensor] = []
    model.blocks[-1].register_forward_hook(lambda _module, _args, output: seen.append(output))
    return seen


def _logits_and_gradients(model: VisionTransformer, rng: SampleRandom | None = None) -> tuple[Tensor, list[Tensor]]:
    logits = model(_images(), rng=rng)
    return logits, list(torch.autograd.grad(logits.square().sum(), list(model.parameters())))


@pytest.mark.parametrize("name", READ)
def test_logits_and_gradients_are_those_of_all_tokens(name: str) -> None:
    model = _model(**READ[name][0]).eval()
    found = _logits_and_gradients(model)
    seen = _watch(model)
    torch.testing.assert_close(found, _logits_and_gradients(model))
    assert seen[0].shape[1] >= NUM_TOKENS - 1


@pytest.mark.parametrize("name", READ)
def test_only_what_is_read_is_computed(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    changes, num_read = READ[name]
    model = _model(**changes)
    given: list[int] = []
    real = model.norm.forward

    def counting(tokens: Tensor) -> Tensor:
        given.append(tokens.shape[1])
        return real(tokens)

    monkeypatch.setattr(model.norm, "forward", counting)
    model(_images())
    assert given == [num_read]


def test_a_hook_on_the_last_block_sees_all_tokens() -> None:
    for part in ("blocks.1", "blocks.1.attention.output", "blocks.1.feedforward.fc1", "norm"):
        model, seen = _model(), list[Tensor]()
        model.get_submodule(part).register_forward_hook(lambda _m, _a, output, seen=seen: seen.append(output))
        model(_images())
        assert seen[0].shape[1] == NUM_TOKENS
    model, seen = _model(), list[Tensor]()
    model.get_submodule("blocks.1.norm2").register_forward_pre_hook(lambda _m, args, seen=seen: seen.append(args[0]))
    model(_images())
    assert seen[0].shape[1] == NUM_TOKENS


def test_random_draws_are_those_of_all_tokens() -> None:
    rates = {"dropout_rate": 0.3, "stochastic_depth_rate": 0.3, "patch_dropout_rate": 0.5}
    for changes in (rates, {"attention_dropout_rate": 0.3}):
        model = _model(**changes).train()
        rng = SampleRandom.at(0, 0, torch.arange(2))
        found = _logits_and_gradients(model, rng)
        _watch(model)
        torch.testing.assert_close(found, _logits_and_gradients(model, rng))


def test_checkpointed_blocks_skip_unread_tokens_too() -> None:
    model = _model().train()
    expected = _logits_and_gradients(model)
    model.gradient_checkpointing = True
    torch.testing.assert_close(_logits_and_gradients(model), expected)


def test_skipped_work() -> None:
    """In the last block, of six tokens: scores and averages, the projection, the feed-forward layer."""
    model = _model()
    left_out = 6 * (2 * 7 * 24 + 24 * 24 + 2 * 24 * 96)
    whole, computed = (multiply_adds(model, (8, 12), every_token=every) for every in (True, False))
    assert whole - computed == left_out
    assert not any(module._forward_hooks for module in model.modules())


def test_who_looks_at_gradients_sees_those_of_all_tokens() -> None:
    model, seen = _model(), list[tuple[int, ...]]()
    model.blocks[-1].register_full_backward_hook(lambda *given: seen.append(tuple(cast(Tensor, given[2][0]).shape)))
    model(_images()).sum().backward()
    assert seen == [(2, NUM_TOKENS, 24)]
