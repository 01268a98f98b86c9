"""The usual loop for frozen features: timm's model, a DataLoader, scikit-learn. `transfer_cost` times it as a process.

    python -m benchmarks.plain_transfer MODEL WEIGHTS TRAIN TEST NUM_TRAIN NUM_TEST SIZE

MODEL is timm's name, WEIGHTS a file with timm's tensors, TRAIN and TEST are folders of class folders. Prints JSON.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import timm
import torch
from numpy.typing import NDArray
from safetensors.torch import load_file
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import train_test_split
from sklearn.neighbors import KNeighborsClassifier
from sklearn.preprocessing import StandardScaler, normalize
from timm.models.vision_transformer import checkpoint_filter_fn
from torch.utils.data import DataLoader, Subset
from torchvision.datasets import ImageFolder
from torchvision.transforms import v2

from vit.engine import has_fast_bf16
from vit.evaluation.probe import HELD_OUT, STRENGTHS
from vit.evaluation.transfer import KNN_TEMPERATURE, NUM_NEIGHBOURS

MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
CROP = 0.875


def subset(folder: Path, count: int, size: int) -> Subset[Any]:
    """`count` images, as many of each class, resized and cropped as DINOv2's processor does."""
    images = ImageFolder(
        str(folder),
        v2.Compose(
            [
                v2.Resize(round(size / CROP), interpolation=v2.InterpolationMode.BICUBIC),
                v2.CenterCrop(size),
                v2.ToImage(),
                v2.ToDtype(torch.float32, scale=True),
                v2.Normalize(MEAN, STD),
            ]
        ),
    )
    targets = np.array(images.targets)
    each = count // len(images.classes)
    return Subset(images, np.concatenate([np.flatnonzero(targets == k)[:each] for k in np.unique(targets)]).tolist())


def features_of(model: torch.nn.Module, images: Subset[Any]) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    """Class tokens (n, c), under bfloat16 autocast where the processor multiplies it, and labels (n,)."""
    features, labels = [], []
    with torch.inference_mode(), torch.autocast("cpu", torch.bfloat16, enabled=has_fast_bf16("cpu")):
        for pixels, label in DataLoader(images, batch_size=128):
            features.append(model(pixels).float().numpy())
            labels.append(label.numpy())
    return np.concatenate(features), np.concatenate(labels)


def main(argv: list[str]) -> None:
    """Compute features, k-NN and linear probe, and print accuracies and seconds."""
    name, weights, train_folder, test_folder, num_train, num_test, size = argv
    begun = time.perf_counter()
    model = timm.create_model(name, pretrained=False, num_classes=0, img_size=int(size)).eval()
    model.load_state_dict(checkpoint_filter_fn(load_file(weights), model))  # which resizes the positions
    train, train_labels = features_of(model, subset(Path(train_folder), int(num_train), int(size)))
    test, test_labels = features_of(model, subset(Path(test_folder), int(num_test), int(size)))
    computed = time.perf_counter()
    neighbours = KNeighborsClassifier(
        NUM_NEIGHBOURS, weights=lambda distances: np.exp((1 - distances) / KNN_TEMPERATURE), metric="cosine"
    )
    knn = neighbours.fit(normalize(train), train_labels).score(normalize(test), test_labels)
    scaler = StandardScaler().fit(train)
    fit_x, held_x, fit_y, held_y = train_test_split(
        scaler.transform(train), train_labels, test_size=HELD_OUT, random_state=0, stratify=train_labels
    )
    scores = {c: LogisticRegression(C=c, max_iter=2000).fit(fit_x, fit_y).score(held_x, held_y) for c in STRENGTHS}
    best = LogisticRegression(C=max(scores, key=lambda c: scores[c]), max_iter=2000)
    probe = best.fit(scaler.transform(train), train_labels).score(scaler.transform(test), test_labels)
    ended = time.perf_counter()
    seconds = {"features": computed - begun, "protocols": ended - computed}
    print(json.dumps({"knn": float(knn), "linear_probe": float(probe), "seconds": seconds}))


if __name__ == "__main__":
    main(sys.argv[1:])
