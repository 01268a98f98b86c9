"""`python docs/transcript.py`: a whole session on a folder of own images, run without a terminal, as a page.

The images are crops of scikit-learn's two photographs, so that anybody can repeat it. Output is what the commands
print, standard error included; only what is said of time may differ the next time.
"""

from __future__ import annotations

import os
import random
import shlex
import subprocess
import tempfile
from pathlib import Path

from PIL import Image
from sklearn.datasets import load_sample_images

PAGE = Path(__file__).parent / "transcript.md"
CLASSES = {"temple": 0, "flower": 1}
SIDE, COUNT = 96, 150
STEPS = (
    ("What will be trained, before it is", "vit plan --config your_images --data my_images --epochs 10"),
    ("Training a Vision Transformer", "vit train --config your_images --data my_images --epochs 10"),
    (
        "The ResNet to compare it with",
        "vit train --config your_images_resnet --data my_images --epochs 10 --output_dir runs/resnet",
    ),
    ("The test set again, from the stored weights", "vit eval runs/your_images"),
    ("Comparing the two", "vit compare runs/your_images runs/resnet"),
    ("Predicting new images", "vit predict runs/your_images new --top 2"),
    ("The same as a table for other programs", "vit predict runs/your_images new --format csv"),
    ("Looking inside", "vit analyze runs/your_images --images 16"),
    ("A file for other programs", "vit export runs/your_images --format onnx --output classifier.onnx"),
)
_NOT_RUN = "<!-- not run: the page is written by running it -->"
_HEAD = """\
# A whole session

Written by `python docs/transcript.py`: every command was run, without a terminal, in a folder that contains only
`my_images/temple/*.jpg` and `my_images/flower/*.jpg`, 150 crops each of scikit-learn's two photographs, and one more
of each in `new/`. Each command is followed by its output. The accuracies mean nothing, because crops of the same
photograph are in both the training and the test set.
"""


def write_images(place: Path) -> None:
    """Crops at random places of the two photographs, and of each one more in `new/`."""
    chance, photographs = random.Random(0), load_sample_images().images
    for name, index in CLASSES.items():
        photograph = Image.fromarray(photographs[index])
        for number in range(COUNT + 1):
            left, top = (chance.randrange(side - SIDE) for side in photograph.size)
            folder = place / "new" if number == COUNT else place / "my_images" / name
            folder.mkdir(parents=True, exist_ok=True)
            crop = photograph.crop((left, top, left + SIDE, top + SIDE))
            crop.save(folder / (f"{name}.jpg" if number == COUNT else f"{number:03d}.jpg"), quality=92)


def main() -> None:
    """Run every step in a new folder and write the page."""
    parts = [_HEAD]
    with tempfile.TemporaryDirectory() as folder:
        write_images(Path(folder))
        for title, command in STEPS:
            done = subprocess.run(
                shlex.split(command),
                cwd=folder,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                env=os.environ | {"COLUMNS": "120"},
                check=True,
            )
            said = done.stdout.strip().replace(f"{folder}/", "")
            parts.append(f"## {title}\n\n{_NOT_RUN}\n\n```sh\n{command}\n```\n\n```text\n{said}\n```\n")
    PAGE.write_text("\n".join(parts), encoding="utf-8")


if __name__ == "__main__":
    main()
