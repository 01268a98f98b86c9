"""Plausible mistakes, at the command line and in Python: the line that each prints, in its essential part."""

from __future__ import annotations

import shlex
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import yaml
from PIL import Image

import vit
from vit.attention import attend
from vit.cli import main
from vit.config.validation import make_settings
from vit.tasks.classification.config import ClassificationRun

RECIPE = {"model": {"name": "vit", "image_size": 8, "patch_size": 4}, "data": {"name": "digits"}, "device": "cpu"}

TYPED = {
    "trian": "there is no command 'trian'; did you mean 'train'?",
    "train --config digits_vit --task translation": "--task: 'translation' is not valid: the file decides the task, "
    "and digits_vit is of 'classification'; choose another --config",
    "train --config digits_vit --lr 1e300": "optim.lr: 1e+300 is not valid: it must be below 1e+09",
    'train --config digits_vit --data.mean "[127.5, 127.5, 127.5]"': "it is of pixels from 0 to 1; divide what is",
    "train --epochs 4 --train.epochs 5": "--train.epochs: train.epochs is 4 already, by --epochs; give it once",
    "train --config digits_vit --config your_images": "--config: it is given twice; give it once",
    "train --config your_images --data pics --data.root p": "--data.root: data.root is 'pics' already, by --data; give",
    "train --config runs/my_run": "--config: 'runs/my_run' is a run; continue it with vit train --resume runs/my_run,",
    'train --config your_images --data ""': "data.root: '' is not valid: name a folder, or a list of images",
    "predict vit_tiny_patch16_224 http://a.org/b//c.jpg": "'http://a.org/b//c.jpg' is not valid: images are read from",
    "train --conifg c.yaml": "--conifg: there is no such option or setting; did you mean --config?",
    "train c.yaml": "'c.yaml' is not expected here: did you mean --config c.yaml?",
    "train your_images.yaml": "'your_images.yaml' is not expected here: did you mean --config your_images?",
    "train d.yaml": "'d.yaml' is not expected here: it is no file; did you mean 'c.yaml'?",
    "train zzzzzzzz.yaml": "'zzzzzzzz.yaml' is not expected here: it is no file",
    "train --config your_images.yml": "--config: cannot read 'your_images.yml': No such file or directory; did you "
    "mean 'your_images'?",
    "train --config d.yaml": "--config: cannot read 'd.yaml': No such file or directory; did you mean 'c.yaml'?",
    "train digits_vit": "did you mean --config digits_vit?",
    "train pics": "did you mean --data pics?",
    "train --run runs/a": "--run: there is no such option or setting; did you mean --resume?",
    "train --train.seed 3": "there is no such setting; did you mean 'seed'?",
    "train --train-epochs 3": "did you mean --train.epochs?",
    "train --epoch 3": "--epoch: there is no such setting; did you mean 'epochs'?",
    "train --lr": "--lr: its value is missing; it must be a number",
    "train --lr 1e-3x": "optim.lr: '1e-3x' is not valid: it must be a number",
    "train --optim.learning_rate 1e-3": "here it is called --optim.lr",
    "train --learning-rate 1e-3": "here it is called --optim.lr",
    "train --drop_path_rate 0.1": "here it is called --model.stochastic_depth_rate",
    "train --img_size 32": "here it is called --model.image_size",
    "train --name vit": "it could be --optim.name or --model.name or --data.name; give one",
    "train --optim.name Adam": "optim.name: 'Adam' is not valid: it must be one of 'adamw', 'sgd', 'lamb', 'muon'",
    "train --model vit_base": "did you mean 'vit_base_patch16_224'?",
    "train --model ViT-B/16": "did you mean 'vit_base_patch16_224'?",
    "compare runs/one runs/two": "model: 'runs/one' is not valid: there is no such file or folder",
    "train --pretrained true": "model.pretrained",
    "train --data nowhere": "--data: 'nowhere' is not valid: it is neither a folder nor one of digits, cifar10",
    "train --data picz": "imagenette, imagefolder, fake, torchvision:CLASS; did you mean 'pics'?",
    "train --resume runs/my_rum": "is not a run folder (it has no config.yaml); did you mean 'runs/my_run'?",
    "train --resume runs/my_run/figures/curves.png": "did you mean the run that it belongs to, 'runs/my_run'?",
    "train --resume runs/my_run/config.yaml": "did you mean the run that it belongs to, 'runs/my_run'?",
    "train --resume runs": "'runs' is not a run folder (it has no config.yaml); did you mean 'runs/my_run'?",
    "eval runs/my_run --checkpoint last": "--checkpoint: there is no such option; did you mean --select last?",
    "train --resume runs/my_run/checkpoints/step-00000001": "did you mean the run that it belongs to, 'runs/my_run'?",
    "train --augment.randaug true": "--augment.randaug: there is no such setting; here it is called --augment.policy",
    "predict pics/cat.png runs/my_run": "model: 'pics/cat.png' is not valid: it is an image; the model is named first",
    "predict runs/my_rum pics/cat.png": "there is no such file or folder; did you mean 'runs/my_run'?",
    "predict vit_tiny_patch16_224 pics/cats.png": "there is no file 'pics/cats.png'; did you mean 'pics/cat.png'?",
    "train --config digit_vit": "did you mean 'digits_vit'?",
    "train --resume runs/nope": "--resume: 'runs/nope' is not a run folder",
    'train --output_dir ""': "output_dir: '' is not valid: it must name a folder",
    "train --device gpu": "device: 'gpu' is not valid: it must be one of 'auto', 'cpu', 'cuda', 'mps'",
    "train --device mps": "device: 'mps' is not valid: training computes in float64 too, which MPS lacks; use cpu",
    "predict runs/nope x.png": "model: 'runs/nope' is not valid: there is no such file or folder",
    "eval --run runs/a": "--run: MODEL is given without an option: vit eval runs/a",
    "predict --model runs/a x.png": "--model: MODEL is given without an option: vit predict runs/a",
    "eval google/vit-base-patch16-224": "write hf:google/vit-base-patch16-224",
    "eval timm:vit_base": "timm has no model 'vit_base'; there are vit_base_",
    "eval timm:vit_bogus": "timm has no model 'vit_bogus'; the nearest are vit_",
    "analyze vit_tiny_patch16_224 --data /no": "/no",
    'analyze vit_tiny_patch16_224 --data ""': "--data: '' is not valid: it is empty",
    "compare --train digits_vit": "one recipe is compared with nothing; name at least two",
    "export vit_tiny_patch16_224 --format onnx": "the following arguments are required: --output",
    "predict vit_tiny_patch16_224 nowhere.png": "there is no file 'nowhere.png'",
    "predict runs/a x.png --csv x.csv": "--csv: there is no such option; --output FILE writes a .csv, .jsonl or",
    "predict runs/a x.png --output x.xls": "--output: 'x.xls' is not valid: its name must end in .csv, .jsonl",
    "train --gpus 2": "--gpus: there is no such option; a launcher starts several processes: accelerate launch --num_",
    "train --data.path pics": "--data.path: there is no such setting; here it is called --data.root",
    "convert digits_vit --to hf --output o": "vit train --config digits_vit; name the run's folder then, as runs/d",
    "predict text/copying_rnn x.png": "it is a configuration",
    "eval vit_tiny_patch16_224 timm:vit_base_patch16_224": "for several: vit compare vit_tiny_patch16_224 timm:vit_b",
    "eval pics vit_tiny_patch16_224": "model: 'pics' is not valid: the folder holds no readable checkpoint",
    "analyze vit_tiny_patch16_224 pics/cat.png": "unrecognized arguments: pics/cat.png; did you mean --data pics/cat.",
    "eval vit_tiny_patch16_224 pics --data digits": "did you mean --data pics?",
    "convert vit_tiny_patch16_224 --to onnx": "write such a file by: vit export MODEL --format onnx --output FILE",
}
"""Typed behind `vit` → the essential part of the line."""

VECTORS = torch.randn(3, 1, 2, 4, 8).unbind()

IN_PYTHON: dict[str, tuple[Callable[[], object], str]] = {
    "another pooling": (lambda: vit.create_model("vit_tiny_patch16_224", pooling="banana"), "model.pooling: 'banana'"),
    "weights as a name": (
        lambda: vit.create_model("timm:vit_tiny_patch16_224"),
        "'timm:vit_tiny_patch16_224' is not valid: it names weights; create_model(pretrained='timm:vit_tiny",
    ),
    "no weights": (
        lambda: vit.create_model("vit_tiny_patch16_224", pretrained=""),
        "model.pretrained: '' is not valid",
    ),
    "a scale in quotes": (lambda: attend(*VECTORS, scale="8"), "scale: '8' is not valid: it is a finite number"),  # type: ignore[arg-type]
    "no scale": (lambda: attend(*VECTORS, scale=float("nan")), "scale: nan is not valid: it is a finite number"),
    "no backend": (lambda: attend(*VECTORS, backend=None), "backend: None is not valid"),  # type: ignore[arg-type]
    "two devices": (
        lambda: attend(VECTORS[0].to("meta"), *VECTORS[1:]),
        "they must be b h n d, b g m e, b g m v, on one device, not meta, cpu, cpu",
    ),
    "another init": (lambda: vit.create_model("vit_tiny_patch16_224", init="banana"), "model.init: 'banana'"),
    "nothing to freeze": (
        lambda: vit.create_model("vit_tiny_patch16_224", freeze_backbone=True),
        "model.freeze_backbone: True is not valid: it has no effect without model.pretrained",
    ),
    "timm's pretrained": (
        lambda: vit.create_model("vit_tiny_patch16_224", pretrained=True),  # type: ignore[arg-type]
        "model.pretrained: True is not valid: it says which weights",
    ),
    "a size in quotes": (
        lambda: vit.create_model("vit_tiny_patch16_224", image_size="224"),
        "model.image_size: '224' is not valid: it must be a list of 2 whole numbers or a whole number",
    ),
    "a size that no patch divides": (
        lambda: vit.create_model("vit_tiny_patch16_224", image_size=225),
        "the nearest image sizes are 224 or 240",
    ),
    "half a name": (lambda: vit.create_model("vit_base"), "did you mean 'vit_base_patch16_224'?"),
    "torchvision's name": (lambda: vit.create_model("vit_b_16"), "did you mean 'vit_base_patch16_224'?"),
    "no name": (lambda: vit.create_model(), "model.name: it is missing"),
    "a class too few": (
        lambda: vit.create_model("vit_tiny_patch16_224", num_class=10),
        "model.num_class: there is no such setting; did you mean 'num_classes'?",
    ),
    "timm's rate": (
        lambda: vit.create_model("vit_tiny_patch16_224", drop_path_rate=0.1),
        "here it is called stochastic_depth_rate",
    ),
    "heads that do not divide": (
        lambda: vit.create_model("vit_tiny_patch16_224", num_heads=5),
        "it must divide model.width (192); the nearest that does is",
    ),
    "a model too large": (
        lambda: vit.create_model("vit_tiny_patch16_224", width=2**20, depth=1000, num_heads=2),
        "this machine has",
    ),
    "a folder that is not there": (lambda: vit.open_model("runs/nope"), "there is no such file or folder"),
    "a path for a list": (lambda: vit.list_models(3), "pattern: 3 is not valid: it must be text"),  # type: ignore[arg-type]
    "channels last": (
        lambda: vit.create_model("vit_tiny_patch16_224")(torch.zeros(1, 224, 224, 3)),
        "images",
    ),
    "bytes for images": (
        lambda: vit.create_model("vit_tiny_patch16_224")(torch.zeros(1, 3, 224, 224, dtype=torch.uint8)),
        "images",
    ),
    "keys and values of different lengths": (
        lambda: attend(torch.zeros(1, 2, 5, 8), torch.zeros(1, 2, 7, 8), torch.zeros(1, 2, 6, 8)),
        "value",
    ),
    "a setting in the wrong section": (
        lambda: make_settings(ClassificationRun, {"train": {"lr": 1e-3}}),
        "train.lr: there is no such setting; did you mean 'optim.lr'?",
    ),
}


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("c.yaml").write_text(yaml.safe_dump(RECIPE))
    Path("pics").mkdir()
    Image.new("RGB", (8, 8)).save("pics/cat.png")
    checkpoint = Path("runs/my_run/checkpoints/step-00000001")
    checkpoint.mkdir(parents=True)
    (checkpoint / "state.json").write_text("{}")
    Path("runs/my_run/config.yaml").write_text(yaml.safe_dump(RECIPE))


@pytest.mark.parametrize("line", TYPED)
def test_what_is_typed(line: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = sorted(tmp_path.rglob("*"))
    assert main(shlex.split(line)) == 2
    (said,) = capsys.readouterr().err.splitlines()
    assert TYPED[line] in said
    assert len(said) < 1000, "a list of everything helps nobody"
    assert sorted(tmp_path.rglob("*")) == before


@pytest.mark.parametrize("mistake", IN_PYTHON)
def test_what_is_written_in_python(mistake: str) -> None:
    act, essential = IN_PYTHON[mistake]
    with pytest.raises(ValueError) as caught:  # noqa: PT011  the line is compared below
        act()
    assert essential in str(caught.value)
    assert "\n" not in str(caught.value)
