"""Malformed command lines: what is typed wrongly, command by command, in a folder with a run and a few images.

Words are separated by blanks; `""` is an empty word.
"""

from __future__ import annotations

import os
import shlex
from pathlib import Path

from tests.faults.malformed.run_folders import copy_run, image
from tests.faults.malformed.settings import CLASSIFICATION, write_settings
from tests.faults.malformed.trials import Case

ANY = """
banana
trian
Train
""
" "
--banana
-v
--config digits_vit
train.py
-
--
"""
"""Words that are no command."""

TRAIN = """
--conifg digits_vit
--config
--config nowhere.yaml
--config nowhere
--config ""
--config pics
--config pipe
--config x.png
--config empty
--config=nowhere.yaml
--train.epochs
--train.epochs=
--train.epochs many
--train.epochs 1.5
--train.epochs -1
--train.epochs 0
--train.epochs=1e3
--train-epochs 3
--train.epochs 1e30
--train.epochs [3]
--train.epochs {a:1}
--train.epochs null
--train.epochs "3 4"
--train.epochs 3 4
--train.seed 3
--train.epoch 3
--epoch 3
--epochs two
--epochs --lr 1e-3
--lr
--lr fast
--lr 0
--lr nan
--lr .inf
--lr -1
--lr=1e-3=2
--optim.learning_rate 1e-3
--learning_rate 1e-3
--learning-rate 1e-3
--optimizer adam
--optim adamw
--optim.name Adam
--optim.betas 0.9
--optim.betas [0.9]
--optim.betas 0.9 0.99
--weight-decay heavy
--batch_size 0
--batch-size all
--batchsize 64
--num_workers 2
--workers -1
--workers 1000000
--width 15
--name vit
--model
--model banana
--model vit_base
--model ViT-B/16
--model.name
--model.name ""
--model.nmae vit
--model.image_size 9
--model.image_size 8x8
--model.image_size 10000000000
--model.depth deep
--model.depth 100000000
--model.width 99999999999999999999
--img_size 8
--drop_path_rate 0.1
--pretrained
--pretrained true
--pretrained nowhere
--pretrained nowhere.safetensors
--pretrained timm:
--pretrained timm:banana
--pretrained torchvision:banana
--pretrained hf:
--pretrained ""
--pretrained pipe
--pretrained x.png
--pretrained empty
--pretrained pics
--pretrained no.module:f
--pretrained c.yaml
--data
--data nowhere
--data x.png
--data empty
--data pics
--data ""
--data pipe
--data.name banana
--data.name imagefolder
--data.root empty
--data.root nowhere
--data.name imagefolder --data.root nowhere
--data.name imagefolder --data.root empty
--data.name imagefolder --data.root x.png
--data.name imagefolder --data.root pipe
--data.name imagefolder --data.root ""
--data.name cifar10 --data.root empty
--data.name imagenette --data.root nowhere
--data.name torchvision:Banana
--data.fraction 0
--data.fraction half
--augment.flip maybe
--augment.policy banana
--augment.crop pad --augment.pad 100
--device gpu
--device cuda:99
--device mps
--seed lucky
--seed -1
--seed 1e30
--output_dir
--output_dir ""
--output_dir " "
--output_dir x.png
--output_dir x.png/run
--output_dir pipe
--output_dir /proc/run
--output-dir
--out_dir run2 --output ""
--resume nowhere
--resume x.png
--resume pipe
--resume empty
--resume pics
--resume run --config digits_vit
--resume run --config=digits_vit
--resume run --epochs 1
--resume run --output_dir elsewhere
--resume run --seed 7
--resume run --model.width 32
--resume run --data.fake_classes 4
--resume run --batch_size 4
--resume run --banana
--resume run/checkpoints
--resume run/config.yaml
--resume run run
--run run
--task banana
--task
--task [classification]
--task translation
run
run2
c.yaml
digits_vit
pics
3
-1
-e 3
-c c.yaml
--
--help=3
-- --config c.yaml
--.
--=3
--=
--a.b.c 3
--model..name vit
--.name vit
--model. vit
"--train.epochs 3"
--trаin.epochs 3
–epochs 3
—config c.yaml
--tain.epochs=3
"""

PLAN = """
--train.epochs 3 --epochs 4
--figure
--figure plan
--figure plan.jpg
--figure pics
--figure pipe
--figure x.png/plan.png
--figure /proc/plan.png
--figure ""
--figures plan.png
--config nowhere
--epochs 0
--resume run
banana
"""

EVAL = """

""
" "
nowhere
runs/nowhere
nowhere.safetensors
nowhere.pth
x.png
pics
empty
pipe
c.yaml
run/config.yaml
run/checkpoints
run/nowhere
run/summary.json
timm:
timm:banana
timm:vit_base
torchvision:banana
hf:
hf:nowhere/nobody
os.path:join
os.path:nothing
no.module:f
model.py:build
vit_banana_patch16_224
vit_base
run --data nowhere
run --data ""
run --data pics
run --data x.png
run --data pipe
run --data digits
run --data banana
run --data.fake_classes 7
run --data.name banana
run --data.root nowhere
run --model.width 32
run --train.epochs 3
run --optim.lr 1
run --device gpu
run --precision fp8
run --select worst
run --weights banana
run --weights ema
run --image_size 9
run --image_size 0
run --image_size big
run --image_size
run --image_size 8 8
run --mean 0.5
run --mean 0.5 0.5 0.5
run --class_names a b c
run --random_weights
run --seed 3
run --architecture vit
run --images 3
run --train_images 3
run --features class
run --transfer --features banana
run --transfer --images 0
run --transfer --images -1
run --baseline
run --baseline nowhere
run --baseline x.png
run --output_dir x.png
run --output_dir ""
run --output_dir pipe
run --banana
run --banana 3
run run
run --search.beam_size 3
vit_tiny_patch16_224
vit_tiny_patch16_224 --data nowhere
vit_tiny_patch16_224 --data digits --baseline run
vit_tiny_patch16_224 --data digits --select last
"""

PREDICT = """

run
x.png
nowhere x.png
runs/nope x.png
run nowhere.png
run ""
run pipe
run empty
run c.yaml
run x.png --top 0
run x.png --top -1
run x.png --top all
run x.png --top
run x.png --format xml
run x.png --device gpu
run x.png --devise cpu
run x.png --data digits
run x.png --image_size 9
run x.png --select worst
run x.png --mean 1 2
run x.png --std 0 0 0
run x.png --banana
run /dev/null
run /dev/zero
"" x.png
pipe x.png
x.png run
vit_base x.png
"""

TRANSLATE = """

run
run "a sentence"
nowhere "a sentence"
x.png "a sentence"
"" "a sentence"
run "a sentence" --beam_size 0
run "a sentence" --beam_size many
run "a sentence" --figure a.jpg
run "a sentence" "another" --figure a.png
run "a sentence" --banana
"""

DIFF = """

run
run run run
run nowhere
nowhere run
run x.png
run empty
run pipe
run ""
run run --banana
run run/config.yaml
run run/checkpoints
"""

COMPARE = """

run nowhere
nowhere run
run x.png
run empty
run pipe
run ""
"" ""
run run --data nowhere
run run --data ""
run run --data x.png
run run --data pipe
run run --images 0
run run --images -3
run run --images many
run run --device gpu
run run --precision fp8
run run --resamples 0
run run --resamples -1
run run --resamples many
run run --speed_batch_size 0 --speed
run run --real_labels nowhere.json
run run --real_labels pipe
run run --output_dir x.png
run run --output_dir ""
run run --image_size 0
run run --image_size 8 8 8
run run --train_images 3
run run --transfer --features banana
run run --transfer --corruptions
run run --transfer --train_images 0
run run --banana
run run --train.epochs 3
run vit_base
run timm:banana
--train
--train digits_vit
--train digits_vit digits_vit
--train nowhere digits_vit
--train digits_vit nowhere
--train c.yaml ""
--train digits_vit digits_resnet --fractions 0
--train digits_vit digits_resnet --fractions 2
--train digits_vit digits_resnet --fractions half
--train digits_vit digits_resnet --fractions
--train digits_vit digits_resnet --seeds 0
--train digits_vit digits_resnet --seeds -1
--train digits_vit digits_resnet --seeds many
--train digits_vit digits_resnet --banana
--train digits_vit digits_resnet --epochs 0
--train digits_vit digits_resnet --output_dir x.png
--train digits_vit digits_resnet --output_dir ""
--train digits_vit text/copying_rnn
--train=digits_vit
--finetune
--finetune run
--finetune nowhere --data digits
--finetune run --data nowhere
--finetune run --data pics
--finetune run --data digits --epochs 0
--finetune run --data digits --seeds 0
--finetune run --data digits --vit_recipe nowhere
--finetune run --data digits --banana
--finetune run --data digits --output_dir x.png
--finetune vit_tiny_patch16_224 --data digits
--finetune run --data digits --device gpu
"""

ANALYZE = """

nowhere
runs/nope
x.png
pics
empty
pipe
""
run --data /no
run --figures patch_filters --against run
run --data ""
run --data x.png nowhere.png
run --data empty
run --data pipe
run --data c.yaml
run --images 0
run --images -1
run --images many
run --figures banana
run --figures
run --against nowhere
run --against ""
run --against
run --device gpu
run --output_dir x.png
run --output_dir ""
run --banana
run run
run --data.root nowhere
run --data.name banana
run --image_size 9
run --model.width 3
vit_base
"""

CONVERT = """

run
run --to
run --to banana --verify
run --to timm
run --to timm --output
run --to timm --output ""
run --to timm --output pics
run --to timm --output x.png/m.safetensors
run --to timm --output m.banana
run --to timm --output pipe
run --to npz --output m.safetensors
run --to hf --output x.png
run --to timm --verify --banana
nowhere --to timm --verify
x.png --to timm --verify
pipe --to timm --verify
"" --to timm --verify
empty --to timm --verify
resnet18 --to npz --verify
"""

EXPORT = """

run
run --format onnx
run --format banana --output m.onnx
run --format onnx --output
run --format onnx --output ""
run --format onnx --output m.pt2
run --format torch --output m.onnx
run --format torch --output pics
run --format torch --output pipe
run --format torch --output x.png/m.pt2
run --format torch --output m
nowhere --format torch --output m.pt2
x.png --format torch --output m.pt2
"" --format torch --output m.pt2
pipe --format torch --output m.pt2
run --format torch --output m.pt2 --image_size 9
run --format torch --output m.pt2 --banana
"""

DOCTOR = """

nowhere
x.png
pipe
""
run --data nowhere
run --data ""
run --data empty
run --data pipe
run --images 0
run --images -1
run --images many
run --device gpu
run --output pics
run --output x.png/a.json
run --output ""
run --banana
run run
run --data.name banana
"""

PROFILE = """
--steps 0
--steps -1
--steps many
--steps
--step 3
--config nowhere
--output_dir x.png
--output_dir ""
--train.epochs 0
--banana 3
run
"""

TABLE = {
    "": ANY,
    "train": TRAIN,
    "plan": PLAN,
    "eval": EVAL,
    "predict": PREDICT,
    "translate": TRANSLATE,
    "diff": DIFF,
    "compare": COMPARE,
    "analyze": ANALYZE,
    "convert": CONVERT,
    "export": EXPORT,
    "doctor": DOCTOR,
    "profile": PROFILE,
}

TAKEN = {
    "": "it prints the usage",
    "--help": "it prints the usage",
    "-h": "it prints the usage",
    "--version": "it prints the version",
    "diff run run": "two runs may be one",
    "plan --config c.yaml": "a file",
    "plan --config c.yaml --train.epochs=3": "an equals sign",
    "plan --config c.yaml --train.epochs 1_000": "YAML reads the underscore",
    "plan --config c.yaml --train.epochs 3 --epochs 3": "the same twice",
    "plan --config c.yaml --optim.betas [0.9,0.99]": "a list",
    "plan --config c.yaml --optim.clip_norm null": "null, where it may be",
    "plan --config c.yaml --learning-rate=1e-3": "",
    "predict run x.png --top 9": "there are only three classes",
    "predict run x.png x.png": "twice the same",
    "predict run run": "a folder, with pictures in it",
    "predict run/ ./x.png": "paths written otherwise",
    "eval run --data.eval_batch_size 1000000": "larger than the set",
}
"""Command lines that are right, and why."""


def write(folder: Path) -> None:
    """A run, an image and a folder of them, settings, an empty folder and a pipe."""
    copy_run(folder)
    image(folder)
    (folder / "pics").mkdir()
    image(folder / "pics")
    (folder / "empty").mkdir()
    os.mkfifo(folder / "pipe")
    write_settings(CLASSIFICATION, folder)


def cases() -> list[Case]:
    found = []
    for command, lines in TABLE.items():
        for line in lines.removeprefix("\n").removesuffix("\n").split("\n"):
            words = (*([command] if command else []), *shlex.split(line))
            found.append(Case(f"vit {command} {line}", write, words))
    found += [
        Case(f"taken: vit {line}", write, tuple(shlex.split(line)), taken=why) for line, why in TAKEN.items() if why
    ]
    return found
