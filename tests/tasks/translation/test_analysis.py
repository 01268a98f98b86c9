"""What `vit analyze` draws of a translator: files, numbers that belong to them, and words that do nothing."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.tasks.translation.test_training import COPYING
from vit.cli import main
from vit.figures.text_heads import plot_text_heads
from vit.training.loop import train


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("run")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("vit.tasks.translation.report.draw_run", lambda *_: None)
        train(COPYING, folder / "copying")
    return folder / "copying"


def test_maps_and_statistics_of_every_kind(run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["analyze", str(run), "--images", "3", "--output_dir", str(tmp_path)]) == 0
    kinds = ("encoder", "decoder", "cross")
    assert f"6 figures; see {tmp_path}/analysis.html" in capsys.readouterr().out
    for kind in kinds:
        maps = json.loads((tmp_path / "figures" / f"{kind}_maps.json").read_text())
        weights = np.asarray(maps["maps"])
        assert weights.shape[2:] == (len(maps["queries"]), len(maps["keys"])), "only real tokens are drawn"
        np.testing.assert_allclose(weights.sum(-1), 1, atol=1e-5)
        assert (tmp_path / "figures" / f"{kind}_maps.png").stat().st_size > 0
        statistics = json.loads((tmp_path / "figures" / f"{kind}_statistics.json").read_text())
        assert statistics["sentences"] == 3
        assert np.asarray(statistics["entropy"]).shape == weights.shape[:2]
    assert (tmp_path / "analysis.html").read_text().count("data:image/png") == 6
    assert main(["analyze", str(run), "--images", "3", "--output_dir", str(tmp_path)]) == 0
    assert not (tmp_path / "earlier-1").exists(), "the same model and sentences"
    assert main(["analyze", str(run), "--images", "2", "--output_dir", str(tmp_path)]) == 0
    assert "is of another model or other data, and is in" in capsys.readouterr().err
    assert len(list((tmp_path / "earlier-1" / "figures").glob("*.png"))) == 6


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--images", "0"], "--images: 0 is not valid"),
        (["--figures", "entropy"], "--figures: it has no effect here; the model's task is translation"),
        (["--random_weights"], "--random_weights: it has no effect here"),
        (["--optim.lr", "1"], "optim"),
    ],
)
def test_words_that_do_nothing(run: Path, words: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["analyze", str(run), *words]) == 2
    error = capsys.readouterr().err
    assert said in error
    assert error.count("\n") == 1


def test_tokens_stand_beside_their_rows_and_columns() -> None:
    maps = np.random.default_rng(0).random((2, 3, 2, 4))
    axes = plot_text_heads(maps, ["a", "b"], ["w", "x", "y", "z"]).axes[0]
    drawn: Any = axes.images[0].get_array()
    for layer, head, query, key in ((0, 0, 0, 0), (1, 2, 1, 3), (1, 0, 0, 2)):
        place = [list(axes.get_yticks())[layer * 2 + query], list(axes.get_xticks())[head * 4 + key]]
        assert drawn[int(place[0]), int(place[1])] == maps[layer, head, query, key]
    assert [label.get_text() for label in axes.get_xticklabels()] == ["w", "x", "y", "z"] * 3
    assert [label.get_text() for label in axes.get_yticklabels()] == ["a", "b"] * 2
