"""The contrastive loss, and what is measured on images that the encoder was not trained on."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vit.config import Preprocessing
from vit.data.augment import TwoViews
from vit.data.augmented import AugmentedBatch, AugmentingLoader
from vit.data.images import Split
from vit.data.loading import EvalLoader, TrainLoader
from vit.engine import Accelerator, gather_uneven, gather_with_gradients, rank_and_world_size
from vit.evaluation.evaluate import evaluating
from vit.models.contrastive import ContrastiveModel
from vit.randomness import SampleRandom
from vit.tasks.contrastive.config import ContrastiveRun
from vit.tasks.encoder_features import Neighbours

FEWEST_COMPARED = 2
"""Images in a step: one alone is compared with none."""


def nt_xent_losses(views: Tensor, all_views: Tensor, weights: Tensor, first: int, temperature: float) -> Tensor:
    """Losses (b,) of images by the unit vectors `b 2 c` of their two views (NT-Xent: Chen et al. 2020, eq. 1).

    A view chooses, by a softmax over cosine similarities divided by `temperature`, its image's other view among all
    other views of the step; the mean of an image's two cross-entropies is its loss.

    `all_views`: `n 2 c`, the step's images in all processes, of which `views` are those from `first` on. `weights`:
    (n,) float; an image whose weight is 0 is compared with no other.
    """
    rows, columns = views.flatten(0, 1), all_views.flatten(0, 1)  # 2b, 2n
    similarities = rows @ columns.T / temperature
    own = 2 * first + torch.arange(len(rows), device=views.device)
    other = own ^ 1  # the views of an image are neighbours
    places = torch.arange(len(columns), device=views.device)
    absent = (weights == 0).repeat_interleave(2)
    hidden = (places == own[:, None]) | (absent & (places != other[:, None]))
    losses = F.cross_entropy(similarities.masked_fill(hidden, -torch.inf), other, reduction="none")
    return losses.unflatten(0, (-1, 2)).mean(dim=1)


def step_losses(
    model: nn.Module, batch: AugmentedBatch, rng: SampleRandom | None, temperature: float, accelerator: Accelerator
) -> Tensor:
    """Losses (b,) of this process's images of a step, which all processes compare with all images of the step."""
    each_view = None
    if rng is not None:
        states = [rng.fork(f"view {view}").state for view in range(TwoViews.views)]
        each_view = SampleRandom(torch.stack(states, dim=1).flatten())
    vectors = model(batch.images.flatten(0, 1), rng=each_view).unflatten(0, (-1, TwoViews.views))
    all_views, first = gather_with_gradients(accelerator, vectors)
    return nt_xent_losses(vectors, all_views, gather_uneven(accelerator, batch.weights), first, temperature)


@dataclass(frozen=True)
class Evaluator:
    """Measures any state of a model."""

    accelerator: Accelerator
    temperature: float
    neighbours: Neighbours

    def loss(self, model: nn.Module, loader: AugmentingLoader) -> float:
        """The mean loss of a split's images in steps as in training, with the same views every time."""
        bare, device = self.bare(model), self.accelerator.device
        totals = torch.zeros(2, dtype=torch.float64, device=device)  # losses, images
        with evaluating(bare), torch.inference_mode():
            for step in loader.epoch(0):
                for unaugmented in step.batches:
                    batch = unaugmented.augmented(device)
                    losses = step_losses(bare, batch, None, self.temperature, self.accelerator)
                    totals += torch.stack([(losses * batch.weights).sum(), batch.weights.sum()])
        loss, count = self.accelerator.reduce(totals, "sum").tolist()
        return loss / count

    def knn_accuracy(self, model: nn.Module, loader: EvalLoader) -> tuple[float, Tensor]:
        """By the encoder's features, and the indices (n,) of the images that could be read."""
        return self.neighbours.accuracy(self.bare(model).encoder, loader)

    def bare(self, model: nn.Module) -> ContrastiveModel:
        """The model without the wrapper of several processes; its forward pass is still autocast's."""
        unwrapped = self.accelerator.unwrap_model(model)
        assert isinstance(unwrapped, ContrastiveModel)
        return unwrapped


def views_loader(
    split: Split, config: ContrastiveRun, preprocessing: Preprocessing, accelerator: Accelerator
) -> AugmentingLoader:
    """Two views of each of a split's images, at the model's size, in steps as in training."""
    augment = replace(config.augment, first_image_size=None, growing_epochs=0, size_step=1)
    loader = TrainLoader(
        split,
        config.data,
        augment,
        image_size=preprocessing.image_size,
        seed=0,
        device=accelerator.device,
        **rank_and_world_size(accelerator),
        fewest_in_step=FEWEST_COMPARED,
    )
    return AugmentingLoader(loader, TwoViews(augment, preprocessing, len(split.source.class_names)), seed=0)
