"""Settings: from file and command line, with their origins, and back; every mistake in one line."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import zipfile
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest
import yaml

import vit
from vit.config import AugmentConfig, DataConfig, ModelConfig, OptimConfig
from vit.settings import (
    COMMAND_LINE,
    DEFAULT,
    FILE,
    RESET,
    SHRUNK,
    diff_runs,
    differences,
    dump_run_config,
    flat_settings,
    override,
    read_run_config,
    resolve_run,
    run_config_from,
)
from vit.settings.files import find_config, is_dumped
from vit.tasks.classification.config import ClassificationRun, ClassificationTrainConfig, DistillConfig
from vit.tasks.translation.config import SearchConfig, TextDataConfig, TranslationRun

RECIPE = """\
model:
  name: vit
  image_size: [16, 24]
  depth: 3
data:
  name: digits
  mean: [0.1, 0.2, 0.3]
optim:
  lr: 2.0e-3
  betas: [0.8, 0.95]
  clip_norm: null
train:
  epochs: 5
  ema_decay: 0.99
seed: 7
"""

UNUSUAL = ClassificationRun(
    model=ModelConfig(name="vit", image_size=(16, 24), patch_size=4, stem="patch", layer_scale=1e-6),
    data=DataConfig(name="imagefolder", root="a folder: #1", test_folder="yes", cache_gib=0.0, mean=(0.1, 0.2, 0.3)),
    augment=AugmentConfig(crop="random_resized", mixup_alpha=0.2, scale=(0.1, 0.9)),
    optim=OptimConfig(lr=1e-5, clip_norm=None, betas=(0.5, 0.25)),
    train=ClassificationTrainConfig(ema_decay=0.5, epochs=3, save_every_steps=7),
    seed=3,
    output_dir="2024",
    distill=DistillConfig(teacher="1e-3"),
)


@pytest.fixture
def recipe(tmp_path: Path) -> Path:
    path = tmp_path / "recipe.yaml"
    path.write_text(RECIPE)
    return path


def test_the_command_line_lies_over_the_file_over_the_defaults(recipe: Path) -> None:
    config: Any = resolve_run(recipe, ["--optim.lr", "3e-4", "--model.num_heads=2", "--seed", "9"]).config
    assert config.optim.lr == 3e-4
    assert config.model.num_heads == 2
    assert config.seed == 9
    assert config.model.depth == 3
    assert config.model.image_size == (16, 24)
    assert config.data.mean == (0.1, 0.2, 0.3)
    assert config.optim.betas == (0.8, 0.95)
    assert config.optim.clip_norm is None
    assert config.optim.weight_decay == OptimConfig().weight_decay


def test_every_setting_says_where_it_came_from(recipe: Path) -> None:
    run = resolve_run(recipe, ["--optim.lr", "3e-4", "--model.num_heads=2"])
    assert set(run.origins) == set(flat_settings(run.config))
    assert {key for key, origin in run.origins.items() if origin == COMMAND_LINE} == {"optim.lr", "model.num_heads"}
    in_file = {key for key, origin in run.origins.items() if origin == FILE}
    assert in_file == {
        *("model.name", "model.image_size", "model.depth", "data.name", "data.mean", "optim.betas", "optim.clip_norm"),
        *("train.epochs", "train.ema_decay", "seed"),
    }
    assert run.origins["data.root"] == DEFAULT


def test_defaults_never_override_the_file(tmp_path: Path) -> None:
    """A single override must not bring the rest of its section back to the defaults."""
    path = tmp_path / "unusual.yaml"
    path.write_text(dump_run_config(UNUSUAL, {}))
    changed = resolve_run(
        path, ["--optim.lr", "0.5", "--data.batch_size=64", "--model.depth", "2", "--seed", "4"]
    ).config
    assert differences(UNUSUAL, changed) == {
        "optim.lr": (1e-5, 0.5),
        "data.batch_size": (128, 64),
        "model.depth": (None, 2),
        "seed": (3, 4),
    }


def test_settings_survive_yaml(tmp_path: Path) -> None:
    origins = dict.fromkeys(flat_settings(UNUSUAL), FILE) | {"optim.lr": COMMAND_LINE}
    path = tmp_path / "config.yaml"
    path.write_text(dump_run_config(UNUSUAL, origins))
    assert read_run_config(path) == (UNUSUAL, origins)
    assert "  lr: 1.0e-05  # command line" in path.read_text()
    assert resolve_run(path).config == UNUSUAL


def test_settings_survive_a_checkpoints_json() -> None:
    assert run_config_from(json.loads(json.dumps(asdict(UNUSUAL)))) == UNUSUAL


def test_the_dump_names_every_setting() -> None:
    assert (
        flat_settings(ClassificationRun()).keys()
        == flat(yaml.safe_load(dump_run_config(ClassificationRun(), {}))).keys()
    )


def flat(content: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    nested = {key: value for key, value in content.items() if isinstance(value, dict)}
    plain = {f"{prefix}{key}": value for key, value in content.items() if key not in nested}
    for key, value in nested.items():
        plain |= flat(value, f"{key}.")
    return plain


def test_override_changes_only_what_it_names() -> None:
    changed = override(UNUSUAL, ["--data.root", "elsewhere", "--data.eval_batch_size=3"], ["data"])
    assert differences(UNUSUAL, changed) == {
        "data.root": ("a folder: #1", "elsewhere"),
        "data.eval_batch_size": (256, 3),
    }
    assert override(UNUSUAL, [], []) == UNUSUAL


def test_a_set_that_is_named_again_keeps_its_settings() -> None:
    fake = ClassificationRun(data=DataConfig(name="fake", fake_classes=3))
    assert override(fake, ["--data.name", "fake"], ["data"]) == fake
    run = ClassificationRun(data=DataConfig(name="imagefolder", root="photos", test_fraction=0.1))
    named = ["--data.name", "imagefolder"]
    assert override(run, named, ["data"]) == run
    assert override(run, [*named, "--data.root", "photos/"], ["data"]).data.test_fraction == 0.1
    assert override(run, [*named, "--data.root", "others"], ["data"]).data.test_fraction == DataConfig.test_fraction


def test_a_long_list_is_one_line(tmp_path: Path) -> None:
    long = replace(UNUSUAL, train=replace(UNUSUAL.train, class_weights=tuple(0.25 + 1 / 3**n for n in range(300))))
    origins = dict.fromkeys(flat_settings(long), FILE)
    (tmp_path / "config.yaml").write_text(dump_run_config(long, origins))
    assert read_run_config(tmp_path / "config.yaml") == (long, origins)
    assert is_dumped((tmp_path / "config.yaml").read_text())


MISTAKES = {
    "number in octal": (["--train.epochs", "010"], r"train\.epochs: '010' is not valid: it must be a whole number"),
    "number of minutes": (["--seed", "1:30"], r"seed: '1:30' is not valid"),
    "unknown key, with the nearest": (
        ["--optim.learning_rat", "1"],
        r"--optim\.learning_rat: there is no such setting",
    ),
    "near miss": (["--train.epoch", "1"], r"--train\.epoch: .*did you mean 'train\.epochs'"),
    "unknown section": (["--trian.epochs", "1"], r"did you mean 'train\.epochs'"),
    "nothing near": (
        ["--zzz", "1"],
        r"--zzz: there is no such setting; choose from augment, data, device, distill, model",
    ),
    "nothing near in a section": (["--distill.qqqqqqqqqqqq", "1"], r"choose from distill\.kind, distill\.teacher"),
    "wrong type": (["--train.epochs", "many"], r"train\.epochs: 'many' is not valid: it must be a whole number"),
    "fraction for a count": (["--data.batch_size", "2.5"], r"data\.batch_size: '?2\.5'? is not valid"),
    "wrong choice": (["--optim.name", "adam"], r"optim\.name: 'adam' is not valid: it must be one of 'adamw', 'sgd'"),
    "broken rule": (["--optim.lr", "-1"], r"optim\.lr: -1.0 is not valid: it must be above 0"),
    "rule across sections": (["--train.accumulation_steps", "3"], r"data\.batch_size: 128 is not valid"),
    "a scalar for a section": (["--optim", "fast"], r"--optim: it is a section"),
    "null on the command line": (["--data.workers", "null"], r"data\.workers"),
    "a missing value": (["--optim.lr"], r"optim\.lr"),
    "a stray word": (["stray"], r"stray"),
    "wrong length": (["--optim.betas", "[0.5]"], r"optim\.betas"),
    "not a boolean": (["--train.compile", "perhaps"], r"train\.compile: 'perhaps' is not valid: it must be true or f"),
    "fraction of an epoch": (["--train.epochs", "3.5"], r"train\.epochs: 3\.5 is not valid: it must be a whole number"),
    "yes for a number": (["--train.epochs", "yes"], r"train\.epochs: 'yes' is not valid: it must be a whole number"),
    "a whole float for a count": (["--train.epochs", "1.0"], r"train\.epochs: 1\.0 is not valid"),
    "a number for a switch": (["--train.compile", "1"], r"train\.compile: 1 is not valid: it must be true or false"),
    "a number for a list": (
        ["--optim.betas", "0.5"],
        r"optim\.betas: 0\.5 is not valid: it must be a list of 2 numbers",
    ),
    "text in a list": (
        ["--data.mean", "[a, b, c]"],
        r"data\.mean: \['a', 'b', 'c'\] is not valid: .*list of 3 numbers",
    ),
    "half a list": (["--data.mean", "[1,"], r"data\.mean: '\[1,' is not valid: it must be a list of 3 numbers"),
    "a mapping": (["--optim.lr", "{a: 1}"], r"optim\.lr\.a: there is no such setting; did you mean 'optim\.lr'"),
    "a choice or null": (
        ["--model.stem", "none"],
        r"model\.stem: 'none' is not valid: .*'patch', 'conv', 'resnet'.* or null",
    ),
    "a value that is missing before another": (
        ["--train.compile", "--seed", "1"],
        r"--train\.compile: its value is missing; it must be true or false",
    ),
    "another task": (
        ["--task", "translation"],
        r"^--task: 'translation' is not valid: the file decides the task, and .*recipe\.yaml is of 'classification'",
    ),
    "a setting of another task": (
        ["--search.beam_size", "2"],
        r"^--search\.beam_size: there is no such setting here, only for task translation$",
    ),
    "short, of several": (
        ["--interpolation", "bicubic"],
        r"--interpolation: it could be --data\.inter.* or --augment\.",
    ),
    "short, of no setting": (["--epoch", "1"], r"--epoch: there is no such setting; did you mean 'epochs'"),
    "another library's name": (
        ["--learning_rate", "1"],
        r"--learning_rate: there is .*; here it is called --optim\.lr",
    ),
    "another's, with hyphens": (["--drop-path-rate", "0"], r"here it is called --model\.stochastic_depth_rate"),
    "another's, in its section": (["--optim.opt", "sgd"], r"--optim\.opt: .*; here it is called --optim\.name"),
    "batch size, shortened": (["--bs", "1"], r"here it is called --data\.batch_size"),
    "workers, in full": (["--num_workers=1"], r"here it is called --data\.workers"),
    "weight decay, shortened": (["--wd", "0"], r"here it is called --optim\.weight_decay"),
    "a place that is none": (
        ["--data", "/no/such"],
        r"--data: '/no/such' is not valid: it is neither a folder nor one of d",
    ),
}


@pytest.mark.parametrize(("words", "expected"), MISTAKES.values(), ids=list(MISTAKES))
def test_a_mistake_on_the_command_line_is_one_line(recipe: Path, words: list[str], expected: str) -> None:
    with pytest.raises(ValueError, match=expected) as caught:
        resolve_run(recipe, words)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("words", "setting", "value"),
    [
        ("--epochs 3", "train.epochs", 3),
        ("--lr 1e-3", "optim.lr", 1e-3),
        ("--lr=2e-3", "optim.lr", 2e-3),
        ("--batch-size 64", "data.batch_size", 64),
        ("--batch_size=64", "data.batch_size", 64),
        ("--model resnet18_cifar", "model.name", "resnet18_cifar"),
        ("--image-size 32", "model.image_size", 32),
        ("--image-size [32,16]", "model.image_size", [32, 16]),
        ("--workers 0", "data.workers", 0),
        ("--precision fp32", "train.precision", "fp32"),
        ("--weight-decay 0", "optim.weight_decay", 0.0),
        ("--optim.weight-decay 1", "optim.weight_decay", 1.0),
        ("--output-dir 2024", "output_dir", "2024"),
        ("--warmup-epochs 1", "optim.warmup_epochs", 1.0),
        ("--data cifar10", "data.name", "cifar10"),
        ("--data torchvision:MNIST", "data.name", "torchvision:MNIST"),
    ],
)
def test_a_short_form_is_the_setting_told_on_the_command_line(
    recipe: Path, words: str, setting: str, value: object
) -> None:
    run = resolve_run(recipe, words.split())
    assert flat_settings(run.config)[setting] == value
    assert [key for key, origin in run.origins.items() if origin == COMMAND_LINE] == [setting]


def test_data_may_be_a_folder(recipe: Path, tmp_path: Path) -> None:
    run = resolve_run(recipe, ["--data", str(tmp_path)])
    data = run.config.data  # type: ignore[attr-defined]
    assert (data.name, data.root) == ("imagefolder", str(tmp_path))
    assert {key for key, origin in run.origins.items() if origin == COMMAND_LINE} == {"data.name", "data.root"}
    text = resolve_run("text/multi30k_rnn", ["--data", str(tmp_path)]).config
    assert text.data.root == str(tmp_path)  # type: ignore[attr-defined]
    with pytest.raises(ValueError, match=r"--data: it is a section"):
        resolve_run("kernel_regression", ["--data", str(tmp_path)])


@pytest.mark.parametrize(
    ("word", "value"), [("1e-3", 1e-3), ("1e5", 1e5), (".5", 0.5), ("1", 1.0), ("1_000", 1000.0), ("2.5E+1", 25.0)]
)
def test_numbers_as_people_write_them(recipe: Path, word: str, value: float) -> None:
    assert resolve_run(recipe, [f"--optim.clip_norm={word}"]).config.optim.clip_norm == value
    recipe.write_text(f"optim:\n  clip_norm: {word}\n")
    assert resolve_run(recipe).config.optim.clip_norm == value


@pytest.mark.parametrize(("word", "value"), [("1e-3", 1e-3), (".5", 0.5), ("1", 1.0), ("2.5E-1", 0.25)])
def test_numbers_in_a_list(recipe: Path, word: str, value: float) -> None:
    config = override(UNUSUAL, [f"--data.mean=[{word}, 0, 0]"], ["data"])
    assert flat_settings(config)["data.mean"] == [value, 0.0, 0.0]
    recipe.write_text(f"data:\n  mean: [0, {word}, 0]\n")
    assert flat_settings(resolve_run(recipe).config)["data.mean"] == [0.0, value, 0.0]


def test_text_stays_text_on_the_command_line(recipe: Path) -> None:
    words = [
        "--output_dir",
        "2024-01-01",
        "--model.pretrained=null",
        "--data.name",
        "imagefolder",
        "--data.test_folder",
    ]
    config = flat_settings(resolve_run(recipe, [*words, "yes"]).config)
    assert config["output_dir"] == "2024-01-01"
    assert config["model.pretrained"] is None
    assert config["data.test_folder"] == "yes"


CONFIGS = Path(__file__).parents[1] / "configs"
RECIPES = sorted(str(path.relative_to(CONFIGS)) for path in CONFIGS.rglob("*.yaml"))


@pytest.mark.parametrize("name", RECIPES)
def test_any_recipe_can_be_one_epoch_long(name: str, tmp_path: Path) -> None:
    path = CONFIGS / name
    whole, short = resolve_run(path), resolve_run(path, ["--train.epochs", "1"])
    before, after = flat_settings(whole.config), flat_settings(short.config)
    shrunk = {key for key, origin in short.origins.items() if origin == SHRUNK}
    assert {key for key in before if before[key] != after[key]} <= {"train.epochs"} | shrunk
    proportion = before["optim.warmup_epochs"] / before["train.epochs"]
    if before["optim.warmup_epochs"] >= 1:
        assert after["optim.warmup_epochs"] == pytest.approx(proportion)
    assert ("optim.warmup_epochs" in shrunk) == (before["optim.warmup_epochs"] >= 1)
    written = tmp_path / "config.yaml"
    written.write_text(dump_run_config(short.config, short.origins))
    assert read_run_config(written) == (short.config, short.origins)
    assert run_config_from(json.loads(json.dumps(asdict(short.config)))) == short.config


def test_a_warm_up_as_long_as_the_run_shrinks(recipe: Path) -> None:
    """Else the rate would never reach its peak."""
    recipe.write_text("train:\n  epochs: 10\noptim:\n  warmup_epochs: 2\n")
    for epochs, warmup in ((1, 0.2), (2, 0.4), (3, 2.0)):
        run = resolve_run(recipe, ["--epochs", str(epochs)])
        assert run.config.optim.warmup_epochs == pytest.approx(warmup)
        assert run.origins["optim.warmup_epochs"] == (FILE if epochs == 3 else SHRUNK)


def test_images_grow_in_fewer_epochs_of_a_shorter_run() -> None:
    recipe = "cifar10_vit_small_cpu_growing"  # 8 of 12 epochs
    for epochs, growing in ((12, 8), (9, 8), (8, 5), (3, 2), (2, 1)):
        run = resolve_run(recipe, ["--train.epochs", str(epochs)])
        assert run.config.augment.growing_epochs == growing  # type: ignore[attr-defined]
        assert run.origins["augment.growing_epochs"] == (FILE if growing == 8 else SHRUNK)
        assert run.origins["augment.first_image_size"] == FILE
    run = resolve_run(recipe, ["--train.epochs", "1"])
    assert run.config.augment.first_image_size is None  # type: ignore[attr-defined]
    assert run.origins["augment.first_image_size"] == SHRUNK


@pytest.mark.parametrize("words", [["--optim.warmup_epochs", "2"], ["--warmup-epochs=2"]])
def test_a_warm_up_that_the_user_gave_does_not_shrink(words: list[str]) -> None:
    with pytest.raises(ValueError, match=r"optim\.warmup_epochs: 2\.0 is not valid: it must not exceed train\.epochs"):
        resolve_run("digits_vit", ["--train.epochs", "1", *words])
    with pytest.raises(ValueError, match=r"augment\.growing_epochs: 8 is not valid"):
        resolve_run("cifar10_vit_small_cpu_growing", ["--epochs", "4", "--growing_epochs", "8"])


def test_a_file_that_contradicts_itself_is_refused_whatever_the_epochs(recipe: Path) -> None:
    recipe.write_text("train:\n  epochs: 5\noptim:\n  warmup_epochs: 6\n")
    for words in ([], ["--epochs", "3"]):
        with pytest.raises(ValueError, match=r"optim\.warmup_epochs: 6\.0 is not valid"):
            resolve_run(recipe, words)
    assert resolve_run(recipe, ["--epochs", "7"]).origins["optim.warmup_epochs"] == FILE


FILES = {
    "unknown key": ("optim:\n  learnrate: 1\n", r"recipe\.yaml: optim\.learnrate: there is no such setting"),
    "unknown section": ("optimiser:\n  lr: 1\n", r"recipe\.yaml: optimiser\.lr: there is no such setting"),
    "wrong type": ("train:\n  epochs: many\n", r"train\.epochs: 'many' is not valid: it must be a whole number"),
    "yes for a number": ("train:\n  epochs: yes\n", r"train\.epochs: true is not valid: it must be a whole number"),
    "a number as text": ("optim:\n  lr: '0.1'\n", r"optim\.lr: '0\.1' is not valid: it must be a number"),
    "a number for text": ("output_dir: 2024\n", r"output_dir: 2024 is not valid: it must be text or null"),
    "null for a number": ("train:\n  epochs: null\n", r"train\.epochs: null is not valid"),
    "null for a name": ("data:\n  name: null\n", r"data\.name: null is not valid"),
    "a scalar for a section": ("train: 3\n", r"train: it is a section"),
    "an empty section": ("train:\n", r"train: it is a section; set one of its settings, such as train\."),
    "deep": ("model: " + "[" * 3_000, r"is not YAML: it is nested deeper than 20 levels"),
    "deep and whole": ("model: " + "[" * 40 + "]" * 40, r"is not YAML: it is nested deeper than 20 levels"),
    "in itself": ("model: &m {name: *m}\n", r"is not YAML: an alias refers to what it stands in"),
    "aliases that multiply": (
        "a0: &a0 [1, 2]\n" + "".join(f"a{n}: &a{n} [*a{n - 1}, *a{n - 1}]\n" for n in range(1, 18)),
        r"is not YAML: it has more than 100,000 values",
    ),
    "a wrong tag": ("seed: !!int many\n", r"is not YAML: a value is not of its type"),
    "too large": ("#" * 2**19 + "\n", r"is larger than any settings: above 524,288 bytes"),
    "twice": ("optim:\n  lr: 0.1\n  lr: 0.2\n", r"is not YAML: 'lr' is there twice"),
    "a list of tasks": ("task: [a]\n", r"task: \['a'\] is not valid: choose from classification"),
    "not YAML": ("train: [\n", r"is not YAML"),
    "a list": ("- 1\n", r"must hold sections"),
    "empty": ("", r"must hold sections"),
    "not text": (b"\xff\xfe\x00", r"recipe\.yaml"),
}


@pytest.mark.parametrize(("content", "expected"), FILES.values(), ids=list(FILES))
def test_a_mistake_in_the_file_is_one_line(recipe: Path, content: str | bytes, expected: str) -> None:
    recipe.write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(ValueError, match=expected) as caught:
        resolve_run(recipe)
    assert "\n" not in str(caught.value)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"--config: cannot read .*absent\.yaml': No such file"):
        resolve_run(tmp_path / "absent.yaml")
    with pytest.raises(ValueError, match="--config: cannot read"):
        resolve_run(tmp_path)


def test_a_packaged_configuration_is_found_by_name_from_any_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    packaged: Any = resolve_run("digits_vit").config
    assert packaged.model.width == 64
    assert resolve_run("text/copying_rnn").config.task == "translation"
    (tmp_path / "digits_vit").write_text(RECIPE)  # a file of the user's comes first
    own: Any = resolve_run("digits_vit").config
    assert own.model.depth == 3


def test_a_wrong_name_of_a_configuration_is_answered_with_the_nearest_or_with_all() -> None:
    with pytest.raises(ValueError, match=r"--config: 'digit_vit' is neither.*did you mean 'digits_vit'\?$"):
        resolve_run("digit_vit")
    with pytest.raises(ValueError, match=r"--config: 'zzz' is neither .*; these are: .*digits_vit, .*imagenet_vit_b"):
        resolve_run("zzz")


@pytest.mark.slow
def test_the_wheel_holds_every_configuration_and_says_that_it_is_typed(tmp_path: Path) -> None:
    root = Path(__file__).parents[1]
    source = tmp_path / "source"
    ignored = shutil.ignore_patterns("data", "runs", ".git", "*.egg-info", "build", ".*_cache", ".venv")
    shutil.copytree(root, source, ignore=ignored, symlinks=True)
    pip = [sys.executable, "-m", "pip", "wheel", "--no-build-isolation", "--no-deps", "--no-index"]
    subprocess.run([*pip, "-w", str(tmp_path / "wheel"), str(source)], check=True, capture_output=True)
    (wheel,) = (tmp_path / "wheel").glob("*.whl")
    zipfile.ZipFile(wheel).extractall(tmp_path / "site")
    recipes = {file.relative_to(root / "configs") for file in (root / "configs").rglob("*.yaml")}
    packaged = tmp_path / "site" / "vit" / "configs"
    assert {file.relative_to(packaged) for file in packaged.rglob("*.yaml")} == recipes
    assert (tmp_path / "site" / "vit" / "py.typed").is_file()
    say = "import vit, vit.settings; print(vit.__version__, vit.settings.resolve_run('digits_vit').config.seed)"
    environment = os.environ | {"PYTHONPATH": str(tmp_path / "site")}
    done = subprocess.run(
        [sys.executable, "-c", say], cwd=tmp_path, env=environment, check=True, capture_output=True, text=True
    )
    assert done.stdout.split() == [vit.__version__, "0"]
    assert vit.__version__ in wheel.name


@pytest.mark.parametrize("words", [["--optim.learnrate", "1"], ["--train.epochs", "many"], ["--optim.lr", "-1"]])
def test_override_refuses_the_same_mistakes(words: list[str]) -> None:
    with pytest.raises(ValueError, match=words[0].removeprefix("--").replace(".", r"\.")) as caught:
        override(UNUSUAL, words, ["optim", "train"])
    assert "\n" not in str(caught.value)


def test_how_two_runs_differ(tmp_path: Path) -> None:
    for name, lr, top1 in (("a", 0.1, 0.5), ("b", 0.2, 0.75)):
        run = tmp_path / name
        run.mkdir()
        config = ClassificationRun(optim=OptimConfig(lr=lr))
        (run / "config.yaml").write_text(dump_run_config(config, {"optim.lr": COMMAND_LINE} if name == "a" else {}))
        (run / "summary.json").write_text(json.dumps({"test.top1": top1, "seed": 0, "versions": {"torch": "2"}}))
    lines = diff_runs(tmp_path / "a", tmp_path / "b").splitlines()
    assert [line.split() for line in lines[1:]] == [
        ["optim.lr", "0.1", "(command", "line)", "0.2", "(default)"],
        ["test.top1", "0.5", "0.75"],
    ]
    assert str(tmp_path / "a") in lines[0]


def test_how_a_finished_run_differs_from_one_that_is_not(tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "config.yaml").write_text(dump_run_config(ClassificationRun(), {}))
    (tmp_path / "a" / "summary.json").write_text(json.dumps({"test.top1": 0.5}))
    assert diff_runs(tmp_path / "a", tmp_path / "b").splitlines()[1].split() == ["test.top1", "0.5", "–"]


@pytest.mark.parametrize(
    ("name", "content", "expected"),
    [
        ("config.yaml", "optim:\n  learnrate: 1\n", r"config\.yaml: optim\.learnrate: there is no such setting"),
        ("config.yaml", "train:\n  epochs: many\n", r"config\.yaml: train\.epochs: 'many' is not valid"),
        ("config.yaml", "train: [\n", r"run: .*config\.yaml' is not YAML"),
        ("config.yaml", "train: 3\n", r"config\.yaml: train: it is a section"),
        ("summary.json", "{", r"run: .*summary\.json' is not JSON"),
    ],
)
def test_a_run_whose_files_are_wrong_is_named(tmp_path: Path, name: str, content: str, expected: str) -> None:
    (tmp_path / "config.yaml").write_text(dump_run_config(ClassificationRun(), {}))
    (tmp_path / name).write_text(content)
    with pytest.raises(ValueError, match=expected) as caught:
        diff_runs(tmp_path, tmp_path)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("content", [{"optim": {"learnrate": 1}}, {"optim": {"lr": "fast"}}])
def test_a_checkpoint_with_other_settings_is_refused(content: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"^checkpoint: optim\.(learnrate|lr): "):
        run_config_from(content)


def test_an_older_run_may_have_the_training_settings_of_other_tasks() -> None:
    content = {"task": "regression", "train": {"epochs": 3, "loss": "mse", "class_weights": "none"}}
    assert run_config_from(content).train.epochs == 3


ALLOWED = ["data", "device", "train.precision"]


def test_allowed_settings_are_overridden() -> None:
    words = ["--data.root", "a", "--device=cpu", "--train.precision", "bf16"]
    changed = override(ClassificationRun(data=DataConfig(name="cifar10")), words, ALLOWED)
    assert (changed.data.root, changed.device, changed.train.precision) == ("a", "cpu", "bf16")


def test_settings_of_one_data_set_are_not_anothers() -> None:
    fake = ClassificationRun(data=DataConfig(name="fake", fake_images=40, fake_classes=3, eval_batch_size=7))
    assert override(fake, ["--data.name", "cifar10"], ALLOWED).data == DataConfig(name="cifar10", eval_batch_size=7)
    assert override(fake, ["--data.workers", "1"], ALLOWED).data.fake_images == 40
    cifar = ClassificationRun(data=DataConfig(name="cifar10", root="elsewhere"))
    assert override(cifar, ["--data.name", "cifar100"], ALLOWED).data.root == "elsewhere"
    assert override(cifar, ["--data.name", "digits"], ALLOWED).data == DataConfig()
    captions = TranslationRun(data=TextDataConfig(root="data/multi30k", target_language="fr"))
    assert override(captions, ["--data.name", "copying"], ALLOWED).data == TextDataConfig(name="copying")
    moved = override(captions, ["--data.name", "multi30k", "--data.root", "elsewhere"], ALLOWED).data
    assert moved == TextDataConfig(root="elsewhere", target_language="fr"), "the same captions in another folder"
    own = ClassificationRun(data=DataConfig(name="imagefolder", root="my_images", test_folder="extra"))
    assert override(own, ["--data.name", "cifar10"], ALLOWED).data == DataConfig(name="cifar10"), "not into my_images"
    elsewhere = override(own, ["--data.name", "imagefolder", "--data.root", "others"], ALLOWED).data
    assert elsewhere == DataConfig(name="imagefolder", root="others")


def test_a_greedy_search_has_no_penalty_of_the_beam() -> None:
    run = TranslationRun(data=TextDataConfig(name="copying"), search=SearchConfig(beam_size=4, length_penalty=1.0))
    assert override(run, ["--search.beam_size", "1"], ["search"]).search == SearchConfig(beam_size=1)
    assert override(run, ["--search.beam_size", "2"], ["search"]).search.length_penalty == 1.0
    with pytest.raises(ValueError, match=r"search\.length_penalty: 0\.5 is not valid: it has an effect only with"):
        override(run, ["--search.beam_size", "1", "--search.length_penalty", "0.5"], ["search"])


def test_a_folder_of_images_may_have_a_recipes_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "digits_vit").mkdir()
    monkeypatch.chdir(tmp_path)
    assert find_config("digits_vit").name == "digits_vit.yaml"
    assert find_config("digits_vit").is_file()


@pytest.mark.parametrize("setting", ["batch_size", "fraction", "subset_seed", "canvas_size"])
def test_settings_of_training_images_have_no_effect_on_an_evaluation(setting: str) -> None:
    with pytest.raises(ValueError, match=rf"--data\.{setting}: it has no effect here; what has: "):
        override(ClassificationRun(), [f"--data.{setting}", "1"], ClassificationRun.evaluation_settings)


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["--optim.lr", "1"], r"--optim\.lr: it has no effect here; what has: --data, --device, --train\.precision"),
        (
            ["--model.image_size=8"],
            r"--model\.image_size: it has no effect here; to evaluate at another size give",
        ),
        (["--train.epochs", "1"], r"--train\.epochs: it has no effect here"),
        (["--nonsense"], r"--nonsense: there is no such setting"),
    ],
)
def test_only_allowed_settings_are_overridden(words: list[str], expected: str) -> None:
    with pytest.raises(ValueError, match=expected):
        override(ClassificationRun(), words, ALLOWED)


def test_a_folder_that_is_no_run_is_named(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=f"{tmp_path}.* is not a run folder"):
        diff_runs(tmp_path, tmp_path)


SHAPED = """
model: {name: vit, image_size: 8, patch_size: 2, width: 64, depth: 6, num_heads: 4, stochastic_depth_rate: 0.1}
optim: {lr: 1.0e-3}
"""


def test_a_model_named_on_the_command_line_has_its_own_shape(tmp_path: Path) -> None:
    """Not the width, depth and patch of the file's model, under its name; a shape beside the name overrides it."""
    path = tmp_path / "shaped.yaml"
    path.write_text(SHAPED)
    run: Any = resolve_run(path, ["--model.name", "vit_base_patch16_224", "--model.depth", "4"])
    assert run.config.model == ModelConfig(name="vit_base_patch16_224", depth=4)
    reset = {name for name, origin in run.origins.items() if origin == RESET}
    assert reset == {f"model.{name}" for name in ("image_size", "patch_size", "width", "num_heads", *RATE)}
    assert run.config.optim.lr == 1e-3
    assert model_of(path, "--model", "resnet18_cifar") == ModelConfig(name="resnet18_cifar")
    same: Any = resolve_run(path, ["--model", "vit", "--model.depth", "4"])
    assert (same.config.model.width, same.config.model.depth) == (64, 4)
    assert RESET not in same.origins.values()


RATE = ("stochastic_depth_rate",)


def model_of(path: Path, *words: str) -> Any:
    config: Any = resolve_run(path, words).config
    return config.model


def test_pretrained_weights_bring_their_architecture(tmp_path: Path) -> None:
    """A file of weights alone may not tell it; of a configuration with weights, the shape is meant for others too."""
    path, weights = tmp_path / "shaped.yaml", tmp_path / "weights.pth"
    path.write_text(SHAPED)
    weights.write_bytes(b"")
    tuned = model_of(path, "--model.pretrained", "timm:vit_tiny", "--model.image_size", "48")
    assert tuned == ModelConfig(pretrained="timm:vit_tiny", image_size=48)
    assert model_of(path, "--model.pretrained", str(weights)).width == 64
    named = ["--model.pretrained", str(weights), "--model.name", "vit_small_patch16_224"]
    assert model_of(path, *named).width is None
    for own in ("pretrained: 'timm:a', ", ""):
        path.write_text(f"model: {{{own}image_size: 48}}")
        other = model_of(path, "--model.pretrained", "timm:b")
        assert other == ModelConfig(pretrained="timm:b", image_size=48)


def test_a_list_of_texts_can_be_given_on_the_command_line(recipe: Path) -> None:
    recipe.write_text("task: multilabel\n")
    config: Any = resolve_run(recipe, ["--data.label_columns", "[red, blue]"]).config
    assert list(config.data.label_columns) == ["red", "blue"]


def test_an_optimizer_that_the_command_line_names_has_its_own_momentum(tmp_path: Path) -> None:
    file = tmp_path / "recipe.yaml"
    file.write_text("optim: {name: muon, lr: 0.01, momentum: 0.95, betas: [0.9, 0.99]}\n")
    run = resolve_run(file, ["--optim.name", "adamw"])
    assert (run.config.optim.name, run.config.optim.momentum, run.config.optim.betas) == ("adamw", 0.9, (0.9, 0.999))
    assert run.config.optim.lr == 0.01
    assert {name for name, origin in run.origins.items() if origin == RESET} == {"optim.momentum", "optim.betas"}
    own = resolve_run(file, ["--optim.name", "sgd", "--optim.momentum", "0.8"]).config.optim
    assert own.momentum == 0.8
    assert resolve_run(file, ["--optim.name", "muon"]).config.optim.momentum == 0.95


@pytest.mark.parametrize("setting", ["data.root", "output_dir"])
def test_a_name_in_bytes_that_are_not_utf_8_is_one_line(setting: str) -> None:
    with pytest.raises(ValueError, match=rf"^{re.escape(setting)}: .* is not valid: it is not text in UTF-8; give the"):
        resolve_run("digits_vit", [f"--{setting}=caf\udce9"], "--config")
