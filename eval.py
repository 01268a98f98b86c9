"""Evaluate: `python eval.py MODEL`; `vit eval --help` says more. Works under `accelerate launch`."""

import sys

from vit.cli import main

if __name__ == "__main__":
    sys.exit(main(["eval", *sys.argv[1:]]))
