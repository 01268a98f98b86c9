"""The whole of `vit analyze` on a small model: what it writes, keeps, leaves out and refuses."""

from __future__ import annotations

import csv
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from tests.data.image_folders import make_folder, truncate
from tests.training.tiny import tiny
from vit import create_model
from vit.analysis import attention_figures, figures
from vit.analysis.analysis_figure import AnalysisFigure
from vit.analysis.report import STATE, draw_analysis
from vit.analysis.targets import AnalysisTarget, ImageSet, open_target, read_images
from vit.analysis.unsupported import Unsupported
from vit.cli import main
from vit.cli.images import resolve_data
from vit.config import DataConfig, Preprocessing
from vit.data.identity import paths_of
from vit.data.images import Split, open_test
from vit.hub import open_model
from vit.training.loop import train

QUICK = ("attention_distance", "attention_entropy")


def small_target(num_images: int = 2, **options: object) -> AnalysisTarget:
    torch.manual_seed(0)
    settings: dict[str, Any] = {
        "num_classes": 3,
        "image_size": 32,
        "patch_size": 8,
        "width": 24,
        "depth": 2,
        "num_heads": 2,
    }
    model = create_model("vit_tiny_patch16_224", **(settings | options)).eval()
    pixels = torch.randint(0, 256, (num_images, 3, 32, 32), dtype=torch.uint8)
    images = ImageSet(pixels=pixels, names=[f"image {place}" for place in range(num_images)], source="made")
    return AnalysisTarget(name="small", model=model, preprocessing=Preprocessing(image_size=(32, 32)), images=images)


def test_numbers_beside_pictures_and_one_page(tmp_path: Path) -> None:
    draw_analysis(small_target(), tmp_path, QUICK)
    with (tmp_path / "figures" / "attention_distance.csv").open() as stream:
        rows = list(csv.DictReader(stream))
    assert [(row["layer"], row["head"]) for row in rows] == [("1", "1"), ("1", "2"), ("2", "1"), ("2", "2")]
    distance = json.loads((tmp_path / "figures" / "attention_distance.json").read_text())
    assert float(rows[3]["distance"]) == pytest.approx(distance["pixels"][1][1])
    check_folder(tmp_path, set(QUICK))


@pytest.mark.slow
def test_every_figure(tmp_path: Path) -> None:
    target = small_target(5, num_registers=1)
    labelled = replace(target.images, labels=torch.tensor([0, 1, 2, 0, 1]), class_names=("a", "b", "c"))
    state = draw_analysis(replace(target, images=labelled, class_names=("a", "b", "c")), tmp_path)
    assert set(state["left_out"]) == {"layer_probe"}
    check_folder(tmp_path, set(figures.FIGURES) - {"layer_probe"})
    page = (tmp_path / "analysis.html").read_text()
    assert "<h2>Similarity of the blocks</h2>" in page
    assert [name for name, caption in state["pictures"].items() if "healthy ViT" not in caption] == []


def check_folder(folder: Path, drawn: set[str]) -> None:
    state = json.loads((folder / "analysis.json").read_text())
    assert set(state["pictures"]) == drawn
    for name in drawn:
        numbers = json.loads((folder / "figures" / f"{name}.json").read_text())
        assert numbers["conventions"]
        assert (folder / "figures" / f"{name}.png").stat().st_size > 2000
        assert (folder / "figures" / f"{name}.svg").read_text().startswith("<?xml")
    page = (folder / "analysis.html").read_text()
    assert page.count("data:image/png;base64,") == len(drawn)
    assert 'src="figures' not in page
    assert "<script" not in page


def test_what_is_finished_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(_: AnalysisTarget) -> AnalysisFigure:
        raise KeyboardInterrupt

    whole = figures.FIGURES["attention_entropy"]
    monkeypatch.setitem(figures.FIGURES, "attention_entropy", interrupted)
    with pytest.raises(KeyboardInterrupt):
        draw_analysis(small_target(), tmp_path, QUICK)
    monkeypatch.setitem(figures.FIGURES, "attention_entropy", whole)
    monkeypatch.setitem(figures.FIGURES, "attention_distance", interrupted)
    lines: list[str] = []
    state = draw_analysis(small_target(), tmp_path, QUICK, progress=lines.append)
    assert list(state["pictures"]) == list(QUICK)
    assert lines[0] == "1 of 2: attention_distance, kept"
    with pytest.raises(KeyboardInterrupt):  # other images: nothing is kept
        draw_analysis(small_target(3), tmp_path, QUICK)


def test_what_belongs_to_other_settings_or_is_gone_is_drawn_again(tmp_path: Path) -> None:
    kept: list[str] = []
    target = small_target(5)
    draw_analysis(target, tmp_path, QUICK)
    (tmp_path / "figures" / "attention_entropy.svg").unlink()
    draw_analysis(target, tmp_path, QUICK, progress=kept.append)
    assert [line.endswith("kept") for line in kept] == [True, False]
    assert (tmp_path / "figures" / "attention_entropy.svg").is_file()
    labels = replace(target, images=replace(target.images, labels=torch.arange(5)))
    draw_analysis(labels, tmp_path, QUICK[:1], progress=kept.append)
    assert not kept[-1].endswith("kept")
    assert not (tmp_path / "figures" / "attention_entropy.png").exists(), "it was of the other target"
    for name in ("figures/attention_entropy.png", "figures/attention_distance.json", "analysis.json", "analysis.html"):
        assert (tmp_path / "earlier-1" / name).is_file()
    (tmp_path / "analysis.json").write_text("{")
    with pytest.raises(
        ValueError, match=r"--output_dir: .*analysis\.json cannot be read as an analysis .*; move it, or"
    ):
        draw_analysis(target, tmp_path, QUICK)


def test_an_analysis_with_other_names_of_classes_is_begun_anew(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    target = small_target()
    draw_analysis(target, tmp_path, QUICK)
    named = replace(target, class_names=("cat", "dog", "eel"))
    draw_analysis(named, tmp_path, QUICK[:1])
    assert "is of another model or other data" in capsys.readouterr().err
    draw_analysis(named, tmp_path, QUICK)
    assert not (tmp_path / "earlier-2").exists()


def test_a_picture_that_is_gone_is_on_no_page(tmp_path: Path) -> None:
    target = small_target()
    draw_analysis(target, tmp_path, QUICK[:1])
    (tmp_path / "figures" / f"{QUICK[0]}.png").unlink()
    state = draw_analysis(target, tmp_path, QUICK[1:])
    assert set(state["pictures"]) == {QUICK[1]}
    assert (tmp_path / "analysis.html").is_file()


def test_a_state_that_is_no_object_is_one_line(tmp_path: Path) -> None:
    (tmp_path / STATE).write_text("[]")
    with pytest.raises(ValueError, match="cannot be read as an analysis"):
        draw_analysis(small_target(), tmp_path, QUICK)


def test_a_run_is_looked_into_on_its_own_test_images_with_its_own_weights(tmp_path: Path) -> None:
    train(tiny(train={"epochs": 1}), tmp_path / "run")
    opened = open_model(tmp_path / "run")
    data = resolve_data([str(tmp_path / "run")], None, [])
    target = open_target(opened, read_images(data, opened.preprocessing, 9))
    assert target.images.source == "fake, test"
    assert target.has_matching_classes


def test_what_a_model_has_not_is_left_out_with_the_reason(tmp_path: Path) -> None:
    state = draw_analysis(small_target(positions="none"), tmp_path, ("position_similarity", "layer_similarity"))
    assert "position" in state["left_out"]["position_similarity"]
    assert "at least 4 images" in state["left_out"]["layer_similarity"]
    with pytest.raises(ValueError, match="--figures: 'rolout' is not valid"):
        draw_analysis(small_target(), tmp_path, ("rolout",))


def test_overlays_are_of_all_classes_with_true_and_predicted_class(tmp_path: Path) -> None:
    """Sorted as a folder is, the first images are of one class; half of those shown are mistakes."""
    target = small_target(24)
    labels = torch.arange(24) // 8
    names = ("ant", "bee", "cat")
    images = replace(target.images, labels=labels, class_names=names)
    target = replace(target, images=images, class_names=names)
    with torch.no_grad():
        predicted = torch.cat([target.model(batch) for batch in target.batches()]).argmax(dim=1)
    draw_analysis(target, tmp_path, ("attention_overlays", "patch_components"))
    drawn = json.loads((tmp_path / "figures" / "attention_overlays.json").read_text())
    places = [images.names.index(name) for name in drawn["images"]]
    assert len({int(labels[place]) for place in places}) == 3
    wrong = [bool(labels[place] != predicted[place]) for place in places]
    assert wrong == [True, True, False, False]
    for place, title in zip(places, drawn["titles"], strict=True):
        assert title.startswith(f"true: {names[labels[place]]}\npredicted: {names[predicted[place]]}, ")
    components = json.loads((tmp_path / "figures" / "patch_components.json").read_text())
    first = [int(labels[images.names.index(name)]) for name in components["images"][:3]]
    assert first == [0, 1, 2]


def test_overlays_of_images_without_classes_are_named(tmp_path: Path) -> None:
    draw_analysis(small_target(5), tmp_path, ("attention_overlays",))
    drawn = json.loads((tmp_path / "figures" / "attention_overlays.json").read_text())
    assert drawn["titles"] == drawn["images"] == [f"image {place}" for place in range(4)]


def test_figures_that_are_left_out_are_an_error_beside_earlier_ones(tmp_path: Path) -> None:
    words = ["analyze", "resnet18", "--random_weights", "--image_size", "32", "--images", "2", "--device", "cpu"]
    words += ["--output_dir", str(tmp_path), "--figures"]
    assert main([*words, "patch_filters"]) == 0
    assert main([*words, "attention_distance"]) == 2
    assert main([*words, "patch_filters", "attention_distance"]) == 0


def test_a_reason_is_said_once_for_all_figures_that_it_leaves_out(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """In words about the model, not about the call that raised it."""
    names = ["attention_distance", "token_norms", "attention_heads", "attention_entropy", "position_similarity"]
    words = ["analyze", "resnet18", "--random_weights", "--image_size", "32", "--images", "2", "--figures", *names]
    assert main([*words, "--output_dir", str(tmp_path), "--device", "cpu"]) == 2
    printed = capsys.readouterr()
    assert printed.err.splitlines()[-1] == "vit: --figures: none of them could be drawn, for the reasons above"
    reason = "attention_distance, attention_heads, attention_entropy: no attention was found in this ResNet"
    assert (printed.out + printed.err).count("no attention was found") == 1
    assert f"left out: {reason}\n" in printed.out
    assert "left out: position_similarity: ResNet: it has no position vectors" in printed.out
    assert "is not valid" not in printed.out
    assert (tmp_path / "analysis.html").read_text().count("no attention was found") == 1


@pytest.mark.parametrize("error", [ValueError, TypeError])
def test_a_defect_is_not_left_out(error: type[Exception], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(_: AnalysisTarget) -> AnalysisFigure:
        raise error("a defect")

    monkeypatch.setitem(figures.FIGURES, "patch_filters", fail)
    with pytest.raises(error, match="a defect"):
        draw_analysis(small_target(), tmp_path, ("patch_filters",))


def test_relevance_that_does_not_apply_is_left_out_and_a_defect_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise Unsupported("no logits")

    def fail(*_: object) -> None:
        raise ValueError("a defect")

    monkeypatch.setattr(attention_figures, "relevance", refuse)
    assert "No relevance: no logits." in attention_figures.attention_overlays(small_target()).caption
    monkeypatch.setattr(attention_figures, "relevance", fail)
    without_head = replace(small_target(), has_head=False)
    assert "No relevance: the model has no head" in attention_figures.attention_overlays(without_head).caption
    with pytest.raises(ValueError, match="a defect"):
        attention_figures.attention_overlays(small_target())


def test_without_a_head_no_attention_head_is_worth_accuracy(tmp_path: Path) -> None:
    target = small_target()
    labelled = replace(target.images, labels=torch.tensor([0, 1]), class_names=("a", "b"))
    target = replace(target, images=labelled, class_names=("a", "b"), has_head=False)
    state = draw_analysis(target, tmp_path, ("head_ablation",))
    assert state["left_out"] == {"head_ablation": "model: it has no head, and so no accuracy to lose"}


def test_without_training_images_there_is_no_probe(tmp_path: Path) -> None:
    target = small_target()
    data = DataConfig(name="imagefolder", root=str(tmp_path))
    target = replace(target, images=replace(target.images, data=data))
    state = draw_analysis(target, tmp_path / "analysis", ("layer_probe",))
    assert "no images to train a probe on (data.root: " in state["left_out"]["layer_probe"]


def test_images_of_files_folders_data_sets_and_none(tmp_path: Path) -> None:
    preprocessing = Preprocessing(image_size=(16, 16))
    for place in range(5):
        Image.fromarray(np.full((20, 30, 3), 50 * place, dtype=np.uint8)).save(tmp_path / f"{place}.png")
    some = read_images([str(tmp_path)], preprocessing, 2)
    assert some.names == ["0.png", "4.png"]
    assert some.pixels[1].unique().tolist() == [200]
    assert read_images([str(tmp_path / "3.png")], preprocessing, 9).pixels.shape == (1, 3, 16, 16)
    digits = read_images(DataConfig(name="digits"), preprocessing, 30)
    assert digits.labels is not None
    assert digits.labels.unique().tolist() == list(range(10))
    assert digits.data is not None
    assert read_images([], preprocessing, 9).names == ["china.jpg", "flower.jpg"]
    source = open_test(DataConfig(name="digits")).source
    chosen = read_images(Split(source, torch.tensor([3, 5, 8])), preprocessing, 2)
    assert chosen.names == [Path(source.name(index)).name for index in (3, 8)]
    (tmp_path / "broken.png").write_text("no image")
    for name, message in (("broken.png", "is not a readable image"), ("missing.png", "it is not a file, a folder")):
        with pytest.raises(ValueError, match=message):
            read_images([str(tmp_path / name)], preprocessing, 9)


def test_broken_images_of_a_data_set_are_left_out_where_its_settings_say_so(tmp_path: Path) -> None:
    folder = make_folder(tmp_path / "test", {"cat": 3, "dog": 3})
    make_folder(tmp_path / "train", {"cat": 3, "dog": 3})
    truncate(folder / "cat" / "001.png")
    data, preprocessing = DataConfig(name="imagefolder", root=str(tmp_path)), Preprocessing(image_size=(16, 16))
    with pytest.raises(ValueError, match=r"--data: test/cat/001\.png is not a readable image"):
        read_images(data, preprocessing)
    found = read_images(replace(data, on_broken_image="skip"), preprocessing)
    assert found.labels is not None
    assert (len(found.pixels), found.labels.tolist()) == (5, [0, 0, 1, 1, 1])
    assert found.names == ["test/cat/000.png", "test/cat/002.png", *(f"test/dog/00{number}.png" for number in range(3))]
    for path in folder.rglob("*.png"):
        truncate(path)
    with pytest.raises(ValueError, match="is not a readable image"):
        read_images(replace(data, on_broken_image="skip"), preprocessing)


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["analyze", "vit_tiny_patch16_224", "--images", "1", "--figures", "patch_filters"]
    assert main([*words, "--output_dir", str(tmp_path)]) == 0
    assert "1 figure; see" in capsys.readouterr().out
    assert (tmp_path / "analysis.html").exists()
    assert main(["analyze", "nothing"]) == 2
    assert capsys.readouterr().err.count("\n") == 1


def test_a_probe_of_more_classes_than_its_images_allow_is_left_out(tmp_path: Path) -> None:
    """The other figures and the page are there all the same."""
    target = small_target(4, num_classes=20)
    data = DataConfig(name="fake", fake_images=100, fake_classes=20, workers=0)
    state = draw_analysis(replace(target, images=replace(target.images, data=data)), tmp_path, ("layer_probe", *QUICK))
    assert "a linear probe needs at least two images of every class" in state["left_out"]["layer_probe"]
    check_folder(tmp_path, set(QUICK))


def test_a_probe_is_drawn_once_there_are_training_images_and_again_when_they_change(tmp_path: Path) -> None:
    root, folder, target = tmp_path / "data", tmp_path / "out", small_target(4)
    data = DataConfig(name="imagefolder", root=str(root), workers=0)

    def draw() -> str:
        lines: list[str] = []
        given = replace(target, images=replace(target.images, data=data))  # as another call of the command opens it
        draw_analysis(given, folder, ("layer_probe",), progress=lines.append)
        return lines[0].partition("layer_probe")[2]

    assert draw().startswith(" (left out), ")
    for part in ("train", "test"):
        make_folder(root / part, {"cat": 10, "dog": 10})
    assert draw().endswith(" s"), "drawn"
    assert draw() == ", kept"
    assert json.loads((folder / STATE).read_text())["left_out"] == {}
    for file in (root / "train" / "cat").iterdir():
        Image.new("RGB", (8, 8)).save(file)
    assert draw().endswith(" s"), "drawn again"
    assert draw() == ", kept"
    assert [file.name for file in folder.glob("earlier-*/**/*.json")] == ["layer_probe.json"]
    (root / "train").rename(tmp_path / "moved")
    assert draw() == ", kept"


def test_a_probe_of_too_few_images_that_can_be_read_is_left_out(tmp_path: Path) -> None:
    for part in ("train", "test"):
        make_folder(tmp_path / part, {"cat": 10, "dog": 10})
    target = small_target(4)
    data = DataConfig(name="imagefolder", root=str(tmp_path), workers=0, on_broken_image="skip")
    target = replace(target, images=replace(target.images, data=data))
    for path in [each for each in paths_of(target.probe_images) if each.parent.name == "cat"][1:]:
        truncate(path)
    state = draw_analysis(target, tmp_path / "out", ("layer_probe",))
    assert state["left_out"]["layer_probe"].startswith("--images: a linear probe needs at least two images of every")
