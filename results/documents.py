"""Numbers of the documents, written between markers from the records.

    <!--= top1 digits_vit -->97.77 %<!--/-->     a quantity of `QUANTITIES`, of the runs kept under a name
    <!--= json benchmarks/results/growth.json rows/0/x .2f -->1.61<!--/-->    a number of a JSON file, and its format
    <!--= table cifar10 -->…<!--/-->             a table of `results.tables`
    <!--= behind FILE -->6 of 80 cells<!--/-->   cells of a benchmark in which another library is ahead
    <!--= above NAME 0.8 -->p = 0.0003<!--/-->   one-sided t-test over seeds: the mean accuracy is above 80 %, p < 0.01
    <!--= ahead NAME NAME -->+1.2 points<!--/--> paired by seed, with the 95 % t-interval of the mean

The line `# Expected:` of a configuration is written from the records of the configuration's name, where there are any.
"""

from __future__ import annotations

import json
import re
import textwrap
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from results.records import RESULTS, ROOT, Record, mean_and_spread, percent, read_records, shared
from results.tables import TABLES
from results.tables.throughput import behind
from vit.config import nearest
from vit.evaluation.statistics import accuracy_spread, p_above
from vit.wording import counted

_MARKED = re.compile(r"<!--= (?P<request>[^>]+?) -->(?P<text>.*?)<!--/-->", re.DOTALL)
_EXPECTED = re.compile(r"^# Expected: .*(?:\n#            .*)*", re.MULTILINE)
_WIDTH = 118


def _minutes(records: list[Record]) -> str:
    seconds = sorted(record.summary["seconds"] for record in records)
    shortest, longest = (
        f"{value / 60:.0f}" if value >= 600 else f"{value / 60:.1f}" for value in (seconds[0], seconds[-1])
    )
    return shortest if shortest == longest else f"{shortest} to {longest}"


QUANTITIES: Mapping[str, Callable[[list[Record]], str]] = {
    "top1": lambda records: percent([record.summary["test.top1"] for record in records]),
    "last_top1": lambda records: percent([record.summary["last.test.top1"] for record in records]),
    "map": lambda records: percent([record.summary["test.map"] for record in records]),
    "knn": lambda records: percent([record.summary["test.knn"] for record in records]),
    "bleu": lambda records: mean_and_spread([record.summary["test.bleu"] for record in records], 1),
    "runs": lambda records: str(len(records)),
    "minutes": _minutes,
    "parameters": lambda records: f"{shared(records, 'params') / 1e6:.2f} M",
    "gmacs": lambda records: f"{shared(records, 'gmacs'):.3f} G",
}


def text_of(request: str) -> str:
    """The text that belongs between the markers of a request. ValueError for what there is no record of."""
    kind, *rest = request.split()
    if kind == "table":
        (name,) = rest
        if name not in TABLES:
            raise ValueError(f"results: there is no table {name!r}; {nearest(name, TABLES)}")
        return f"\n\n{TABLES[name]()}\n"
    if kind == "behind":
        return behind(*rest)
    if kind == "above":
        name, bar = rest
        return above(name, float(bar))
    if kind == "ahead":
        return ahead(*(_accuracies(name) for name in rest))
    if kind == "json":
        file, place, form = rest
        value = json.loads((ROOT / file).read_text())
        for step in place.split("/"):
            value = value[int(step) if isinstance(value, list) else step]
        return format(value, form)
    if kind not in QUANTITIES:
        others = ("table", "json", "behind", "above", "ahead")
        raise ValueError(f"results: there is no quantity {kind!r}; {nearest(kind, [*QUANTITIES, *others])}")
    (name,) = rest
    return QUANTITIES[kind](read_records(name))


def above(name: str, bar: float) -> str:
    """The p-value of runs whose mean accuracy is above a bar, a fraction. ValueError where it is not, at p < 0.01."""
    accuracies = list(_accuracies(name).values())
    if len(accuracies) < 2:
        raise ValueError(f"results: {name} has one run; the spread over seeds needs at least two")
    p = p_above(accuracies, bar)
    if p >= 0.01:
        raise ValueError(f"results: {name} is not above {bar} at p < 0.01 (p = {p:.2g}); a document may not say so")
    return f"p = {p:.1g}"


def _accuracies(name: str) -> dict[int, float]:
    """Test accuracy by seed."""
    return {record.summary["seed"]: record.summary["test.top1"] for record in read_records(name)}


def ahead(first: Mapping[int, float], second: Mapping[int, float]) -> str:
    """Points that the first is ahead of the second, a mean over the seeds that both have.

    ValueError for fewer than two such seeds.
    """
    shared = sorted(first.keys() & second.keys())
    if len(shared) < 2:
        raise ValueError(f"results: they share {counted(len(shared), 'seed')}; an interval needs at least two")
    found = accuracy_spread({seed: first[seed] - second[seed] for seed in shared})
    mean, low, high = (f"{100 * found[name]:+.2f}" for name in ("mean", "low", "high"))
    return f"{mean} points (95 % interval {low} to {high}, {len(shared)} seeds)"


def documents() -> list[Path]:
    return [ROOT / "README.md", *sorted((ROOT / "docs").glob("**/*.md"))]


def rewritten(document: str) -> str:
    """A document's text with every marked number written anew."""
    return _MARKED.sub(lambda match: f"<!--= {match['request']} -->{text_of(match['request'])}<!--/-->", document)


_MEASURED = {
    "top1": "{} test top-1",
    "map": "{} test mAP",
    "bleu": "test BLEU {}",
    "knn": "{} of the test images by k-NN on frozen features",
}
"""By the quantity of a task, what was measured, in words."""


def expected(name: str) -> str:
    """The line `# Expected:` of a configuration with records, wrapped like its neighbours."""
    records = read_records(name)
    summary = records[0].summary
    runs = "one seed" if len(records) == 1 else f"mean ± standard deviation of {len(records)} seeds"
    quantity = next(name for name in _MEASURED if f"test.{name}" in summary)
    measured = _MEASURED[quantity].format(QUANTITIES[quantity](records))
    places = "; ".join(dict.fromkeys(f"{each.made['machine']}, {each.made['circumstances']}" for each in records))
    text = f"{measured} ({runs}, {shared(records, 'precision')}); {_minutes(records)} minutes on {places}."
    return textwrap.fill(text, _WIDTH, initial_indent="# Expected:  ", subsequent_indent="#            ")


def configurations() -> Iterator[Path]:
    """Configurations whose accuracy is on record."""
    for file in sorted((ROOT / "configs").glob("**/*.yaml")):
        if (RESULTS / file.stem).is_dir():
            yield file


def stale() -> dict[Path, str]:
    """Files that differ from what the records say, with the text that they should have."""
    wanted = {file: rewritten(file.read_text()) for file in documents()}
    for file in configurations():
        wanted[file] = _EXPECTED.sub(expected(file.stem).replace("\\", ""), file.read_text(), count=1)
    return {file: text for file, text in wanted.items() if text != file.read_text()}
