"""Loading and epochs against other libraries: all sides run on the same images, and unequal work is refused."""

from __future__ import annotations

import re
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tests.training.tiny import tiny
from vit.cli import main
from vit.config import ClassificationRun
from vit.data.loading import TrainLoader
from vit.evaluation.cost import count_parameters
from vit.experiments import peers, pipeline_speed, usual_loop
from vit.experiments.peer_loaders import LOADERS, PilImages, timm_loader, torchvision_loader
from vit.experiments.peers import Peer
from vit.experiments.pipeline_speed import Comparison, bench_data, bench_epoch
from vit.experiments.pipeline_table import _FACTS, line, markdown
from vit.models.vision_transformer import _depth_rate
from vit.training.setup import Session, prepare
from vit.weights.timm import TIMM
from vit.weights.timm_models import build_timm

ONCE = Comparison(workers=[0], turns=1)


def silent(_: str) -> None:
    pass


AUGMENTED = {
    "crop": "random_resized",
    "flip": True,
    "policy": "randaugment",
    "color_jitter": 0.3,
    "erasing_probability": 0.5,
    "mixup_alpha": 0.4,
    "cutmix_alpha": 1.0,
    "mix_group": 4,
}


@pytest.mark.parametrize(
    ("sections", "libraries"),
    [
        ({"augment": {"crop": "random_resized"}}, {"torchvision", "timm"}),
        ({"augment": AUGMENTED, "train": {"ema_decay": 0.9, "label_smoothing": 0.1}}, {"torchvision"}),
        ({"augment": {"crop": "pad", "policy": "autoaugment_cifar10"}}, {"torchvision"}),
    ],
    ids=["plain", "augmented", "padded"],
)
def test_every_side_trains_in_every_turn(
    sections: dict[str, Any], libraries: set[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pipeline_speed, "matrix_product", lambda *_: (lambda: None, 1.0))
    result = bench_epoch(tiny(**sections), Comparison(workers=[0], turns=2), silent)
    row = result["rows"][0]
    assert 0 <= result["difference"] < 1e-5
    assert set(row["images_per_second"]) == {"vit", *libraries}
    assert set(row["absent"]) == set(LOADERS) - libraries
    assert result["images"] == 32  # two whole batches of 37 images
    assert all(len(times) == 2 and min(times) > 0 for times in row["seconds"].values())
    assert set(row["ratios"]) == libraries
    assert set(row["share_of_peak"]) == set(row["images_per_second"])
    assert (result["machine"]["device"] is not None, result["precision"]) == (True, "fp32")


def test_rates_and_ratios_are_of_the_seconds(monkeypatch: pytest.MonkeyPatch) -> None:
    from vit.experiments.turns import Seconds

    times = {"vit": [Seconds(2.0, 1.0), Seconds(4.0, 1.0)], "timm": [Seconds(8.0, 5.0), Seconds(8.0, 5.0)]}
    monkeypatch.setattr(pipeline_speed, "time_in_turns", lambda *_, **__: times)
    row = bench_data(tiny(augment={"crop": "random_resized"}), ONCE, silent)["rows"][0]
    assert row["images_per_second"]["vit"]["median"] == 12.0
    assert row["ratios"] == {"timm": {"median": 3.0, "lower": 2.5, "upper": 3.5}}
    assert row["processor_ratios"]["timm"]["median"] == 5.0
    with_workers = bench_data(tiny(augment={"crop": "random_resized"}), Comparison(workers=[1], turns=1), silent)
    assert with_workers["rows"][0]["processor_ratios"] == {}


def test_a_share_of_the_peak_is_of_three_forward_passes_of_all_images(monkeypatch: pytest.MonkeyPatch) -> None:
    """32 images in 2 s, beside five products of a GFLOP in 1 s: ours leaves out a few tokens of the last block."""
    from vit.experiments.turns import PEAK, Seconds

    products: list[int] = []

    def time_in_turns(sides: Any, *_: Any, **__: Any) -> dict[str, list[Seconds]]:
        sides[PEAK]()
        return {name: [Seconds(1.0 if name == PEAK else 2.0, 1.0)] for name in sides}

    monkeypatch.setattr(pipeline_speed, "time_in_turns", time_in_turns)
    monkeypatch.setattr(pipeline_speed, "matrix_product", lambda *_: (lambda: products.append(1), 1.0))

    def multiply_adds(model: nn.Module, _: Any, *, every_token: bool) -> int:
        assert {parameter.device.type for parameter in model.parameters()} == {"meta"}  # not the one that is timed
        return 10**7 * (10 if every_token else 9)

    monkeypatch.setattr(pipeline_speed, "multiply_adds", multiply_adds)
    once = Comparison(workers=[0], peers=["timm"], turns=1)
    result = bench_epoch(tiny(augment={"crop": "random_resized"}), once, silent)
    row = result["rows"][0]
    assert len(products) == 5
    assert row["gflop"] == pytest.approx({"vit": 3 * 2 * 0.09 * 32, "timm": 3 * 2 * 0.1 * 32})
    assert row["share_of_peak"] == {"vit": 1.728, "timm": 1.92}
    assert row["peak_gflops"]["median"] == row["product_gflop"] == 5
    assert line(row).endswith(", 173% of peak")
    text = markdown(result)
    assert "| workers | kept | on_device | vit images/s | of peak | peak GFLOP/s | timm images/s | ratio |" in text
    assert "| 172.8% | 5 (5–5) | " in text
    assert text.count("\n- difference: ") == 1
    assert f"\n- difference: {result['difference']} (the most by which " in text


def test_a_precision_that_the_usual_loop_lacks(monkeypatch: pytest.MonkeyPatch) -> None:
    """As accelerate's own variable can ask for it."""
    monkeypatch.setattr(pipeline_speed, "timm_model", lambda _: pytest.fail("a model was built"))
    session = SimpleNamespace(precision="fp16")
    monkeypatch.setattr(
        pipeline_speed, "task_of", lambda _: SimpleNamespace(preprocessing=SimpleNamespace(image_size=0))
    )
    with pytest.raises(
        ValueError, match=r"^train.precision: 'fp16' is not valid: the usual loop has fp32 and bf16; set it to one"
    ):
        pipeline_speed._work(session, 32, ["timm"])  # type: ignore[arg-type]


def test_a_device_that_is_not_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    session = SimpleNamespace(accelerator=SimpleNamespace(device=SimpleNamespace(type="mps")))
    monkeypatch.setattr(pipeline_speed, "prepare", lambda *_: session)
    with pytest.raises(ValueError, match=r"^device: 'mps' is not valid: cpu and cuda are timed"):
        bench_data(tiny(augment={"crop": "random_resized"}), ONCE, silent)


def test_an_epoch_of_ours_is_the_training_loops(tmp_path: Path) -> None:
    """Two steps of 16 images, with the average updated."""
    session = prepare(tiny(train={"ema_decay": 0.9}), tmp_path)
    split = pipeline_speed._whole_batches(session)
    before = {name: tensor.clone() for name, tensor in session.bare_model.state_dict().items()}
    average = {name: tensor.clone() for name, tensor in session.average.tensors.items()}
    pipeline_speed._our_training(session, pipeline_speed._our_loader(session, split, 0))()
    assert all(not torch.equal(before[name], tensor) for name, tensor in session.bare_model.named_parameters())
    assert any(not torch.equal(average[name], tensor) for name, tensor in session.average.tensors.items())
    assert session.optimizers[0].state[next(session.bare_model.parameters())]["step"] == 2


def test_the_command_leaves_numbers_and_a_table(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["--data.name", "fake", "--data.fake_images", "60", "--data.batch_size", "16", "--augment.crop", "none"]
    output = tmp_path / "deep" / "data.json"
    config = tmp_path / "run.yaml"
    config.write_text("model: {name: vit, image_size: 8, patch_size: 4, width: 16, depth: 1, num_heads: 2}\n")
    words = [
        "bench",
        "data",
        "--config",
        str(config),
        *words,
        "--workers",
        "0",
        "--turns",
        "1",
        "--output",
        str(output),
    ]
    assert main(words) == 0
    assert "torchvision images/s" in capsys.readouterr().out
    assert output.is_file()
    table = output.with_suffix(".md").read_text()
    assert table.startswith("# vit bench data: fake, 48 images")
    assert "\n- batch_size: 16\n" in table
    assert "\n- turns: 1\n" in table


def test_a_table_says_what_a_library_lacks() -> None:
    rate = {"median": 10.0, "lower": 9.0, "upper": 11.0}
    where = {"kept": True, "on_device": False}
    rows = [
        {**where, "workers": 0, "images_per_second": {"vit": rate, "timm": rate}, "ratios": {"timm": rate}},
        {**where, "workers": 2, "images_per_second": {"vit": rate}, "ratios": {}},
    ]
    facts = dict.fromkeys(_FACTS["data"], "so") | {
        "image_size": [3, 5],
        "machine": {"cores": 2, "a": {"b": 1}},
    }
    text = markdown({"bench": "data", "dataset": "x", "images": 5, "rows": rows, "conventions": {}, **facts})
    assert "| 0 | true | false | 10 (9–11) | 10 (9–11) | 10.00 (9.00–11.00) |" in text
    assert "\n- augment: so\n" in text
    assert "precision" not in text  # no model computes
    assert "\n- image_size: 3×5\n" in text
    assert "\n- machine: cores 2, a b 1\n" in text
    assert "| 2 | true | false | 10 (9–11) | — | — |" in text


REFUSED: dict[str, dict[str, Any]] = {
    "model.name": {"model": {"name": "resnet18", **dict.fromkeys(("patch_size", "width", "depth", "num_heads"))}},
    "augment.policy": {"augment": {"policy": "three_augment"}},
    "augment.magnitude": {"augment": {"policy": "randaugment", "magnitude": 4.5}},
    "augment.magnitude_std": {"augment": {"policy": "randaugment", "magnitude_std": 0.5}},
    "augment.repeats": {"augment": {"repeats": 2}},
    "data.crop_fraction": {"data": {"crop_fraction": 0.9}},
    "data.antialias": {"data": {"antialias": False}},
    "data.on_broken_image": {"data": {"on_broken_image": "skip"}},
    "data.batch_size": {"data": {"batch_size": 64}},
    "train.accumulation_steps": {"train": {"accumulation_steps": 2}},
    "train.loss": {"train": {"loss": "bce"}},
    "train.gradient_checkpointing": {"train": {"gradient_checkpointing": True}},
    "optim.name": {"optim": {"name": "muon"}},
    "optim.layer_decay": {"optim": {"layer_decay": 0.9}},
    "distill.teacher": {"distill": {"teacher": "runs/a"}},
    "model.freeze_backbone": {"model": {"freeze_backbone": True, "pretrained": "runs/a"}},
    "model.dropout_rate": {"model": {"dropout_rate": 0.1}},
    "model.attention_dropout_rate": {"model": {"attention_dropout_rate": 0.1}},
    "model.patch_dropout_rate": {"model": {"patch_dropout_rate": 0.1}},
}


@pytest.mark.parametrize(("field", "sections"), REFUSED.items(), ids=list(REFUSED))
def test_what_only_one_side_would_do_is_refused_before_a_pass(
    field: str, sections: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pipeline_speed, "_our_training", lambda *_: pytest.fail("a pass was prepared"))
    with pytest.raises(ValueError, match=rf"^{re.escape(field)}: ") as caught:
        bench_epoch(tiny(**sections), ONCE, silent)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("option", "given"), [("--turns", {"turns": 0}), ("--workers", {"workers": [-1]}), ("--peers", {"peers": ["tim"]})]
)
def test_what_times_nothing_is_refused(option: str, given: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=rf"^{option}: .* is not valid"):
        Comparison(**({"workers": [0]} | given))


def test_a_loader_that_fails_is_not_absent(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any) -> None:
        raise ValueError("pixels were lost")

    monkeypatch.setitem(LOADERS, "timm", refuse)
    with pytest.raises(ValueError, match="pixels were lost"):
        bench_data(tiny(augment={"crop": "random_resized"}), ONCE, silent)


@pytest.mark.parametrize(("num_bytes", "there"), [(0, False), (5, True)])
def test_a_row_says_whether_ours_lie_on_the_device(
    num_bytes: int, there: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(TrainLoader, "bytes_on_device", lambda _: num_bytes)
    assert bench_data(tiny(), ONCE, silent)["rows"][0]["on_device"] is there


def test_timms_loader_mixes_pairs() -> None:
    augment = {"crop": "random_resized", "mixup_alpha": 0.4, "mix_group": 3}
    row = bench_data(tiny(augment=augment, data={"batch_size": 15}), ONCE, silent)["rows"][0]
    assert set(row["images_per_second"]) == {"vit", "torchvision"}
    assert row["absent"]["timm"] == "data.batch_size: 15 is not valid: timm's loader mixes images in pairs"


@pytest.mark.parametrize(
    "model",
    [
        {"num_registers": 3, "positions_on_registers": True, "layer_scale": 0.1},
        {"pooling": "gap", "class_token": False, "qkv_bias": False},
        {"pooling": "map", "final_norm": "tokens", "qk_norm": True},
        {"pre_norm": True, "final_norm": "pooled", "pooling": "gap"},
        {"feedforward": "swiglu", "norm_eps": 1e-3},
        {"distillation_token": True},
        {"distillation_token": True, "final_norm": "none"},
        {"distillation_token": True, "feedforward": "swiglu"},
        {"positions": "none", "num_registers": 2},
    ],
)
def test_timms_model_answers_as_ours(model: dict[str, Any], tmp_path: Path) -> None:
    session = prepare(tiny(model=model), tmp_path)
    theirs, difference = usual_loop.timm_model(session)
    assert 0 <= difference < 1e-5
    assert count_parameters(theirs) == count_parameters(session.bare_model)


def test_timms_blocks_are_left_out_as_often_as_ours(tmp_path: Path) -> None:
    session = prepare(tiny(model={"depth": 4, "stochastic_depth_rate": 0.3}), tmp_path)
    theirs, _ = usual_loop.timm_model(session)
    rates = [getattr(block.drop_path1, "drop_prob", 0.0) for block in theirs.blocks]  # type: ignore[union-attr]
    assert rates == pytest.approx([0.0, 0.1, 0.2, 0.3])
    assert rates == pytest.approx([_depth_rate(session.task.model.config, index) for index in range(4)])


@pytest.mark.parametrize(
    ("model", "reason"),
    [
        ({"positions": "rope"}, "positions 'rope'; it has learned_1d and, not beside a distillation token, none"),
        (
            {"positions": "none", "distillation_token": True},
            "positions 'none'; it has learned_1d and, not beside a distillation token, none",
        ),
        ({"pooling": "cls_gap"}, "pooling 'cls_gap'; it has cls, gap, map"),
        (
            {"final_norm": "pooled", "distillation_token": True},
            "final_norm 'pooled'; it has tokens, none beside a distillation token",
        ),
        (
            {"num_registers": 2},
            "positions_on_registers False; it has true where model.positions_on_prefix is, and there are registers",
        ),
        (
            {"num_registers": 2, "distillation_token": True},
            "num_registers 2; it has 0 beside a distillation token",
        ),
        (
            {"positions_on_prefix": False, "distillation_token": True},
            "positions_on_prefix False; it has true beside a distillation token",
        ),
        (
            {"feedforward": "swiglu", "pooling": "map"},
            "feedforward 'swiglu'; it has gelu, gelu_tanh, quick_gelu beside model.pooling 'map'",
        ),
        ({"stem": "resnet", "patch_size": 8, "image_size": 16}, "stem 'resnet'; it has patch"),
        ({"representation_width": 5}, "representation_width 5; it has none"),
        ({"head_bias": False}, "head_bias False; it has true"),
        (
            {"distillation_token": True, "distillation_head": False},
            "distillation_head False; it has true",
        ),
    ],
)
def test_a_model_that_timm_lacks_is_refused_before_a_pass(
    model: dict[str, Any], reason: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pipeline_speed, "_our_training", lambda *_: pytest.fail("a pass was prepared"))
    line = f"model: the usual loop cannot train it: timm has no model with model.{reason}"
    with pytest.raises(ValueError, match=f"^{re.escape(line)}$"):
        bench_epoch(tiny(model=model), ONCE, silent)


def test_a_model_of_timms_that_answers_otherwise_is_not_timed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    other = partial(peers._of_layout, lambda config: build_timm(replace(config, norm_eps=0.1)), TIMM)
    monkeypatch.setitem(peers.PEERS, "timm", Peer("timm", other))
    with pytest.raises(RuntimeError, match="timm computes something else: largest relative difference"):
        usual_loop.timm_model(prepare(tiny(), tmp_path))


@pytest.mark.parametrize("loader", [torchvision_loader, timm_loader], ids=["torchvision", "timm"])
def test_an_image_is_what_the_model_takes(loader: Any, tmp_path: Path) -> None:
    """A crop of everything and no other augmentation: the other libraries see the pixels that evaluation sees."""
    augment = {"crop": "random_resized", "scale": (1.0, 1.0), "ratio": (1.0, 1.0), "interpolation": "bicubic"}
    session = prepare(tiny(augment=augment), tmp_path)
    split = pipeline_speed._whole_batches(session)
    images, labels = next(iter(loader(pipeline_speed._wanted(session, split, True), 0)))
    assert images.shape == (16, 3, 8, 8)
    assert labels.shape == (16,)
    ours = {int(index): _evaluated(session, int(index)) for index in split.indices}
    for image, label in zip(images, labels, strict=True):
        assert any(
            torch.allclose(image, pixels, atol=0.02) and int(label) == int(split.source.labels[index])
            for index, pixels in ours.items()
        )


def test_kept_images_are_decoded_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    session = prepare(tiny(), tmp_path)
    split, reads = session.task.train_split, []
    read = type(split.source).read
    monkeypatch.setattr(type(split.source), "read", lambda *args, **kw: reads.append(args[1]) or read(*args, **kw))
    for keep, expected in ((True, 37), (False, 37 + 3)):
        images = PilImages(split, keep=keep)
        images.transform = lambda image: image
        assert images[3][0].tobytes() == images[3][0].tobytes()
        assert images[3][1] == int(split.labels[3])
        assert len(reads) == expected


def test_ours_says_whether_it_keeps_images(tmp_path: Path) -> None:
    config: ClassificationRun = tiny()
    session = prepare(config, tmp_path)
    for cache, expected in ((2.0, True), (0.0, False)):
        data = replace(config.data, cache_gib=cache)
        split, device = session.task.train_split, session.accelerator.device
        loader = TrainLoader(split, data, config.augment, image_size=(8, 8), seed=0, device=device)
        next(iter(loader.epoch(0)))
        assert loader.is_kept is expected


def _evaluated(session: Session, index: int) -> Tensor:
    from vit.data.preprocessing import normalize, resize_and_crop

    pixels = resize_and_crop(session.task.train_split.source.read(index), session.task.preprocessing)
    return normalize(pixels[None], session.task.preprocessing)[0]
