"""Test images that a run was trained on, itself or by the runs that it began from.

A run lists the identities of its files, and those of the test images are looked up there. For images that are no files,
and runs of which no list is at hand, the training images are opened again by the run's settings. They are those that it
had if the fingerprint of their names and labels is still the stored one; else, those of its list that are still there.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from vit.config import DataConfig
from vit.data.archives import image_root
from vit.data.file_source import FileSource
from vit.data.identity import count_shared, file_identities, paths_of
from vit.data.images import Split, fingerprint, open_training
from vit.data.run_images import RunImages, image_list_path, images_there, names_digest, read_images, without_test
from vit.hub import OpenedModel
from vit.hub.run_history import State, data_of_run, lineage, why_unread
from vit.runs import find_checkpoint, holds_checkpoints, read_checkpoint
from vit.wording import counted

_DIVISION = ("name", "test_folder", "test_fraction", "split_seed", "fake_classes")
"""Settings, with `root`, that decide which images are the test images."""


_TABLE = "table"
"""The data set of multi-label runs, which a higher package opens."""
OpenTable = Callable[[State], tuple[Split, Split]]


@dataclass(frozen=True)
class SeenImages:
    """Test images that one run behind a model has seen."""

    model: str
    run: str
    training: int = 0
    """How many of them are among its training images."""
    validation: int = 0
    """How many are among those that chose its best checkpoint."""
    total: int = 0
    """All test images."""
    copies: int = 0
    """How many others are copies of these, which the data holds twice."""
    replaced: int = 0
    """Test images that have other contents than when the run was tested."""
    gone: int = 0
    """Training and validation images of the run that are not there any more, and so were not compared."""
    unlisted: str = ""
    """The run's list, where it is missing, so that replaced images are not known."""
    unchecked: str = ""
    """Why it could not be checked."""

    def warning(self) -> str:
        """A sentence, or nothing where it has seen none."""
        if self.unchecked:
            return f"Whether {self.run} was trained on test images could not be checked: {self.unchecked}."
        lines = []
        if self.training:
            lines.append(
                f"{self.training:,} of {self.total:,} test images are training images of {self.run}: its accuracy here "
                "is not its accuracy on new images."
            )
        if self.validation:
            lines.append(
                f"{self.validation:,} of {self.total:,} test images are validation images of {self.run}, which chose "
                "its weights: its accuracy here is too high."
            )
        if self.copies:
            lines.append(
                f"{self.copies:,} of {self.total:,} test images are copies of training or validation images of "
                f"{self.run}, byte by byte: its accuracy here is too high."
            )
        if self.replaced:
            lines.append(
                f"{self.replaced:,} of {self.total:,} test images are other images now than when {self.run} was tested."
            )
        if self.unlisted:
            lines.append(
                f"Whether images were replaced since {self.run} was trained could not be checked: {self.unlisted} is "
                "missing."
            )
        if self.gone:
            verb = "is" if self.gone == 1 else "are"
            lines.append(f"{counted(self.gone, 'image')} of {self.run} {verb} gone and could not be compared.")
        return " ".join(lines)

    def short(self) -> str:
        """A few words, for a table."""
        if self.unchecked:
            return "not checked"
        validation = f", {self.validation:,} for validation" if self.validation else ""
        copies = f", and {self.copies:,} copies" if self.copies else ""
        return f"{self.training:,} of {self.total:,}{validation}{copies}"


def seen_images(
    model: OpenedModel, config: DataConfig | None, test: Split, open_table: OpenTable | None = None
) -> list[SeenImages]:
    """List how many of the `test` images the model's run, and each run it began from, has trained on.

    Nothing for a model that is no run: its training data is known by name only. `config` is how `test` was opened,
    None if not by one of this package's divisions; `open_table` opens a multi-label run's images by its state.
    """
    if model.state is None or "config" not in model.state:
        return []
    return _seen_by_lineage(model.name, model.source, model.state, config, test, open_table)


def seen_by_run(run: str, config: DataConfig, test: Split) -> list[SeenImages]:
    """As `seen_images`, of a run's folder whose weights another training begins with; nothing for what is no run."""
    try:
        if not holds_checkpoints(Path(run)):
            return []
        state = read_checkpoint(find_checkpoint(Path(run)), []).state
    except (OSError, ValueError) as error:
        return [SeenImages(run, run, total=len(test), unchecked=str(error))]
    return _seen_by_lineage(run, run, state, config, test, None)


def _seen_by_lineage(
    model: str, source: str, state: State, config: DataConfig | None, test: Split, open_table: OpenTable | None
) -> list[SeenImages]:
    states = list(lineage(state))
    names = [source, *(state["config"]["model"]["pretrained"] for state in states[:-1])]
    found = []
    for name, state in zip(names, states, strict=True):
        unchecked = SeenImages(model, name, total=len(test))
        found.append(_seen(unchecked, state, config, test, open_table, image_list_path(Path(name))))
    if reason := why_unread(states[-1]):
        found.append(SeenImages(model, states[-1]["config"]["model"]["pretrained"], unchecked=reason))
    return found


def warnings_of(seen: Sequence[SeenImages]) -> list[str]:
    """One sentence for each run that has seen test images, or of which that could not be checked."""
    return list(dict.fromkeys(line for each in seen if (line := each.warning())))


def _seen(
    unchecked: SeenImages,
    state: State,
    config: DataConfig | None,
    test: Split,
    open_table: OpenTable | None,
    images: Path,
) -> SeenImages:
    own = data_of_run(state)
    if own is None or (own.name == _TABLE and open_table is None):
        return replace(unchecked, unchecked="its images are in a table of labels")
    same_division = config is not None and _division(own) == _division(config)
    try:
        listed = read_images(images) if images.is_file() else RunImages()
        if listed and state.get("images") and names_digest(listed) != state["images"]:
            raise ValueError(f"{images} was altered: it does not name the images that the run was trained on")
        # a file that could not be read has no identity, and was not trained on; very long lists have none at all
        known = any(image.identity for image in without_test(listed).values())
        if known and isinstance(test.source, FileSource):
            return _found_in_list(unchecked, listed, test, own, in_one_division=same_division)
        training, chosen, gone = _trained_images(own, state, open_table, without_test(listed))
    except (OSError, ValueError) as error:
        return replace(unchecked, unchecked=str(error))
    if gone is None and same_division:
        files = isinstance(training.source, FileSource) and isinstance(test.source, FileSource)
        return replace(unchecked, unlisted=str(images)) if files and not listed else unchecked
    found = replace(unchecked, gone=gone or 0)
    return replace(found, training=count_shared(test, training), validation=count_shared(test, chosen))


def _found_in_list(
    unchecked: SeenImages, listed: RunImages, test: Split, own: DataConfig, *, in_one_division: bool
) -> SeenImages:
    """How many test images are training and validation images of a run's list, wherever these are now.

    In one division of the same images, a copy of a training image that is still there is no image that was seen before
    it became a test image, but a copy in the data; and a test image of another content than before was replaced.
    """
    assert isinstance(test.source, FileSource)
    paths = paths_of(test)
    identities = file_identities(paths, "test images")
    root = test.source.root if in_one_division else image_root(own)
    named, theirs = _originals(listed, set(identities), root.parent if root.is_file() else root)
    hits = [(path, each) for path, each in zip(paths, identities, strict=True) if each in named]
    contents = file_identities([path for path, _ in hits], "test images", whole=True)
    parts, copies, replaced = list[str](), 0, 0
    for (_, identity), content in zip(hits, contents, strict=True):
        same = next((file for file in named[identity] if theirs.get(file) == content), None)
        gone = next((file for file in named[identity] if file not in theirs), None)
        if same is not None and in_one_division:
            copies += 1
        elif (file := same or gone) is not None:
            parts.append(listed[file].part)
    if in_one_division:
        names = [test.source.name(index) for index in test.indices.tolist()]
        before = {file: image.identity for file, image in listed.items() if image.part == "test" and image.identity}
        replaced = sum(before.get(name, each) != each for name, each in zip(names, identities, strict=True))
    return replace(
        unchecked, training=parts.count("train"), validation=parts.count("validation"), copies=copies, replaced=replaced
    )


def _originals(listed: RunImages, wanted: set[str], root: Path) -> tuple[dict[str, list[str]], dict[str, str]]:
    """The run's files by those of their identities that are `wanted`; and the hashes of all the content of those that
    are still there, which tells apart images without compression that have the same end.
    """
    named = dict[str, list[str]]()
    for file, image in without_test(listed).items():
        if image.identity in wanted and image.identity:
            named.setdefault(image.identity, []).append(file)
    files = [file for each in named.values() for file in each]
    now = file_identities([root / file for file in files], "copies")
    there = [file for file, identity in zip(files, now, strict=True) if identity == listed[file].identity]
    contents = file_identities([root / file for file in there], "copies", whole=True)
    return named, dict(zip(there, contents, strict=True))


def _trained_images(
    own: DataConfig, state: State, open_table: OpenTable | None, listed: RunImages
) -> tuple[Split, Split, int | None]:
    """(train, validation) of a run. Where they are not as they were: those of its list that are there, and how many are
    not; else None. ValueError, in words for the user, where they cannot be known.
    """
    reason = f"the images of {own.name} in {own.root} have changed since"
    try:
        if own.name == _TABLE and open_table is not None:
            train, validation = open_table(state)
        else:
            train, validation = open_training(replace(own, download=False))
        if state.get("data_fingerprint") == f"{fingerprint(train)}+{fingerprint(validation)}":
            return train, validation, None
        reason += ", or an earlier version divided them otherwise"
    except (OSError, ValueError) as error:
        reason = f"its training images are not at hand ({error})"
    root = image_root(own)
    train, validation = images_there(listed, root.parent if root.is_file() else root)
    if not len(train):
        raise ValueError(reason)
    return train, validation, len(listed) - len(train) - len(validation)


def _division(config: DataConfig) -> Sequence[Any]:
    return [Path(config.root).resolve(), *(getattr(config, name) for name in _DIVISION)]
