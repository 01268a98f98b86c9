"""A masked autoencoder's loss, and what is measured on images that it was not trained on."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import torch
from einops import reduce
from torch import Tensor, nn

from vit.data.loading import EvalLoader
from vit.data.preprocessing import normalize
from vit.engine import Accelerator, gather_uneven
from vit.evaluation.evaluate import check_seen_once, evaluating
from vit.models.masked_autoencoder import MaskedAutoencoder, patch_pixels, seen_patches
from vit.randomness import SampleRandom
from vit.tasks.encoder_features import Neighbours
from vit.tasks.masked_autoencoder.config import MaskedAutoencoderConfig

_EPSILON = 1e-6
"""Added to a patch's variance, as He et al. do."""


def masked_losses(predicted: Tensor, targets: Tensor, kept: Tensor, *, normalize_pixels: bool) -> Tensor:
    """Mean squared errors (b,) over the patches `b n (p q 3)` that are not among `kept`, `b k`."""
    if normalize_pixels:
        targets = (targets - targets.mean(dim=-1, keepdim=True)) / spread(targets)
    errors: Tensor = reduce((predicted - targets).square(), "b n v -> b n", "mean")
    hidden = torch.ones_like(errors).scatter(1, kept, 0.0)
    return (errors * hidden).sum(dim=1) / hidden.sum(dim=1)


def spread(pixels: Tensor) -> Tensor:
    """Standard deviation of each patch's values, `b n 1`."""
    return (pixels.var(dim=-1, keepdim=True) + _EPSILON).sqrt()


def image_losses(
    model: nn.Module, images: Tensor, rng: SampleRandom, settings: MaskedAutoencoderConfig, patch_size: tuple[int, int]
) -> Tensor:
    """Losses (b,) of normalised images `b 3 H W`; `rng` chooses the patches that are hidden."""
    targets = patch_pixels(images, patch_size)
    kept = seen_patches(targets.shape[1], settings.mask_ratio, rng.fork("mask"))
    predicted = model(images, kept, rng=rng.fork("model")).float()
    return masked_losses(predicted, targets, kept, normalize_pixels=settings.normalize_pixels)


@dataclass(frozen=True)
class Evaluator:
    """Measures any state of a model. Each image has the same patches hidden every time."""

    accelerator: Accelerator
    settings: MaskedAutoencoderConfig
    neighbours: Neighbours

    def losses(self, model: nn.Module, loader: EvalLoader) -> Tensor:
        """The losses (n,) of a whole split, sorted by index, the same on every process."""
        bare, device = self.bare(model), self.accelerator.device
        indices, losses = [torch.zeros(0, dtype=torch.int64, device=device)], [torch.zeros(0, device=device)]
        with evaluating(bare), torch.inference_mode():
            for batch in loader:
                images = normalize(batch.images.to(device), loader.preprocessing)
                indices.append(batch.indices.to(device))
                rng = SampleRandom.at(0, 0, indices[-1])
                losses.append(image_losses(bare, images, rng, self.settings, bare.config.patch_size))
        gather = partial(gather_uneven, self.accelerator)
        all_indices, all_losses = gather(torch.cat(indices)).cpu(), gather(torch.cat(losses)).cpu()
        check_seen_once(all_indices, loader, device=device, gather=gather)
        return all_losses[all_indices.argsort(stable=True)]

    def knn_accuracy(self, model: nn.Module, loader: EvalLoader) -> tuple[float, Tensor]:
        """By the encoder's features, and the indices (n,) of the images that could be read."""
        return self.neighbours.accuracy(self.bare(model).encoder, loader)

    def bare(self, model: nn.Module) -> MaskedAutoencoder:
        """The model without the wrapper of several processes; its forward pass is still autocast's."""
        unwrapped = self.accelerator.unwrap_model(model)
        assert isinstance(unwrapped, MaskedAutoencoder)
        return unwrapped
