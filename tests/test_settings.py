"""Settings: from file and command line, with their origins, and back; every mistake in one line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml

from vit.config import AugmentConfig, ClassificationRun, DataConfig, ModelConfig, OptimConfig, TrainConfig
from vit.settings import (
    COMMAND_LINE,
    DEFAULT,
    FILE,
    check_overrides,
    diff_runs,
    differences,
    dump_run_config,
    flat_settings,
    override,
    read_run_config,
    resolve_run,
    run_config_from,
)

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
    train=TrainConfig(ema_decay=0.5, epochs=3, save_every_steps=7),
    seed=3,
    output_dir="2024",
)


@pytest.fixture
def recipe(tmp_path: Path) -> Path:
    path = tmp_path / "recipe.yaml"
    path.write_text(RECIPE)
    return path


def test_the_command_line_lies_over_the_file_over_the_defaults(recipe: Path) -> None:
    run = resolve_run(recipe, ["--optim.lr", "3e-4", "--model.num_heads=2", "--seed", "9"])
    assert run.config.optim.lr == 3e-4
    assert run.config.model.num_heads == 2
    assert run.config.seed == 9
    assert run.config.model.depth == 3
    assert run.config.model.image_size == (16, 24)
    assert run.config.data.mean == (0.1, 0.2, 0.3)
    assert run.config.optim.betas == (0.8, 0.95)
    assert run.config.optim.clip_norm is None
    assert run.config.optim.weight_decay == OptimConfig().weight_decay


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
    from dataclasses import asdict

    assert run_config_from(json.loads(json.dumps(asdict(UNUSUAL)))) == UNUSUAL


def test_the_dump_names_every_setting() -> None:
    assert (
        flat_settings(ClassificationRun()).keys()
        == flat(yaml.safe_load(dump_run_config(ClassificationRun(), {}))).keys()
    )


def flat(content: dict, prefix: str = "") -> dict:
    nested = {key: value for key, value in content.items() if isinstance(value, dict)}
    plain = {f"{prefix}{key}": value for key, value in content.items() if key not in nested}
    for key, value in nested.items():
        plain |= flat(value, f"{key}.")
    return plain


def test_override_changes_only_what_it_names() -> None:
    changed = override(UNUSUAL, ["--data.root", "elsewhere", "--data.eval_batch_size=3"])
    assert differences(UNUSUAL, changed) == {
        "data.root": ("a folder: #1", "elsewhere"),
        "data.eval_batch_size": (256, 3),
    }
    assert override(UNUSUAL, []) == UNUSUAL


MISTAKES = {
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
    "wrong type": (["--train.epochs", "many"], r"train\.epochs: 'many' is not valid: it must be int"),
    "fraction for a count": (["--data.batch_size", "2.5"], r"data\.batch_size: '?2\.5'? is not valid"),
    "wrong choice": (["--optim.name", "adam"], r"optim\.name: 'adam' is not valid: it must be one of 'adamw', 'sgd'"),
    "broken rule": (["--optim.lr", "-1"], r"optim\.lr: -1.0 is not valid: it must be above 0"),
    "rule across sections": (["--train.accumulation_steps", "3"], r"data\.batch_size: 128 is not valid"),
    "a scalar for a section": (["--optim", "fast"], r"--optim: it is a section"),
    "null on the command line": (["--data.workers", "null"], r"data\.workers"),
    "a missing value": (["--optim.lr"], r"optim\.lr"),
    "a stray word": (["stray"], r"stray"),
    "wrong length": (["--optim.betas", "[0.5]"], r"optim\.betas"),
    "not a boolean": (["--train.compile", "perhaps"], r"train\.compile: 'perhaps' is not valid"),
}


@pytest.mark.parametrize(("words", "expected"), MISTAKES.values(), ids=list(MISTAKES))
def test_a_mistake_on_the_command_line_is_one_line(recipe: Path, words: list[str], expected: str) -> None:
    with pytest.raises(ValueError, match=expected) as caught:
        resolve_run(recipe, words)
    assert "\n" not in str(caught.value)


FILES = {
    "unknown key": ("optim:\n  learnrate: 1\n", r"recipe\.yaml: optim\.learnrate: there is no such setting"),
    "unknown section": ("optimiser:\n  lr: 1\n", r"recipe\.yaml: optimiser\.lr: there is no such setting"),
    "wrong type": ("train:\n  epochs: many\n", r"train\.epochs: 'many' is not valid: it must be int"),
    "null for a number": ("train:\n  epochs: null\n", r"train\.epochs: null is not valid"),
    "null for a name": ("data:\n  name: null\n", r"data\.name: null is not valid"),
    "a scalar for a section": ("train: 3\n", r"train: it is a section"),
    "an empty section": ("train:\n", r"train: it is a section; set what is in it, such as train\."),
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


@pytest.mark.parametrize("words", [["--optim.learnrate", "1"], ["--train.epochs", "many"], ["--optim.lr", "-1"]])
def test_override_refuses_the_same_mistakes(words: list[str]) -> None:
    with pytest.raises(ValueError, match=words[0].removeprefix("--").replace(".", r"\.")) as caught:
        override(UNUSUAL, words)
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
def test_a_checkpoint_with_other_settings_is_refused(content: dict) -> None:
    with pytest.raises(ValueError, match=r"^checkpoint: optim\.(learnrate|lr): "):
        run_config_from(content)


def test_only_allowed_settings_are_overridden() -> None:
    allowed, remedies = ["data", "device", "train.precision"], {"model.image_size": "give --image_size"}
    run = ClassificationRun()
    check_overrides(run, ["--data.root", "a", "--device=cpu", "--train.precision", "bf16"], allowed, remedies)
    for words, expected in (
        (["--optim.lr", "1"], r"--optim\.lr: it has no effect here; what has: --data, --device, --train\.precision"),
        (["--model.image_size=8"], r"--model\.image_size: it has no effect here; give --image_size"),
        (["--train.epochs", "1"], r"--train\.epochs: it has no effect here"),
        (["--nonsense"], r"--nonsense: there is no such setting"),
    ):
        with pytest.raises(ValueError, match=expected):
            check_overrides(run, words, allowed, remedies)


def test_a_folder_that_is_no_run_is_named(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=f"{tmp_path}.* is not a run folder"):
        diff_runs(tmp_path, tmp_path)
