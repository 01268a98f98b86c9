"""Malformed weight files and foreign folders: one line each, or rightly taken."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.faults.malformed import foreign_json, weights, weights_inside
from tests.faults.malformed.trials import PARTS, Case, judge, sample, try_apart
from tests.weights.test_bert import saved
from vit.hub import load_text_encoder
from vit.weights.bert import FIELDS, REQUIRED

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]
TABLES: dict[str, Callable[[], list[Case]]] = {
    "weight files": lambda: weights.cases() + weights_inside.cases(),
    "folders of other libraries": foreign_json.cases,
}


@pytest.mark.parametrize("part", PARTS)
@pytest.mark.parametrize("kind", TABLES)
def test_every_case_is_a_line_or_rightly_taken(kind: str, part: int, tmp_path: Path) -> None:
    cases = TABLES[kind]()
    assert len(cases) >= 200
    faults = judge(kind, sample(cases, part), tmp_path)
    assert not faults, "\n".join(faults)


def test_text_encoders(tmp_path: Path) -> None:
    """A folder of BERT's layout, key by key; no command reads one."""
    saved(tmp_path)
    whole = json.loads((tmp_path / "config.json").read_text())
    tried, taken = 0, []
    for key in (*REQUIRED, *FIELDS):
        for name, value in foreign_json.VALUES.items():
            content = {other: whole[other] for other in whole if other != key}
            if value is not foreign_json.MISSING:
                content[key] = value
            (tmp_path / "config.json").write_text(json.dumps(content))
            said = line_of(str(tmp_path))
            assert "\n" not in said, f"{key} {name}"
            tried += 1
            taken += [] if said else [f"{key} {name}"]
    print(f"text encoders: {tried} tried, {tried - len(taken)} one line, {len(taken)} rightly taken, 0 failures")
    assert taken == TAKEN


TAKEN = [
    *("position_embedding_type missing", "is_decoder missing", "is_decoder 0"),  # Python's 0 is false
    *("add_cross_attention missing", "add_cross_attention 0"),
    *(f"layer_norm_eps {name}" for name in ("a fraction", "10^9", "10^30")),
    *(
        f"{key} {name}"
        for key in ("hidden_dropout_prob", "attention_probs_dropout_prob")
        for name in ("0", "a fraction")
    ),
]


def line_of(folder: str) -> str:
    """The line that refuses a folder; empty: it is taken."""
    try:
        load_text_encoder(folder)
    except ValueError as error:
        return str(error)
    return ""


def test_a_sample_in_processes_of_their_own(tmp_path: Path) -> None:
    cases = [case for make in TABLES.values() for case in make()[::97]]
    faults = judge("weight files and folders, processes", cases, tmp_path, try_apart)
    assert not faults, "\n".join(faults)
