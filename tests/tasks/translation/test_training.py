"""A translation run from its first step to its translated sentence, on the copying task."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tests.tasks.translation.text_files import PAIRS, make_set
from tests.test_runs import assert_no_pickle
from tests.training.tiny import assert_same_bits, last, tiny
from vit.cli import main
from vit.config import OptimConfig
from vit.engine import make_accelerator
from vit.evaluation.transfer_evaluation import TransferOptions
from vit.hub import open_model, read_run
from vit.runs import read_metrics
from vit.tasks.task import EvalRequest, NonFinite
from vit.tasks.translation import training as translation_module
from vit.tasks.translation import translate as translate_module
from vit.tasks.translation import translator as translator_module
from vit.tasks.translation.config import (
    SearchConfig,
    TextDataConfig,
    TranslationRun,
    TranslationTrainConfig,
    TranslatorConfig,
)
from vit.tasks.translation.loading import TextBatch
from vit.tasks.translation.training import Translation
from vit.tasks.translation.translator import load_translator
from vit.tasks.translation.vocabulary import PAD
from vit.trained_runs import evaluate_checkpoint
from vit.training.loop import train
from vit.training.plan import make_plan

COPYING = TranslationRun(
    model=TranslatorConfig(width=16, depth=1, num_heads=2, hidden_width=16),
    data=TextDataConfig(
        name="copying", copying_symbols=5, copying_lengths=(2, 6), copying_sentences=70, batch_size=16, max_length=6
    ),
    search=SearchConfig(beam_size=2, max_length=8),
    optim=OptimConfig(lr=3e-3),
    train=TranslationTrainConfig(epochs=2, precision="fp32", log_every_steps=1, label_smoothing=0.1, ema_decay=0.9),
    device="cpu",
)
"""70 sentences: five steps an epoch, the last of six."""


@pytest.fixture(autouse=True)
def no_figures(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("vit.tasks.translation.report.draw_run", lambda *_: None)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs") / "copying"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("vit.tasks.translation.report.draw_run", lambda *_: None)
        train(COPYING, folder)
    assert_no_pickle(folder)
    return folder


class Says(nn.Module):
    """Answers the same logits everywhere."""

    def __init__(self, row: list[float]) -> None:
        super().__init__()
        self.row = torch.tensor(row)

    def forward(self, source: Tensor, source_lengths: Tensor, target: Tensor, **_: object) -> Tensor:
        assert len(source) == len(source_lengths)
        return self.row.expand(*target.shape, -1)


def batch_of(*targets: list[int]) -> TextBatch:
    rows = [torch.tensor(row) for row in targets]
    padded = nn.utils.rnn.pad_sequence(rows, batch_first=True, padding_value=PAD)
    lengths, places = torch.tensor([len(row) for row in rows]), torch.arange(len(rows))
    source, ones = torch.full((len(rows), 2), 4), torch.ones(len(rows))
    return TextBatch(source, torch.full_like(places, 2), padded, lengths, places, places, ones)


def test_a_sentences_loss_is_the_sum_over_its_tokens() -> None:
    task = Translation(
        replace(COPYING, train=TranslationTrainConfig(precision="fp32")), make_accelerator("cpu", "fp32")
    )
    row = [0.5, 0.0, 1.0, 0.0, 2.0, -1.0]
    total = math.log(sum(math.exp(value) for value in row))
    losses, hits = task.losses(Says(row), batch_of([1, 4, 4, 5, 2], [1, 4, 2]), epoch=0)
    expected = [sum(total - row[token] for token in (4, 4, 5, 2)), sum(total - row[token] for token in (4, 2))]
    assert losses.tolist() == pytest.approx(expected, rel=1e-5)
    assert hits.tolist() == [2.0, 1.0], "padding is no hit, though the model would guess it where it is likeliest"
    _, hits = task.losses(Says([9.0, 0, 0, 0, 0, 0]), batch_of([1, 4, 4, 5, 2], [1, 4, 2]), epoch=0)
    assert hits.tolist() == [0.0, 0.0]


def test_label_smoothing_is_over_the_whole_vocabulary() -> None:
    task = Translation(COPYING, make_accelerator("cpu", "fp32"))
    row = torch.tensor([0.5, 0.0, 1.0, 0.0, 2.0, -1.0])
    losses, _ = task.losses(Says(row.tolist()), batch_of([1, 4, 2]), epoch=0)
    logs = row.log_softmax(dim=0)
    expected = -(0.9 * (logs[4] + logs[2]) + 0.1 * 2 * logs.mean())
    assert losses.tolist() == pytest.approx([float(expected)], rel=1e-5)


def test_the_run_folder_says_what_was_measured(run: Path) -> None:
    summary = json.loads((run / "summary.json").read_text())
    assert summary["dataset"] == "copying"
    assert summary["sentences_seen"] == 2 * 70
    assert summary["steps"] == 2 * 5
    assert summary["test.n_seen"] == summary["test.n_total"] == 7
    assert 0 <= summary["test.bleu"] <= 100
    assert summary["test.perplexity"] == pytest.approx(math.exp(summary["test.nll"]))
    assert "nrefs:1|case:mixed" in summary["bleu_signature"]
    records = read_metrics(run)
    assert {"val.bleu", "ema.val.bleu", "val.nll", "val.token_accuracy"} <= records[-1].keys()
    best = max(record["ema.val.bleu"] for record in records if "ema.val.bleu" in record)
    assert summary["val.bleu"] == best
    assert len((run / "predictions" / "test.jsonl").read_text().splitlines()) == 7
    card = (run / "README.md").read_text()
    assert "test BLEU" in card
    assert "evaluated after training and chose nothing" in card


def test_the_loss_falls_and_the_logged_loss_is_the_mean_over_tokens(run: Path) -> None:
    losses = [record["train.loss"] for record in read_metrics(run) if "train.loss" in record]
    assert abs(losses[0] - math.log(9)) < 1.5, "nine tokens, about equally likely at first"
    assert losses[-1] < losses[0]


def test_bleu_is_shown_as_it_is(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """It goes to 100, and is no fraction."""
    train(replace(COPYING, train=replace(COPYING.train, epochs=1)), tmp_path)
    (line,) = (line for line in capsys.readouterr().out.splitlines() if line.startswith("epoch "))
    assert f"ema.val.bleu {read_metrics(tmp_path)[-1]['ema.val.bleu']:.4g}, " in line


def test_weights_trained_on_other_tokens_are_not_continued(run: Path) -> None:
    task = Translation(COPYING, make_accelerator("cpu", "fp32"))
    state = last(run).state["task"]
    task.load_state(state)
    other = state["vocabularies"].replace(r"\"3\":", r"\"nine\":")
    assert other != state["vocabularies"]
    with pytest.raises(ValueError, match=r"^task\.vocabularies gives tokens other numbers"):
        task.load_state(state | {"vocabularies": other})


def test_a_run_stopped_in_mid_epoch_ends_with_the_same_bits(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = replace(COPYING, train=replace(COPYING.train, save_every_steps=3))

    class Killed(Exception):
        pass

    losses, calls = Translation.losses, iter(range(7))

    def dies(self: Translation, *arguments: Any) -> Any:
        if next(calls, None) is None:
            raise Killed
        return losses(self, *arguments)

    with monkeypatch.context() as patch:
        patch.setattr(Translation, "losses", dies)
        with pytest.raises(Killed):
            train(config, tmp_path / "killed")
    assert last(tmp_path / "killed").state["progress"]["step"] == 6
    train(config, tmp_path / "killed", resume=True)
    assert_same_bits(run, tmp_path / "killed")


def test_micro_batches_change_nothing_but_rounding(run: Path, tmp_path: Path) -> None:
    train(replace(COPYING, train=replace(COPYING.train, accumulation_steps=4)), tmp_path)
    for name, tensor in last(run).tensors["model"].items():
        torch.testing.assert_close(last(tmp_path).tensors["model"][name], tensor, rtol=1e-2, atol=2e-3)
    pairs = zip(read_metrics(run), read_metrics(tmp_path), strict=True)
    for ours, theirs in pairs:
        if "train.loss" in ours:
            assert ours["train.loss"] == pytest.approx(theirs["train.loss"], rel=1e-3)


def test_dropout_in_attention_is_the_same_however_a_step_is_divided(tmp_path: Path) -> None:
    """Its random numbers are counted by padded tokens, so that all parts of a step are padded alike."""
    dropping = replace(COPYING, model=replace(COPYING.model, attention_dropout_rate=0.3))
    losses = []
    for parts in (1, 4):
        train(replace(dropping, train=replace(COPYING.train, accumulation_steps=parts)), tmp_path / str(parts))
        losses.append([line["train.loss"] for line in read_metrics(tmp_path / str(parts)) if "train.loss" in line])
    assert losses[0] == pytest.approx(losses[1], rel=1e-3)


@pytest.mark.parametrize("name", ["bahdanau", "rnn"])
def test_recurrent_models_train_in_the_same_loop(name: str, tmp_path: Path) -> None:
    model = TranslatorConfig(name=name, width=8, depth=1)  # type: ignore[arg-type]
    summary = train(replace(COPYING, model=model, train=TranslationTrainConfig(epochs=1, precision="fp32")), tmp_path)
    assert summary["model"] == name
    translator = load_translator(tmp_path).model
    assert translator.config.name == name


@pytest.mark.parametrize("optimizer", ["muon", "lamb"])
def test_other_optimizers_know_a_translators_parameters(optimizer: str, tmp_path: Path) -> None:
    optim = OptimConfig(name=optimizer, lr=1e-3, layer_decay=0.9)  # type: ignore[arg-type]
    train(replace(COPYING, optim=optim), tmp_path)
    losses = [record["train.loss"] for record in read_metrics(tmp_path) if "train.loss" in record]
    assert losses[-1] < losses[0]


def test_answers_that_are_not_finite_stop_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(translation_module, "translation_metrics", lambda *_, **__: {"nll": float("nan")})
    with pytest.raises(NonFinite, match=r"validation sentences are not finite after step 5 \(epoch 1\)"):
        train(COPYING, tmp_path)


def test_evaluation_gives_what_the_summary_says(run: Path, tmp_path: Path) -> None:
    summary = json.loads((run / "summary.json").read_text())
    metrics = evaluate_checkpoint(EvalRequest(checkpoint=run, output_dir=tmp_path))
    assert metrics["bleu"] == summary["test.bleu"]
    assert metrics["nll"] == pytest.approx(summary["test.nll"])
    (record,) = tmp_path.glob("*.json")
    assert json.loads(record.read_text())["bleu"] == metrics["bleu"]
    greedy = evaluate_checkpoint(EvalRequest(checkpoint=run, output_dir=tmp_path), ["--search.beam_size", "1"])
    assert greedy["nll"] == metrics["nll"]
    (before,) = (tmp_path / "earlier-1").glob("*.json")
    assert json.loads(before.read_text())["search"]["beam_size"] == COPYING.search.beam_size
    assert before.with_suffix(".jsonl").is_file()
    evaluate_checkpoint(EvalRequest(checkpoint=run, output_dir=tmp_path), ["--search.beam_size", "1"])
    assert not (tmp_path / "earlier-2").exists(), "the same search and the same weights"
    record.write_text(json.dumps(json.loads(record.read_text()) | {"step": 1}))
    evaluate_checkpoint(EvalRequest(checkpoint=run, output_dir=tmp_path), ["--search.beam_size", "1"])
    assert (tmp_path / "earlier-2" / record.name).is_file(), "of another step, though of the same numbers"


def test_a_checkpoint_of_an_earlier_version_is_opened(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    read = read_run

    def with_settings_of_then(*asked: Any) -> Any:
        tensors, state = read(*asked)
        section = state["config"]["train"] | {"class_weights": None}
        return tensors, state | {"config": state["config"] | {"train": section}}

    monkeypatch.setattr(translator_module, "read_run", with_settings_of_then)
    assert load_translator(run).config == COPYING


@pytest.mark.parametrize(
    ("options", "overrides", "message"),
    [
        ({"image_size": 48}, [], "--image_size: it has no effect here; the checkpoint is a translator's"),
        ({"transfer": TransferOptions()}, [], "--transfer: it has no effect here"),
        ({}, ["--model.width", "8"], r"--model\.width: it has no effect here"),
        ({}, ["--augment.flip", "true"], r"--augment\.flip: there is no such setting"),
    ],
)
def test_evaluation_refuses_what_has_no_effect(
    options: dict[str, Any], overrides: list[str], message: str, run: Path
) -> None:
    with pytest.raises(ValueError, match=message):
        evaluate_checkpoint(EvalRequest(checkpoint=run, **options), overrides)


def test_translate_prints_and_draws(run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    figure = tmp_path / "alignment.png"
    assert main(["translate", str(run), "--device", "cpu", "--figure", str(figure), "1 2 3"]) == 0
    printed = capsys.readouterr().out
    assert set(printed.split()) <= set("01234")
    numbers = json.loads(figure.with_suffix(".json").read_text())
    assert numbers["source"] == ["1", "2", "3", "<eos>"]
    assert numbers["target"][-1] == "<eos>"
    assert numbers["target"][:-1] == printed.split()
    assert [sum(row) for row in numbers["weights"]] == pytest.approx([1.0] * len(numbers["target"]), abs=1e-5)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["{run}", " "], "argument: '' is not valid: it is empty"),
        (["{run}", "1 " * 5001], "sentence: '1 1 1 1 1 1 1 1 1 1 '… has 10,002 characters; at most 10,000"),
        (["{run}", "--figure", "a.png", "1", "2"], "--figure: it draws one sentence"),
        (["{run}", "--figure", "a.txt", "1"], "--figure: 'a.txt' is not valid: it must end in .png"),
        (["{run}", "--beam_size", "0", "1"], "search.beam_size: 0 is not valid"),
        (["{run}/no", "1"], "no"),
    ],
)
def test_wrong_sentences_are_one_line(
    words: list[str], message: str, run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["translate", *(word.format(run=run) for word in words)]) == 2
    said = capsys.readouterr().err
    assert message in said
    assert said.count("\n") == 1


def test_a_translation_of_as_many_tokens_as_positions_has_its_alignment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A search that finds no end of the sentence stops there."""
    model = replace(COPYING.model, positions="learned", max_length=8)
    train(replace(COPYING, model=model, train=replace(COPYING.train, epochs=1)), tmp_path / "run")
    monkeypatch.setattr(translate_module, "find_search", lambda **_: lambda *_: [[4] * 8])
    assert main(["translate", str(tmp_path / "run"), "0 1", "--figure", str(tmp_path / "a.png")]) == 0
    numbers = json.loads((tmp_path / "a.json").read_text())
    assert len(numbers["weights"]) == len(numbers["target"]) == 8


def test_a_translator_is_no_classifier(run: Path) -> None:
    with pytest.raises(ValueError, match="it holds a model of kind 'translator'; for that there is `vit translate`"):
        open_model(run)


def test_a_classifier_is_no_translator(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("vit.tasks.classification.report.draw_run", lambda *_: None)
    train(tiny(train={"epochs": 1}), tmp_path)
    with pytest.raises(ValueError, match="it holds a model of kind 'vit'; for that there is `vit predict`"):
        load_translator(tmp_path)


def test_the_plan_speaks_of_sentences() -> None:
    rows = make_plan(COPYING).rows
    assert rows["sentences"].startswith("70 pairs to train on (0 left out")
    assert rows["steps"] == "10 (2 epochs of 5)"


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"train": TranslationTrainConfig(compile=True, cuda_graphs=True)}, r"train\.cuda_graphs: True is not valid"),
        (
            {"data": TextDataConfig(batch_size=10), "train": TranslationTrainConfig(accumulation_steps=4)},
            r"data\.batch_size",
        ),
        (
            {"data": TextDataConfig(shared_vocabulary=False), "model": TranslatorConfig(share_embeddings=True)},
            r"model\.share_embeddings: True is not valid",
        ),
        ({"model": TranslatorConfig(positions="learned", max_length=50)}, r"model\.max_length: 50 is not valid"),
    ],
)
def test_rules_between_sections(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        TranslationRun(**changes)


@pytest.mark.parametrize(("part", "name"), [("val", "validation"), ("test_2016_flickr", "test")])
def test_sentences_beyond_the_learned_positions_are_found_before_training(part: str, name: str, tmp_path: Path) -> None:
    long = ("Hund " * 30, "dog " * 30)
    data = TextDataConfig(
        name="multi30k", root=str(make_set(tmp_path, {**PAIRS, part: [long]})), max_length=20, batch_size=2
    )
    model = TranslatorConfig(positions="learned", max_length=21, width=16, num_heads=2)
    config = replace(COPYING, data=data, model=model, search=SearchConfig(beam_size=1, max_length=20))
    with pytest.raises(ValueError, match=rf"model\.max_length: 21 .* the longest {name} sentence needs \d+ positions"):
        Translation(config, make_accelerator("cpu", "fp32"))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"beam_size": 0}, r"search\.beam_size"),
        ({"max_length": 0}, r"search\.max_length"),
        ({"length_penalty": -1.0}, r"search\.length_penalty"),
        ({"beam_size": 1, "length_penalty": 0.5}, r"search\.length_penalty: .*beam_size above 1"),
    ],
)
def test_rules_of_the_search(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        SearchConfig(**changes)
