# mypy: disable-error-code="arg-type"
# a stand-in of a few lines takes the place of an EvalLoader
from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
import torch.distributed as dist
from torch import Tensor
from torch.multiprocessing.spawn import spawn

from tests.evaluation.stand_ins import IndexModel, Loader
from vit.evaluation.evaluate import predict_all
from vit.evaluation.metrics import classification_metrics, confusion_matrix
from vit.evaluation.predictions import Predictions

CPU = torch.device("cpu")
NAMES = ["a", "b", "c"]


def expected_logits(places: np.ndarray) -> np.ndarray:
    return np.stack([(places * 7 + k * 5) % 11 * 3 for k in range(3)], axis=1)


def test_every_sample_is_answered_in_order() -> None:
    found = predict_all(IndexModel(), Loader(10), NAMES, device=CPU)
    places = np.arange(10)
    np.testing.assert_array_equal(found.indices, places * 2 + 5)
    np.testing.assert_array_equal(found.labels, places % 3)
    np.testing.assert_allclose(found.logits, expected_logits(places), atol=1e-3)
    assert (found.num_total, found.num_broken, found.class_names) == (10, 0, NAMES)


def test_the_batch_size_changes_nothing() -> None:
    one, many = (predict_all(IndexModel(), Loader(10, batch_size=size), NAMES, device=CPU) for size in (1, 7))
    np.testing.assert_array_equal(one.logits, many.logits)


def test_shuffled_batches_come_back_sorted() -> None:
    loader = Loader(10)
    loader.mine = loader.mine[::-1]
    found = predict_all(IndexModel(), loader, NAMES, device=CPU)
    np.testing.assert_array_equal(found.indices, np.arange(10) * 2 + 5)


def test_every_submodule_keeps_its_mode() -> None:
    model = IndexModel().train()
    model.frozen.eval()
    predict_all(model, Loader(5), NAMES, device=CPU)
    assert (model.training, model.dropout.training, model.frozen.training) == (True, True, False)
    loader = Loader(5)
    loader.preprocessing = None  # type: ignore[assignment]
    with pytest.raises(AttributeError):
        predict_all(model, loader, NAMES, device=CPU)
    assert (model.training, model.dropout.training, model.frozen.training) == (True, True, False)


def test_no_graph_is_recorded_and_autocast_surrounds_the_model_only() -> None:
    seen = []

    class Watching(IndexModel):
        def forward(self, images: Tensor) -> Tensor:
            seen.append((torch.is_inference_mode_enabled(), inside[0], images.dtype))
            return super().forward(images).to(torch.bfloat16)

    inside = [False]

    @contextmanager
    def autocast() -> Iterator[None]:
        inside[0] = True
        yield
        inside[0] = False

    found = predict_all(Watching(), Loader(5), NAMES, device=CPU, autocast=autocast)
    assert seen == [(True, True, torch.float32)] * 2
    assert found.logits.dtype == np.float32


def test_answers_that_lie_where_the_last_ones_lay() -> None:
    """As those of CUDA graphs do."""

    class Reusing(IndexModel):
        def forward(self, images: Tensor) -> Tensor:
            answers.copy_(super().forward(images))
            return answers

    answers = torch.zeros(4, 3)
    found = predict_all(Reusing(), Loader(8), NAMES, device=CPU)
    np.testing.assert_allclose(found.logits, expected_logits(np.arange(8)), atol=1e-3)


def test_progress_counts_images() -> None:
    sizes: list[int] = []
    predict_all(IndexModel(), Loader(10), NAMES, device=CPU, progress=sizes.append)
    assert sizes == [4, 4, 2]


def test_broken_images_are_counted_not_answered() -> None:
    found = predict_all(IndexModel(), Loader(10, broken=(2, 7)), NAMES, device=CPU)
    assert (len(found.labels), found.num_total, found.num_broken) == (8, 10, 2)
    assert 2 * 2 + 5 not in found.indices


def test_a_batch_of_broken_images_does_not_reach_the_model() -> None:
    found = predict_all(IndexModel(), Loader(10, batch_size=1, broken=(9,)), NAMES, device=CPU)
    assert len(found.labels) == 9


def test_a_missing_sample_is_named() -> None:
    loader = Loader(10)
    loader.mine.remove(3)
    with pytest.raises(AssertionError, match=r"9 samples seen and 0 broken of 10: missing indices 11$"):
        predict_all(IndexModel(), loader, NAMES, device=CPU)


def test_a_doubled_sample_is_named() -> None:
    loader = Loader(10)
    loader.mine[3] = 4
    with pytest.raises(AssertionError, match=r"more than once: indices 13$"):
        predict_all(IndexModel(), loader, NAMES, device=CPU)


def test_a_strange_sample_is_named() -> None:
    loader = Loader(40)
    loader.expected = loader.split.indices
    loader.split = SimpleNamespace(indices=loader.expected[12:], source=loader.split.source)
    with pytest.raises(AssertionError, match=r"not in the split: indices 5, 7, .* and 2 more$"):
        predict_all(IndexModel(), loader, NAMES, device=CPU)


def test_another_class_count_is_one_line() -> None:
    with pytest.raises(ValueError, match=r"model\.num_classes: 3 is not valid: the data has 4 classes"):
        predict_all(IndexModel(), Loader(5), [*NAMES, "d"], device=CPU)


def gather_uneven(tensor: Tensor) -> Tensor:
    parts = [torch.empty(0)] * dist.get_world_size()
    dist.all_gather_object(parts, tensor)
    return torch.cat(parts)


SIZES = (2, 53)  # with two samples, the third process has none


def evaluate_in_process(rank: int, world_size: int, folder: str) -> None:
    address = f"file://{folder}/store{world_size}"
    dist.init_process_group("gloo", init_method=address, rank=rank, world_size=world_size)
    torch.set_num_threads(1)
    for num in SIZES:
        loader = Loader(num, rank=rank, world_size=world_size, broken=(1, num - 1) if num > 2 else ())
        found = predict_all(IndexModel(), loader, NAMES, device=CPU, gather=gather_uneven)
        found.save(Path(folder) / f"{num}-{world_size}-{rank}.npz")
    dist.destroy_process_group()


@pytest.mark.slow
def test_any_number_of_processes_gives_the_same_integers(tmp_path: Path) -> None:
    for world_size in (1, 2, 3):
        spawn(evaluate_in_process, args=(world_size, str(tmp_path)), nprocs=world_size)
    for num in SIZES:
        first, *others = [Predictions.load(file) for file in sorted(tmp_path.glob(f"{num}-*.npz"))]
        assert len(others) == 5
        for other in others:
            np.testing.assert_array_equal(confusion_matrix(other), confusion_matrix(first))
            np.testing.assert_array_equal(other.indices, first.indices)
            assert classification_metrics(other) == classification_metrics(first)
