"""`python -m tests.faults.malformed [KIND…]`: try the tables, and print for each how many cases ended in which way."""

from __future__ import annotations

import sys
import tempfile
import warnings
from pathlib import Path

from tests.faults.malformed import test_images, test_settings, test_text, test_weights
from tests.faults.malformed.trials import judge

TABLES = test_settings.TABLES | test_weights.TABLES | test_images.TABLES | test_text.TABLES


def main(kinds: list[str]) -> int:
    if unknown := [kind for kind in kinds if kind not in TABLES]:
        print(f"no table {unknown[0]!r}; there are {', '.join(TABLES)}", file=sys.stderr)
        return 2
    warnings.simplefilter("ignore")
    faults = []
    for kind in kinds or TABLES:
        with tempfile.TemporaryDirectory() as folder:
            faults += judge(kind, TABLES[kind](), Path(folder))
    print("\n".join(faults))
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
