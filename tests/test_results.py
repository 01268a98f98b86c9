"""The documents' numbers are those of the records in `results/`, and what stands there by hand is noticed."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest

from results import documents, pictures, records
from results.__main__ import main
from results.tables import TABLES, ablation, accuracy, throughput
from tests.faults.malformed import __main__ as malformed

MEASURED = re.compile(r"\d[\d,.]*(?: ?±| ?%| ?points| times| images/s| BLEU)|\d\.\d")
"""A percentage, a factor or a decimal: what only a measurement gives."""


@pytest.fixture
def own_results(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(records, "ROOT", tmp_path)
    monkeypatch.setattr(records, "RESULTS", tmp_path / "results")
    return tmp_path / "results"


MADE = {"commit": "0123abc", "machine": "a machine"}
"""What a run says of how it was made."""


def finished_run(folder: Path, seed: int, top1: float) -> Path:
    folder.mkdir()
    (folder / "config.yaml").write_text("model: vit\n")
    (folder / "summary.json").write_text(json.dumps({"seed": seed, "test.top1": top1, "seconds": 90.0, **MADE}))
    lines = [
        {"step": 1, "epoch": 0, "train.loss": 2.0},
        {"step": 2, "epoch": 0, "train.loss": 1.0},
        {"step": 2, "epoch": 1, "val.top1": 0.5},
        {"step": 3, "epoch": 1, "train.loss": 0.9},
    ]
    (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return folder


def test_every_marked_number_is_what_its_record_says() -> None:
    assert [str(file) for file in documents.stale()] == [], "write them by `python -m results write`"


@pytest.mark.parametrize("kind", malformed.TABLES)
def test_as_many_malformed_inputs_are_told_as_there_are(kind: str) -> None:
    told = json.loads((records.RESULTS / "malformed.json").read_text())[kind]
    command = f"VIT_MALFORMED_COUNTS=results/malformed.json python -m tests.faults.malformed {kind!r}"
    assert told["tried"] == len(malformed.TABLES[kind]()), f"try them anew: {command}"
    assert told["failures"] == 0


def unmarked(document: str) -> str:
    """Text that stands in a document outside markers and code: the text that may hold no measured number."""
    plain = documents._MARKED.sub("", document)
    return re.sub(r"```.*?```|`[^`\n]*`|^    [^\n]*$", "", plain, flags=re.DOTALL | re.MULTILINE)


def test_the_readme_holds_no_measured_number_by_hand() -> None:
    assert MEASURED.findall(unmarked((records.ROOT / "README.md").read_text())) == []


@pytest.mark.parametrize("name", [*pictures.PICTURES, *pictures.BY_IMAGES, *pictures.ABLATIONS])
def test_every_picture_is_of_the_records_as_they_are(name: str) -> None:
    drawn = json.loads((records.ROOT / "docs" / f"{name}.json").read_text())
    assert drawn == json.loads(json.dumps(pictures.numbers(name))), "draw it by `python -m results draw`"


def test_curves_are_of_the_weights_that_a_run_is_judged_by(own_results: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pictures, "RESULTS", own_results)
    monkeypatch.setattr(pictures, "ROOT", own_results.parent)
    monkeypatch.setattr(pictures, "PICTURES", {"two": {"ViT": "small"}})
    monkeypatch.setattr(pictures, "DRAWN_SEEDS", {"two": (0, 1)})
    monkeypatch.setattr(pictures, "BY_IMAGES", {})
    monkeypatch.setattr(pictures, "ABLATIONS", ())
    for seed, weights in ((0, "ema"), (1, "raw"), (2, "raw")):
        folder = own_results / "small" / f"seed{seed}"
        folder.mkdir(parents=True)
        (folder / "summary.json").write_text(json.dumps({"seed": seed, "weights": weights}))
        (folder / "record.json").write_text("{}")
        row = {"seconds": 90.0, "val.top1": 0.5, "ema.val.top1": 0.75}
        (folder / "metrics.jsonl").write_text(json.dumps({"seconds": 30.0, "lr": 0.1}) + "\n" + json.dumps(row))
    assert pictures.curves_of("small", (0, 1)) == [[(1.5, 0.75)], [(1.5, 0.5)]]
    assert main(["draw"]) == 0
    assert (own_results.parent / "docs" / "two.png").read_bytes().startswith(b"\x89PNG")


def an_ablation(*, interval: bool) -> dict[str, Any]:
    """Two ingredients, of which the second brings more to the best recipe, and the first is not in it."""
    runs = [
        {"variant": variant, "test.top1": top1 + 0.02 * seed, "epochs": epochs, "seed": seed}
        for variant, top1, epochs in (("plain", 0.5, 8), ("plain + a", 0.45, 7), ("best", 0.7, 12))
        for seed in range(1 + interval)
    ]
    runs.append({"variant": "plain", "test.top1": 0.1, "epochs": 8, "seed": 7})  # whose other variants are not trained
    found = [("a", "plain + a", -0.05), ("a", "best + a", 0.001), ("b", "plain + b", 0.1), ("b", "best - b", 0.08)]
    return {
        "runs": runs,
        "conventions": {"effect": "paired by seed"},
        "effects": [
            {"ingredient": name, "variant": variant, "seeds": list(range(1 + interval)), "effect": effect}
            | ({"interval": [effect - 0.03, effect + 0.01]} if interval else {})
            for name, variant, effect in found
        ],
    }


@pytest.mark.parametrize(
    ("interval", "rows"),
    [
        (False, ["50.00 %, 8 epochs | 70.00 %, 12 epochs", "| b | +10.00 | +8.00 |", "| a | -5.00 | +0.10 |"]),
        (True, ["51.00 ± 1.41 %, 8", "| b | +10.0 (+7.0 to +11.0) | +8.0 (+5.0 to +9.0) |", "| +0.1 (-2.9 to +1.1) |"]),
    ],
)
def test_an_ablation_has_a_row_for_each_ingredient_and_a_picture(
    interval: bool, rows: list[str], own_results: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (pictures, ablation):
        monkeypatch.setattr(module, "RESULTS", own_results)
    monkeypatch.setattr(pictures, "ROOT", own_results.parent)
    monkeypatch.setattr(pictures, "ABLATIONS", ("both",))
    own_results.mkdir()
    (own_results / "both.json").write_text(json.dumps(an_ablation(interval=interval)))
    lines = ablation.ingredient_effects("both").splitlines()
    assert all(row in line for row, line in zip(rows, lines[2:], strict=True)), lines
    assert pictures.draw("both").read_bytes().startswith(b"\x89PNG")
    drawn = json.loads((own_results.parent / "docs" / "both.json").read_text())
    assert drawn["seeds"] == ("mean of 2 seeds, 95 % interval" if interval else "one seed")
    assert [[effect["name"] for effect in panel] for panel in drawn["effects"].values()] == [["b", "a"]] * 2
    without_a = an_ablation(interval=interval)
    del without_a["effects"][0]  # as where a run of it has diverged
    (own_results / "both.json").write_text(json.dumps(without_a))
    assert [line.split(" | ")[0] for line in ablation.ingredient_effects("both").splitlines()[3:]] == ["| b"]
    without_plain = {"effects": without_a["effects"][::2]}  # as where the plain recipe has diverged
    (own_results / "both.json").write_text(json.dumps(without_a | without_plain))
    assert [epochs in ablation.ingredient_effects("both") for epochs in (" 8 epochs", " 12 epochs")] == [False, True]
    (own_results / "both.json").write_text(json.dumps(an_ablation(interval=interval) | {"effects": []}))
    for told in (pictures.draw, ablation.ingredient_effects):
        with pytest.raises(ValueError, match="'both' is not valid: it has no seed with which every variant is trained"):
            told("both")


@pytest.mark.usefixtures("own_results")
def test_accuracies_over_seeds_are_held_to_a_bar_and_compared_in_pairs(tmp_path: Path) -> None:
    for name, accuracies in (("vit", (0.81, 0.83, 0.82)), ("resnet", (0.80, 0.80, 0.81)), ("other", (0.9,))):
        for seed, top1 in enumerate(accuracies):
            run = finished_run(tmp_path / f"{name}{seed}", seed, top1)
            records.keep(run, name, "python train.py", "one thread")
    half = 4.3027 * 1 / 3**0.5  # t of two degrees of freedom × standard error of 1, 3 and 1 points less their mean: sd
    sd = (((1 - 5 / 3) ** 2 + (3 - 5 / 3) ** 2 + (1 - 5 / 3) ** 2) / 2) ** 0.5
    assert documents.text_of("ahead vit resnet") == (
        f"+1.67 points (95 % interval {5 / 3 - half * sd:+.2f} to {5 / 3 + half * sd:+.2f}, 3 seeds)"
    )
    t = 7 * 3**0.5  # of two degrees of freedom
    assert documents.text_of("above vit 0.75") == f"p = {(1 - t / (t**2 + 2) ** 0.5) / 2:.1g}" == "p = 0.003"
    with pytest.raises(ValueError, match=r"vit is not above 0.8 at p < 0.01 \(p = 0.037\)"):
        documents.text_of("above vit 0.8")
    with pytest.raises(ValueError, match="they share 1 seed; an interval needs at least two"):
        documents.text_of("ahead vit other")
    with pytest.raises(ValueError, match="needs at least two"):
        documents.text_of("above other 0.8")


@pytest.mark.usefixtures("own_results")
@pytest.mark.parametrize(("name", "said"), [("map", "50.00 % test mAP"), ("bleu", "test BLEU 0.5")])
def test_a_recipe_without_a_top_1_expects_what_its_task_measures(name: str, said: str, tmp_path: Path) -> None:
    run = finished_run(tmp_path / "run", 0, 0.9)
    summary = json.loads((run / "summary.json").read_text())
    del summary["test.top1"]
    (run / "summary.json").write_text(json.dumps(summary | {"precision": "fp32", f"test.{name}": 0.5}))
    records.keep(run, "one", "python train.py", "one thread")
    assert said in documents.expected("one")


@pytest.mark.parametrize("sentence", ["97.8 % of the images", "3 times as fast", "it takes 1.18", "81 points ahead"])
@pytest.mark.parametrize("before", ["text", "text\n\n    vit train", "```sh\nvit train\n```"])
def test_a_number_by_hand_is_noticed(before: str, sentence: str) -> None:
    assert MEASURED.search(unmarked(f"{before}\n\n{sentence}\n"))


@pytest.mark.parametrize("file", documents.documents(), ids=str)
def test_every_marker_is_read(file: Path) -> None:
    text = file.read_text()
    assert text.count("<!--=") == text.count("<!--/-->") == len(documents._MARKED.findall(text))


def test_the_readme_s_last_line_is_looked_at() -> None:
    readme = (records.ROOT / "README.md").read_text()
    assert MEASURED.search(unmarked(f"{readme}\n97.8 % of the images\n"))


@pytest.mark.parametrize("text", ["<!--= table trained -->97.8 %<!--/-->", "`--lr 0.1`", "    vit train --lr 0.1\n"])
def test_markers_and_code_may_hold_numbers(text: str) -> None:
    assert not MEASURED.search(unmarked(text))


@pytest.mark.parametrize("file", sorted((records.ROOT / "configs").glob("**/*.yaml")), ids=lambda file: file.stem)
def test_what_a_configuration_expects_is_of_its_records_or_says_where_it_is_from(file: Path) -> None:
    (line,) = (match[0] for match in documents._EXPECTED.finditer(file.read_text()))
    said = " ".join(part.removeprefix("#").strip() for part in line.splitlines())
    other = ("not run", "not trained", "depends on", "LOG.md")
    assert file in set(documents.configurations()) or any(text in said for text in other)


def test_a_changed_number_is_stale() -> None:
    readme = (records.ROOT / "README.md").read_text()
    table = TABLES["trained"]()
    first = re.search(r"\d\d\.\d\d", table)
    assert first is not None
    assert documents.rewritten(readme) == readme
    changed = readme.replace(first[0], "99.99", 1)
    assert changed != readme
    assert documents.rewritten(changed) == readme


def test_every_record_says_how_it_was_made() -> None:
    names = records.record_names()
    assert names
    for name in names:
        for record in records.read_records(name):
            assert {"command", "commit", "machine", "circumstances"} <= record.made.keys()
            assert record.summary["seconds"] > 0
    for folder in records.RESULTS.glob("**/seed*"):
        made, summary = (json.loads((folder / name).read_text()) for name in ("record.json", "summary.json"))
        assert made["commit"] == summary.get("commit", made["commit"])
        assert {"config.yaml", "summary.json", "metrics.jsonl", "record.json"} == {
            file.name for file in folder.iterdir()
        }
        assert sum(file.stat().st_size for file in folder.iterdir()) < 40_000


@pytest.mark.parametrize(
    ("ratios", "text"),
    [((1.2, 0.96, 1.0, 0.993), "2 of 4 cells, by up to 0.04"), ((1.0, 1.1), "0 of 2 cells")],
)
def test_cells_in_which_another_library_is_ahead(
    ratios: tuple[float, ...], text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(throughput, "ROOT", tmp_path)
    rows = [{"best_peer": "timm", "ratios": {"timm": {"median": ratio}}} for ratio in ratios]
    (tmp_path / "speed.json").write_text(json.dumps({"rows": rows}))
    assert documents.text_of("behind speed.json") == text


def test_a_run_is_kept_with_its_history_thinned(own_results: Path, tmp_path: Path) -> None:
    for seed, top1 in ((0, 0.75), (1, 0.77)):
        run = finished_run(tmp_path / f"run{seed}", seed, top1)
        assert main(["keep", str(run), "small", "--command", "python train.py", "--circumstances", "one thread"]) == 0
    kept = own_results / "small" / "seed0"
    history = [json.loads(line) for line in (kept / "metrics.jsonl").read_text().splitlines()]
    assert [(line["step"], "val.top1" in line) for line in history] == [(2, False), (2, True), (3, False)]
    assert json.loads((kept / "record.json").read_text())["command"] == "python train.py"
    assert documents.text_of("top1 small") == "76.00 ± 1.41 %"
    assert documents.text_of("runs small") == "2"
    assert documents.text_of("minutes small") == "1.5"
    shutil.rmtree(own_results / "small" / "seed1")
    assert documents.text_of("top1 small") == "75.00 %"


@pytest.mark.usefixtures("own_results")
@pytest.mark.parametrize(("metric", "line"), [("test.top1", "75.00 % test top-1"), ("test.knn", "75.00 % of the test")])
def test_what_is_expected_of_a_configuration(metric: str, line: str, tmp_path: Path) -> None:
    run = finished_run(tmp_path / "run", 0, 0.75)
    (run / "summary.json").write_text(
        json.dumps({"seed": 0, metric: 0.75, "seconds": 90.0, "precision": "fp32", **MADE})
    )
    records.keep(run, "small", "python train.py", "one thread")
    assert documents.expected("small").startswith(f"# Expected:  {line}")
    assert " 1.5 minutes on " in documents.expected("small")


def test_a_run_that_is_not_finished_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["keep", str(tmp_path), "small", "--command", "a", "--circumstances", "b"]) == 2
    assert "has no summary.json" in capsys.readouterr().err


@pytest.mark.usefixtures("own_results")
def test_a_run_that_was_continued_and_has_not_ended_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = finished_run(tmp_path / "run", 0, 0.5)
    summary = json.loads((run / "summary.json").read_text())
    words = ["keep", str(run), "small", "--command", "a", "--circumstances", "b"]
    (run / "config.yaml").write_text("train:\n  epochs: 20\n")
    for told in ({}, {"epochs": 10}):
        (run / "summary.json").write_text(json.dumps(summary | told))
        assert main(words) == 2
        line = f"its summary is of {told.get('epochs')} epochs and its settings say 20: finish it with vit train"
        assert line in capsys.readouterr().err
    (run / "summary.json").write_text(json.dumps(summary | {"epochs": 20}))
    assert main(words) == 0


@pytest.mark.usefixtures("own_results")
@pytest.mark.parametrize("key", ["precision", "params", "gmacs", "epochs", "images_seen"])
def test_what_is_told_once_for_all_seeds_is_the_same_in_all_of_them(key: str, tmp_path: Path) -> None:
    told = {"precision": "fp32", "params": 10**6, "gmacs": 0.5, "epochs": 2, "images_seen": 80}
    for seed, other in enumerate((False, False, True)):
        run = finished_run(tmp_path / f"run{seed}", seed, 0.5)
        summary = json.loads((run / "summary.json").read_text()) | told
        (run / "summary.json").write_text(
            json.dumps(summary | ({key: "bf16" if key == "precision" else 9} if other else {}))
        )
        records.keep(run, "small", "python train.py", "one thread")
    asked = {"precision": lambda: documents.expected("small"), "params": lambda: documents.text_of("parameters small")}
    asked["gmacs"] = lambda: documents.text_of("gmacs small")
    for tell in (asked.get(key), lambda: accuracy.trained(["small"])):
        if tell is not None:
            with pytest.raises(ValueError, match=rf"results: 'small' is not valid: its runs have {key} .* with seed 2"):
                tell()


@pytest.mark.usefixtures("own_results")
def test_a_record_says_how_the_run_was_made(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["keep", str(finished_run(tmp_path / "run", 0, 0.5)), "small", "--command", "a", "--circumstances", "b"]
    assert main(words) == 0
    assert records.read_records("small")[0].made == {**MADE, "command": "a", "circumstances": "b"}
    assert main([*words, "--commit", "4567def"]) == 2
    assert "the run names '0123abc' itself" in capsys.readouterr().err
    (tmp_path / "run" / "summary.json").write_text(json.dumps({"seed": 0}))
    capsys.readouterr()
    assert main(words) == 2
    assert "--commit: None is not valid: the run names no commit" in capsys.readouterr().err
    assert main([*words, "--commit", "4567def"]) == 2
    assert "--machine: None is not valid: the run names no machine" in capsys.readouterr().err
    words[2] = "other"
    assert main([*words, "--commit", "4567def", "--machine", "another"]) == 0
    made = records.read_records("other")[0].made
    assert (made["commit"], made["machine"]) == ("4567def", "another")


@pytest.mark.parametrize(
    ("request_", "line"),
    [("top1 digits_wit", "digits_vit"), ("top digits_vit", "top1"), ("table trainde", "trained")],
)
def test_what_has_no_record_is_named(request_: str, line: str) -> None:
    with pytest.raises(ValueError, match=line):
        documents.text_of(request_)


def test_check_fails_where_a_document_is_stale(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    document = tmp_path / "page.md"
    document.write_text("<!--= runs digits_vit -->77<!--/-->")
    monkeypatch.setattr(documents, "documents", lambda: [document])
    monkeypatch.setattr(documents, "configurations", lambda: iter(()))
    assert main(["check"]) == 2
    assert "page.md" in capsys.readouterr().err
    assert main(["write"]) == 0
    assert main(["check"]) == 0
    assert "77" not in document.read_text()


@pytest.mark.usefixtures("own_results")
def test_a_record_is_whole_or_not_there_and_never_replaced(tmp_path: Path, own_results: Path) -> None:
    run = finished_run(tmp_path / "run", 0, 0.5)
    settings = (run / "config.yaml").read_text()
    (run / "config.yaml").unlink()
    with pytest.raises(FileNotFoundError):
        records.keep(run, "small", "python train.py", "one thread")
    assert not list(own_results.glob("small/*"))
    (run / "config.yaml").write_text(settings)
    (run / "metrics.jsonl").write_text("")
    folder = records.keep(run, "small", "python train.py", "one thread")
    assert (folder / "metrics.jsonl").read_text() == ""
    assert [path.name for path in folder.parent.iterdir()] == ["seed0"]
    with pytest.raises(ValueError, match=r"^NAME: 'small' is not valid: .*seed0 is the record of another run"):
        records.keep(run, "small", "another command", "one thread")
    assert records.read_records("small")[0].made["command"] == "python train.py"


@pytest.mark.usefixtures("own_results")
def test_bleu_is_of_all_seeds(tmp_path: Path) -> None:
    for seed, bleu in enumerate((10.0, 30.0)):
        run = finished_run(tmp_path / f"run{seed}", seed, 0.5)
        summary = json.loads((run / "summary.json").read_text()) | {"test.bleu": bleu}
        (run / "summary.json").write_text(json.dumps(summary))
        records.keep(run, "small", "python train.py", "one thread")
    assert documents.text_of("bleu small") == "20.0 ± 14.1"
