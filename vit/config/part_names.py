"""Names that divide images into parts, as people give them to folders and lists: `train`, `Training`, `test_set`."""

from __future__ import annotations

import re
from typing import Literal

PartName = Literal["train", "validation", "test"]
PART_WORDS: dict[str, PartName] = {
    **dict.fromkeys(("train", "training"), "train"),
    **dict.fromkeys(("val", "valid", "validation", "dev"), "validation"),
    **dict.fromkeys(("test", "testing", "eval", "evaluation"), "test"),
}
_NAME = re.compile(rf"({'|'.join(PART_WORDS)})([ _-]?(set|data|images))?")


def part_named(name: str) -> PartName | None:
    """The part that a name means, in any case and with `set`, `data` or `images` behind it; None: it is no part's."""
    found = _NAME.fullmatch(name.strip().casefold())
    return None if found is None else PART_WORDS[found[1]]
