"""Pictures of what a masked autoencoder predicts."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn

from vit.config import DataConfig, Preprocessing
from vit.data.loading import EvalLoader
from vit.data.preprocessing import normalize
from vit.evaluation.evaluate import evaluating
from vit.figures.reconstructions import plot_reconstructions
from vit.figures.style import save_figure
from vit.models.masked_autoencoder import patch_pixels, pixels_to_images, seen_patches
from vit.randomness import SampleRandom
from vit.tasks.encoder_report import pictured
from vit.tasks.masked_autoencoder.metrics import Evaluator, spread

CONVENTIONS = {
    "seen": "patches that the encoder saw; the others have the mean colour of the data",
    "predicted": "patches that the encoder saw, and predictions of the others; where the model predicts normalised "
    "pixels, each predicted patch has the mean and the spread of the true one",
}


@dataclass(frozen=True)
class Reconstructions:
    """Images with what was seen of them and what was predicted, each uint8 (b, H, W, 3)."""

    names: list[str]
    images: Tensor
    seen: Tensor
    predicted: Tensor

    def save(self, path: Path) -> None:
        """Draw them; their names are kept beside the figure."""
        numbers = {"images": self.names, "conventions": CONVENTIONS}
        save_figure(plot_reconstructions(self.images, self.seen, self.predicted), path, numbers)


@torch.inference_mode()
def reconstruct(
    evaluator: Evaluator, model: nn.Module, loader: EvalLoader, data: DataConfig, readable: Tensor
) -> Reconstructions:
    """Predict hidden patches of some of the `readable` images, of different classes where there are as many."""
    bare, settings, device = evaluator.bare(model), evaluator.settings, evaluator.accelerator.device
    few = EvalLoader(pictured(loader.split.source, readable), loader.preprocessing, data)
    batches = list(few)
    indices = torch.cat([batch.indices for batch in batches])
    images = normalize(torch.cat([batch.images for batch in batches]).to(device), loader.preprocessing)
    patch_size = bare.config.patch_size
    pixels = patch_pixels(images, patch_size)
    rng = SampleRandom.at(0, 0, indices.to(device))
    kept = seen_patches(pixels.shape[1], settings.mask_ratio, rng.fork("mask"))
    with evaluating(bare):
        predicted = bare(images, kept).float()
    if settings.normalize_pixels:
        predicted = predicted * spread(pixels) + pixels.mean(dim=-1, keepdim=True)
    hidden = torch.ones_like(pixels[..., :1]).scatter(1, kept[..., None], 0.0).bool()
    grid = bare.encoder.embedding.grid_size(images)
    rows = (pixels, pixels.masked_fill(hidden, 0.0), torch.where(hidden, predicted, pixels))
    shown = (as_pictures(pixels_to_images(row, grid, patch_size), loader.preprocessing) for row in rows)
    return Reconstructions([loader.split.source.name(index) for index in indices.tolist()], *shown)


def as_pictures(images: Tensor, preprocessing: Preprocessing) -> Tensor:
    """Undo `normalize`: `b 3 H W` to uint8 (b, H, W, 3) on the CPU."""
    mean, std = (torch.tensor(values)[:, None, None] for values in (preprocessing.mean, preprocessing.std))
    images = images.cpu()
    rgb = images if preprocessing.channel_order == "rgb" else images.flip(1)
    return (rgb * std + mean).clamp(0, 1).mul(255).round().to(torch.uint8).movedim(1, -1)
