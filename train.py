"""Train: `python train.py [--config FILE]`; `vit train --help` says more. Works under `accelerate launch`."""

import sys

from vit.cli import main

if __name__ == "__main__":
    sys.exit(main(["train", *sys.argv[1:]]))
