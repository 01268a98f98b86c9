"""Parallel files of sentences that are not what they should be, sentences to translate, and settings of text."""

from __future__ import annotations

import gzip
import os
import shutil
from collections.abc import Callable
from functools import cache, partial
from pathlib import Path
from tempfile import mkdtemp

import numpy as np

from tests.faults.malformed.trials import Case
from tests.tasks.translation.text_files import make_set
from vit.cli import main
from vit.config import OptimConfig
from vit.settings import dump_run_config
from vit.tasks.translation.config import (
    SearchConfig,
    TextDataConfig,
    TranslationRun,
    TranslationTrainConfig,
    TranslatorConfig,
)
from vit.tasks.translation.text import LONGEST_LINE

PAIRS = [(f"Ein Hund läuft {number}.", f"A dog runs {number}.") for number in range(6)]
PARTS = {"train": PAIRS, "val": PAIRS[:2], "test_2016_flickr": PAIRS[:2]}
TRAIN = ("train", "--config", "recipe.yaml", "--output_dir", "run")
RUN = TranslationRun(
    model=TranslatorConfig(width=8, depth=1, num_heads=2, hidden_width=8),
    data=TextDataConfig(root="set", batch_size=4, vocabulary_size=270),
    search=SearchConfig(beam_size=1, max_length=3),
    optim=OptimConfig(lr=3e-3),
    train=TranslationTrainConfig(epochs=1, precision="fp32"),
    device="cpu",
)
Change = Callable[[bytes], bytes]


def lines_as(change: Callable[[list[str]], list[str]], text: bytes) -> bytes:
    """The lines of a file changed."""
    return "".join(f"{line}\n" for line in change(text.decode().splitlines())).encode()


def _first_line(line: str, text: bytes) -> bytes:
    return lines_as(lambda lines: [line, *lines[1:]], text)


def _packed(change: Change, content: bytes) -> bytes:
    return gzip.compress(change(gzip.decompress(content)))


def _wrong_checksum(content: bytes) -> bytes:
    return content[:-8] + b"\0\0\0\0" + content[-4:]


NOISE = np.random.default_rng(0).bytes(300)
FILES: dict[str, Change] = {
    "of no bytes": lambda content: b"",  # noqa: ARG005
    "of a byte": lambda content: content[:1],
    "of a header alone": lambda content: content[:10],
    "cut in half": lambda content: content[: len(content) // 2],
    "without its last byte": lambda content: content[:-1],
    "with a wrong checksum": _wrong_checksum,
    "with garbage behind": lambda content: content + b"garbage",
    "not packed": lambda content: gzip.decompress(content),
    "that is noise": lambda content: NOISE,  # noqa: ARG005
    "that is a zip archive": lambda content: b"PK\x03\x04" + NOISE,  # noqa: ARG005
    "that is a picture": lambda content: b"\x89PNG\r\n\x1a\n" + NOISE,  # noqa: ARG005
    "packed twice": gzip.compress,
    "of noise, packed": lambda content: gzip.compress(NOISE),  # noqa: ARG005
    "of zeros that unpack to 200 MB": lambda content: gzip.compress(bytes(200 * 2**20), 9),  # noqa: ARG005
    "of no line": partial(_packed, lambda text: b""),  # noqa: ARG005
    "in UTF-16": partial(_packed, lambda text: text.decode().encode("utf-16")),
    "in Latin-1": partial(_packed, lambda text: text.decode().replace("dog", "dög").encode("latin-1")),
    "with a byte that is no UTF-8": partial(_packed, lambda text: b"\xff" + text),
    "with half a letter at its end": partial(_packed, lambda text: text + "ä".encode()[:1]),
    "with a surrogate": partial(_packed, lambda text: b"\xed\xa0\x80" + text),
    "of a line less": partial(_packed, partial(lines_as, lambda lines: lines[1:])),
    "of a line more": partial(_packed, partial(lines_as, lambda lines: [*lines, "More."])),
    "of an empty line more": partial(_packed, partial(lines_as, lambda lines: [*lines, ""])),
    "of one line of all": partial(_packed, partial(lines_as, lambda lines: [" ".join(lines)])),
    "with carriage returns alone": partial(_packed, lambda text: text.replace(b"\n", b"\r")),
    "with a line of a million characters": partial(_packed, partial(_first_line, "word " * 200_000)),
    "with a word of a million letters": partial(_packed, partial(_first_line, "a" * 10**6)),
    "with a million letters with accents": partial(_packed, partial(_first_line, "e\u0301" * 10**6)),
    "with a line of one character too many": partial(_packed, partial(_first_line, "a" * (LONGEST_LINE + 1))),
}
IS_TEXT = "it is text in UTF-8, line by line"
FILES_TAKEN: dict[str, Change] = {
    "with line feeds and carriage returns": partial(_packed, lambda text: text.replace(b"\n", b"\r\n")),
    "without a line feed at its end": partial(_packed, lambda text: text[:-1]),
    "with a byte order mark": partial(_packed, lambda text: b"\xef\xbb\xbf" + text),
    "with a zero byte": partial(_packed, lambda text: b"\0" + text),
    "with an empty line": partial(_packed, partial(_first_line, "")),
    "of spaces alone": partial(_packed, partial(lines_as, lambda lines: [" \t" for _ in lines])),
    "with names of special tokens": partial(_packed, partial(_first_line, "<pad><eos><unk>")),
    "with emoji": partial(_packed, partial(_first_line, "👩‍👩‍👧‍👦 🇩🇪")),
    "with Arabic": partial(_packed, partial(_first_line, "\u202eمرحبا")),
    "with markup": partial(_packed, partial(_first_line, "<script>alert(1)</script>")),
    "with separators that are no line feeds": partial(
        _packed, partial(_first_line, "a\u2028b\x0bc\x85")
    ),
    "packed in two members": lambda content: gzip.compress(gzip.decompress(content)[:9])
    + gzip.compress(gzip.decompress(content)[9:]),
}  # fmt: skip


def _pipe(path: Path) -> None:
    os.mkfifo(path)


PLACES: dict[str, Callable[[Path], object]] = {
    "that is not there": lambda path: None,  # noqa: ARG005
    "that is a pipe": _pipe,
    "that is a folder": lambda path: path.mkdir(),
    "that is a link to itself": lambda path: path.symlink_to(path.name),
    "that is a link to nothing": lambda path: path.symlink_to("no"),
    "that is a link to endless zeros": lambda path: path.symlink_to("/dev/zero"),
}


def _set(folder: Path) -> None:
    make_set(folder / "set", PARTS)
    (folder / "recipe.yaml").write_text(dump_run_config(RUN, {}))


def _changed(file: str, change: Change, folder: Path) -> None:
    _set(folder)
    path = folder / "set" / file
    path.write_bytes(change(path.read_bytes()))


def _placed(file: str, place: Callable[[Path], object], folder: Path) -> None:
    _set(folder)
    (folder / "set" / file).unlink()
    place(folder / "set" / file)


def file_cases() -> list[Case]:
    found = []
    for part in PARTS:
        # the test part is read when the run is over, so that nothing of it can be learned
        leaves = "run" if part.startswith("test") else ""
        for file in (f"{part}.de.gz", f"{part}.en.gz"):
            for name, change in FILES.items():
                found.append(Case(f"{file} {name}", partial(_changed, file, change), TRAIN, says=file, leaves=leaves))
            for name, place in PLACES.items():
                found.append(Case(f"{file} {name}", partial(_placed, file, place), TRAIN, says=file))
    return found


def taken_file_cases() -> list[Case]:
    return [
        Case(f"{file} {name}", partial(_changed, file, change), TRAIN, IS_TEXT)
        for file in ("train.de.gz", "val.en.gz")
        for name, change in FILES_TAKEN.items()
    ]


# ------------------------------------------------------------------ settings

SETTINGS: dict[str, tuple[str, ...]] = {
    "data.vocabulary_size": ("0", "-1", "259", "1000000000", "1000000000000000000", "many", "270.5", "null", "[270]"),
    "data.max_length": ("0", "-1", "1000000000", "many"),
    "data.batch_size": ("0", "-4", "many"),
    "data.pool": ("0", "-1", "1.5"),
    "data.source_language": ("xx", "''", "en", "../de", "null", "[de]"),
    "data.target_language": ("xx", "de", "a/b"),
    "data.val_part": ("no", "train", "''", "../set/no", "test_2016_flickr"),
    "data.test_parts": ("[]", "[no]", "[train]", "[val]", "[test_2016_flickr, test_2016_flickr]", "[1]", "null"),
    "data.root": ("no", "''", "recipe.yaml", "/dev/null", "/proc/self/mem"),
    "data.name": ("no", "1", "null", "imagefolder"),
    "data.copying_symbols": ("5",),
    "search.beam_size": ("0", "-1", "1000000000", "many"),
    "search.max_length": ("0", "-1", "many"),
    "search.length_penalty": ("-1", "nan", "many"),
    "model.width": ("0", "-8", "7", "1000000000", "8.5"),
    "model.depth": ("0", "-1", "1000000000"),
    "model.num_heads": ("0", "3", "1000000000"),
    "model.share_embeddings": ("maybe",),
    "augment.flip": ("true",),
}


def setting_cases() -> list[Case]:
    return [
        Case(f"--{name} {value}", _set, (*TRAIN, f"--{name}", value))
        for name, values in SETTINGS.items()
        for value in values
    ]


# ------------------------------------------------------------------ sentences


@cache
def _trained() -> Path:
    """A run of the tiny translator, trained once."""
    folder = Path(mkdtemp(prefix="translator-"))
    _set(folder)
    recipe = (folder / "recipe.yaml").read_text().replace("root: set", f"root: {folder / 'set'}")
    (folder / "recipe.yaml").write_text(recipe)
    assert main(["train", "--config", str(folder / "recipe.yaml"), "--output_dir", str(folder / "run")]) == 0
    return folder / "run"


def _with_run(folder: Path) -> None:
    shutil.copytree(_trained(), folder / "run")


TRANSLATE = ("translate", "run")
SENTENCES: dict[str, tuple[str, ...]] = {
    "nothing": ("",),
    "spaces": (" \t\n",),
    "one of nothing among others": ("Ein Hund.", ""),
    "a million characters": ("word " * 200_000,),
    "a word of a million letters": ("a" * 10**6,),
    "one character too many": ("a" * (LONGEST_LINE + 1),),
    "bytes that are no UTF-8": ("Ein \udcff Hund",),
    "a lone surrogate": ("\ud800",),
    "a beam of 0": ("--beam_size", "0", "Ein Hund."),
    "a beam of -1": ("--beam_size=-1", "Ein Hund."),
    "a beam of 10^9": ("--beam_size", "1000000000", "Ein Hund."),
    "a beam of letters": ("--beam_size", "many", "Ein Hund."),
    "a figure that is no picture": ("--figure", "a.txt", "Ein Hund."),
    "a figure of two": ("--figure", "a.png", "Ein Hund.", "Zwei."),
    "another device": ("--device", "abacus", "Ein Hund."),
    "no sentence": (),
}
SENTENCES_TAKEN: dict[str, str] = {
    "a sentence": "Ein Hund läuft.",
    "emoji": "👩‍👩‍👧‍👦",
    "Arabic": "\u202eمرحبا",
    "a line break": "Ein\nHund",
    "a zero-width space": "\u200b",
    "a byte order mark": "\ufeff",
    "a special token's name": "<pad>",
    "a long word": "a" * 500,
    "control characters": "\x01\x02\x1b[31m",
    "markup": "<script>",
}


def sentence_cases() -> list[Case]:
    found = [Case(f"translate {name}", _with_run, (*TRANSLATE, *words)) for name, words in SENTENCES.items()]
    return found + [
        Case(f"translate {name}", _with_run, (*TRANSLATE, sentence), "bytes can write any text")
        for name, sentence in SENTENCES_TAKEN.items()
    ]


def cases() -> list[Case]:
    return file_cases() + taken_file_cases() + setting_cases() + sentence_cases()
