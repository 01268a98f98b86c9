"""The masked autoencoder: what it may see, its decoder and its loss against transformers', and its patches' order."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from transformers import ViTMAEConfig, ViTMAEForPreTraining

from vit.config import ViTConfig
from vit.layers.positions import sincos_2d
from vit.models import VisionTransformer
from vit.models.masked_autoencoder import (
    Decoder,
    DecoderConfig,
    MaskedAutoencoder,
    num_seen,
    patch_pixels,
    pixels_to_images,
    seen_patches,
)
from vit.randomness import SampleRandom
from vit.tasks.masked_autoencoder.metrics import masked_losses
from vit.weights.hf_family import QUERY_KEY_VALUE
from vit.weights.layout import Layout, apply_rules, block_rules, copied

ENCODER = ViTConfig(image_size=(16, 24), patch_size=(4, 8), width=16, depth=2, num_heads=2, num_classes=0)
DECODER = DecoderConfig(width=8, depth=1, num_heads=2)
THEIR_DECODER = Layout(
    name="transformers' decoder",
    recognizes=bool,
    prefixes=("decoder.",),
    rules=(
        copied("mask_token", "mask_token"),
        copied("embedding.{kind}", "decoder_embed.{kind}"),
        *block_rules(
            "decoder_layers.{layer}.",
            "layernorm_before.{kind}",
            QUERY_KEY_VALUE,
            *("attention.output.dense.{kind}", "layernorm_after.{kind}"),
            *("intermediate.dense.{kind}", "output.dense.{kind}"),
        ),
        copied("norm.{kind}", "decoder_norm.{kind}"),
        copied("pixels.{kind}", "decoder_pred.{kind}"),
    ),
)


def autoencoder(**changes: object) -> MaskedAutoencoder:
    torch.manual_seed(0)
    return MaskedAutoencoder(VisionTransformer(ViTConfig(**{**vars(ENCODER), **changes})), DECODER).eval()


def random_choice(num_patches: int = 12, count: int = 3) -> torch.Tensor:
    return seen_patches(num_patches, 0.75, SampleRandom.at(0, 0, torch.arange(count)))


@pytest.mark.parametrize("normalize_pixels", [True, False])
def test_loss_is_that_of_transformers(normalize_pixels: bool) -> None:
    torch.manual_seed(0)
    config = ViTMAEConfig(
        image_size=16,
        patch_size=4,
        hidden_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=32,
        decoder_hidden_size=8,
        decoder_num_hidden_layers=1,
        decoder_num_attention_heads=2,
        decoder_intermediate_size=16,
        norm_pix_loss=normalize_pixels,
    )
    theirs = ViTMAEForPreTraining(config).eval().double()
    images = torch.rand(3, 3, 16, 16, dtype=torch.float64)
    with torch.no_grad():
        found = theirs(images, noise=torch.rand(3, 16, dtype=torch.float64))
    kept = torch.stack([torch.nonzero(row == 0).flatten() for row in found.mask])
    pixels = patch_pixels(images, (4, 4))
    torch.testing.assert_close(pixels, theirs.patchify(images), rtol=0, atol=0)
    ours = masked_losses(found.logits, pixels, kept, normalize_pixels=normalize_pixels).mean()
    assert float(ours) == pytest.approx(float(found.loss), rel=1e-12)


def test_decoder_is_that_of_transformers_forward_and_gradient(tmp_path: Path) -> None:
    """At the same positions: their sines have other frequencies, and are of a square."""
    torch.manual_seed(0)
    config = ViTMAEConfig(
        image_size=16,
        patch_size=4,
        hidden_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        decoder_hidden_size=8,
        decoder_num_hidden_layers=2,
        decoder_num_attention_heads=2,
        decoder_intermediate_size=32,
        layer_norm_eps=1e-6,
    )
    whole = ViTMAEForPreTraining(config).double()
    for parameter in whole.parameters():
        torch.nn.init.normal_(parameter, std=0.5)
    whole.save_pretrained(tmp_path)
    theirs = whole.decoder.eval()
    positions = sincos_2d((4, 6), 8).double()
    theirs.decoder_pos_embed = torch.nn.Parameter(torch.nn.functional.pad(positions, (0, 0, 1, 0)))
    ours = Decoder(replace(ENCODER, patch_size=(4, 4)), DecoderConfig(width=8, depth=2, num_heads=2)).double().eval()
    tensors = load_file(tmp_path / "model.safetensors")  # some versions write these layers as those of an encoder
    tensors = {name.replace("decoder_encoder.layer", "decoder_layers"): tensor for name, tensor in tensors.items()}
    ours.load_state_dict(apply_rules(THEIR_DECODER, tensors, ENCODER).tensors)

    kept, tokens = random_choice(24), torch.randn(3, 1 + 6, 16, dtype=torch.float64)
    order = torch.stack([torch.tensor([*row, *sorted({*range(24)} - {*row})]) for row in kept.tolist()])
    tokens.requires_grad_()
    found, expected = ours(tokens, kept, (4, 6)), theirs(tokens, order.argsort(dim=1)).logits
    torch.testing.assert_close(found, expected)
    weights = torch.randn_like(found)
    our_gradients = torch.autograd.grad((found * weights).sum(), (tokens, ours.mask_token))
    their_gradients = torch.autograd.grad((expected * weights).sum(), (tokens, theirs.mask_token))
    torch.testing.assert_close(our_gradients, their_gradients)


def test_pixels_come_back_as_images() -> None:
    images = torch.rand(2, 3, 16, 24)
    pixels = patch_pixels(images, (4, 8))
    assert pixels.shape == (2, 12, 96)
    assert torch.equal(pixels[1, 4], images[1, :, 4:8, 8:16].permute(1, 2, 0).flatten())
    assert torch.equal(pixels_to_images(pixels, (4, 3), (4, 8)), images)


@pytest.mark.parametrize("positions", ["learned_1d", "rope", "relative"])
def test_hidden_patches_are_not_seen(positions: str) -> None:
    model, kept = autoencoder(positions=positions), random_choice()
    images = torch.rand(3, 3, 16, 24)
    pixels = patch_pixels(images, (4, 8))
    hidden = torch.ones(3, 12, 1).scatter(1, kept[..., None], 0.0).bool()
    with torch.no_grad():
        before = model(images, kept)
        changed = pixels_to_images(torch.where(hidden, torch.rand_like(pixels), pixels), (4, 3), (4, 8))
        assert torch.equal(model(changed, kept), before)
        changed = pixels_to_images(torch.where(hidden, pixels, torch.rand_like(pixels)), (4, 3), (4, 8))
        assert not torch.allclose(model(changed, kept), before)
    assert before.shape == (3, 12, 96)


def test_all_patches_seen_are_the_whole_image() -> None:
    encoder = autoencoder(positions="rope").encoder
    images, every = torch.rand(2, 3, 16, 24), torch.arange(12).expand(2, -1)
    with torch.no_grad():
        torch.testing.assert_close(encoder.forward_features(images, kept=every), encoder.forward_features(images))


def test_a_patch_that_was_seen_returns_to_its_place() -> None:
    """Without blocks, a place depends on its own token alone."""
    model, kept = autoencoder(), random_choice(count=1)
    model.decoder.blocks = torch.nn.ModuleList()
    tokens = torch.rand(1, 1 + kept.shape[1], 16)
    with torch.no_grad():
        before = model.decoder(tokens, kept, (4, 3))
        tokens[0, 1] += 1
        after = model.decoder(tokens, kept, (4, 3))
    different = (before != after).any(dim=-1)[0]
    assert different.nonzero().flatten().tolist() == [int(kept[0, 0])]


def test_choice_of_patches() -> None:
    kept = random_choice(100, 1000)
    assert kept.shape == (1000, 25)
    assert torch.equal(kept, kept.sort(dim=1).values)
    assert all(len(set(row)) == 25 for row in kept.tolist())
    counts = torch.bincount(kept.flatten(), minlength=100)  # 250 ± 13.7
    assert 190 < int(counts.min()) <= int(counts.max()) < 310
    assert (num_seen(4, 0.01), num_seen(4, 0.99)) == (3, 1)


def test_every_parameter_is_trained() -> None:
    """Several processes wait for each gradient."""
    model = autoencoder(final_norm="pooled", pooling="gap", class_token=False)
    images, kept = torch.rand(3, 3, 16, 24), random_choice()
    masked_losses(model(images, kept), patch_pixels(images, (4, 8)), kept, normalize_pixels=True).sum().backward()
    untrained = [name for name, p in model.named_parameters() if p.requires_grad and p.grad is None]
    assert not untrained


def test_parameters_have_a_depth() -> None:
    model = autoencoder()
    layers = {name: model.layer_of(name) for name, _ in model.named_parameters()}
    assert layers["encoder.class_token"] == 0
    assert layers["encoder.blocks.1.attention.qkv.weight"] == 2
    assert layers["encoder.norm.weight"] == 3
    assert layers["decoder.blocks.0.attention.qkv.weight"] == 3
    assert layers["decoder.pixels.weight"] == layers["decoder.mask_token"] == model.num_layers == 4
    exempt = model.no_weight_decay()
    assert {"decoder.mask_token", "encoder.class_token", "decoder.pixels.bias"} <= exempt
    assert not {"decoder.pixels.weight", "encoder.blocks.0.attention.qkv.weight"} & exempt


@pytest.mark.parametrize(
    ("changes", "line"),
    [
        ({"stem": "resnet", "patch_size": (8, 8)}, "look beyond a patch"),
        ({"patch_dropout_rate": 0.5}, "chosen by mae.mask_ratio"),
        ({"pooling": "map", "class_token": False}, "learned pooling gets no gradient in this task"),
        ({"patch_size": (16, 24)}, "an image of one patch has none to hide"),
    ],
)
def test_an_encoder_that_does_not_fit_is_refused(changes: dict[str, object], line: str) -> None:
    with pytest.raises(ValueError, match=line):
        autoencoder(**changes)


def test_a_decoder_that_does_not_fit_is_refused() -> None:
    with pytest.raises(ValueError, match=r"mae.decoder_width: 10 is not valid: mae.decoder_heads \(2\) and 4"):
        MaskedAutoencoder(VisionTransformer(ENCODER), DecoderConfig(10, 1, 2))
