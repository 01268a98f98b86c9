"""A corrupted source through the loader that clean images go through."""

from __future__ import annotations

import pickle

import numpy as np
import pytest
import torch
from einops import rearrange

from vit.config import DataConfig, Preprocessing
from vit.data.images import Split, open_test
from vit.data.loading import EvalLoader
from vit.evaluation.corruptions import corrupt
from vit.evaluation.corruptions.source import CorruptedSource, _working_size


def test_it_is_the_source_but_for_its_pixels() -> None:
    clean = open_test(DataConfig(name="fake", fake_images=20)).source
    source = pickle.loads(pickle.dumps(CorruptedSource(clean, "fog", 3, seed=2)))
    assert source.class_names == clean.class_names
    assert torch.equal(source.labels, clean.labels)
    assert len(source) == len(clean)
    assert source.name(2) == clean.name(2)
    pixels = rearrange(torch.from_numpy(np.array(clean.read(2))), "h w c -> 1 c h w")
    expected = corrupt(pixels, "fog", 3, indices=torch.tensor([2]), seed=2)[0]
    assert np.array_equal(np.asarray(source.read(2, smallest=(8, 8))), rearrange(expected, "c h w -> h w c").numpy())
    assert np.array_equal(np.asarray(CorruptedSource(clean, "fog", 0).read(2)), np.asarray(clean.read(2)))


def test_an_evaluation_reads_it_like_any_other() -> None:
    split = open_test(DataConfig(name="digits"))
    few = Split(CorruptedSource(split.source, "frost", 2), split.indices[:5])
    loader = EvalLoader(few, Preprocessing(image_size=(24, 24)), DataConfig(name="digits", eval_batch_size=3))
    batches = list(loader)
    assert [len(batch.images) for batch in batches] == [3, 2]
    assert batches[0].images.shape[1:] == (3, 24, 24)
    assert torch.equal(torch.cat([batch.labels for batch in batches]), split.labels[:5])


@pytest.mark.parametrize(("before", "after"), [((8, 10), (32, 40)), ((32, 40), (32, 40)), ((600, 300), (512, 256))])
def test_the_size_at_which_corruption_happens(before: tuple[int, int], after: tuple[int, int]) -> None:
    from PIL import Image

    assert _working_size(Image.new("RGB", before)).size == after


def test_an_unknown_kind_is_refused_at_once() -> None:
    source = open_test(DataConfig(name="fake", fake_images=20)).source
    with pytest.raises(ValueError, match="corruption: 'rain' is not valid"):
        CorruptedSource(source, "rain", 1)
    with pytest.raises(ValueError, match="severity: 7 is not valid"):
        CorruptedSource(source, "fog", 7)
