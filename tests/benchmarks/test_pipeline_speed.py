"""Loading and epochs against other libraries: all use the same images, and unequal work is refused."""

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

from benchmarks import pipeline_speed, reference_loop, reference_models
from benchmarks.__main__ import main
from benchmarks.pipeline_speed import PipelineSpec, bench_data, bench_epoch
from benchmarks.pipeline_table import _FACTS, line, markdown
from benchmarks.reference_loaders import LOADERS, PilImages, timm_loader, torchvision_loader
from benchmarks.reference_models import ReferenceModel
from tests.training.tiny import tiny
from vit.data.loading import TrainLoader
from vit.evaluation.cost import count_parameters
from vit.libraries.timm_writing import build_timm
from vit.tasks.classification.config import ClassificationRun
from vit.tasks.images import ImageTask
from vit.training.session import Session, open_session
from vit.weights.timm import TIMM

ONCE = PipelineSpec(workers=[0], turns=1)


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
    result = bench_epoch(tiny(**sections), PipelineSpec(workers=[0], turns=2), silent)
    row = result["rows"][0]
    assert 0 <= result["difference"] < 1e-5
    assert set(row["images_per_second"]) == {"vit", *libraries}
    assert set(row["unsupported"]) == set(LOADERS) - libraries
    assert result["images"] == 32  # two whole batches of 37 images
    assert all(len(times) == 2 and min(times) > 0 for times in row["seconds"].values())
    assert set(row["ratios"]) == libraries
    assert set(row["share_of_peak"]) == set(row["images_per_second"])
    assert (result["machine"]["device"] is not None, result["precision"]) == (True, "fp32")


def test_rates_and_ratios_are_of_the_seconds(monkeypatch: pytest.MonkeyPatch) -> None:
    from benchmarks.timing import Seconds

    times = {"vit": [Seconds(2.0, 1.0), Seconds(4.0, 1.0)], "timm": [Seconds(8.0, 5.0), Seconds(8.0, 5.0)]}
    monkeypatch.setattr(pipeline_speed, "time_interleaved", lambda *_, **__: times)
    row = bench_data(tiny(augment={"crop": "random_resized"}), ONCE, silent)["rows"][0]
    assert row["images_per_second"]["vit"]["median"] == 12.0
    assert row["ratios"] == {"timm": {"median": 3.0, "lower": 2.5, "upper": 3.5}}
    assert row["processor_ratios"]["timm"]["median"] == 5.0
    with_workers = bench_data(tiny(augment={"crop": "random_resized"}), PipelineSpec(workers=[1], turns=1), silent)
    assert with_workers["rows"][0]["processor_ratios"] == {}


def test_a_share_of_the_peak_is_of_three_forward_passes_of_all_images(monkeypatch: pytest.MonkeyPatch) -> None:
    """32 images in 2 s, beside five products of a GFLOP in 1 s: ours leaves out a few tokens of the last block."""
    from benchmarks.timing import PEAK, Seconds

    products: list[int] = []

    def time_interleaved(functions: Any, *_: Any, **__: Any) -> dict[str, list[Seconds]]:
        functions[PEAK]()
        return {name: [Seconds(1.0 if name == PEAK else 2.0, 1.0)] for name in functions}

    monkeypatch.setattr(pipeline_speed, "time_interleaved", time_interleaved)
    monkeypatch.setattr(pipeline_speed, "matrix_product", lambda *_: (lambda: products.append(1), 1.0))

    def multiply_adds(model: nn.Module, _: Any, *, every_token: bool) -> int:
        assert {parameter.device.type for parameter in model.parameters()} == {"meta"}  # not the one that is timed
        return 10**7 * (10 if every_token else 9)

    monkeypatch.setattr(pipeline_speed, "multiply_adds", multiply_adds)
    once = PipelineSpec(workers=[0], peers=["timm"], turns=1)
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
    assert f"\n- difference: {result['difference']} (largest difference of " in text


def test_a_precision_that_the_usual_loop_lacks(monkeypatch: pytest.MonkeyPatch) -> None:
    """As accelerate's own variable can ask for it."""
    monkeypatch.setattr(pipeline_speed, "timm_model", lambda _: pytest.fail("a model was built"))
    session = SimpleNamespace(precision="fp16")
    monkeypatch.setattr(
        pipeline_speed, "task_of", lambda _: SimpleNamespace(preprocessing=SimpleNamespace(image_size=0))
    )
    with pytest.raises(
        ValueError, match=r"^train.precision: 'fp16' is not valid: the reference loop has fp32 and bf16; set it to one"
    ):
        pipeline_speed._work(session, 32, ["timm"])  # type: ignore[arg-type]


def test_a_device_that_is_not_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    session = SimpleNamespace(accelerator=SimpleNamespace(device=SimpleNamespace(type="mps")))
    monkeypatch.setattr(pipeline_speed, "open_session", lambda *_: session)
    with pytest.raises(ValueError, match=r"^device: 'mps' is not valid: cpu and cuda are timed"):
        bench_data(tiny(augment={"crop": "random_resized"}), ONCE, silent)


def test_an_epoch_of_ours_is_the_training_loops(tmp_path: Path) -> None:
    """Two steps of 16 images, with the average updated."""
    session = open_session(tiny(train={"ema_decay": 0.9}), tmp_path)
    split = pipeline_speed._whole_batches(session)
    before = {name: tensor.clone() for name, tensor in session.unwrapped_model.state_dict().items()}
    assert session.average is not None
    average = {name: tensor.clone() for name, tensor in session.average.tensors.items()}
    pipeline_speed._our_training(session, pipeline_speed._our_loader(session, split, 0))()
    assert all(not torch.equal(before[name], tensor) for name, tensor in session.unwrapped_model.named_parameters())
    assert any(not torch.equal(average[name], tensor) for name, tensor in session.average.tensors.items())
    assert session.optimizers[0].state[next(session.unwrapped_model.parameters())]["step"] == 2


def test_the_command_leaves_numbers_and_a_table(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["--data.name", "fake", "--data.fake_images", "60", "--data.batch_size", "16", "--augment.crop", "none"]
    output = tmp_path / "deep" / "data.json"
    config = tmp_path / "run.yaml"
    config.write_text("model: {name: vit, image_size: 8, patch_size: 4, width: 16, depth: 1, num_heads: 2}\n")
    words = [
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
    assert table.startswith("# data: fake, 48 images")
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
    "augment.grey_probability": {"augment": {"grey_probability": 0.2}},
    "data.crop_fraction": {"data": {"crop_fraction": 0.9}},
    "data.antialias": {"data": {"antialias": False}},
    "data.on_broken_image": {"data": {"on_broken_image": "skip"}},
    "data.batch_size": {"data": {"batch_size": 64}},
    "train.accumulation_steps": {"train": {"accumulation_steps": 2}},
    "train.loss": {"train": {"loss": "bce"}},
    "train.compile_blocks": {"train": {"compile": True, "compile_blocks": True}},
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
        PipelineSpec(**({"workers": [0]} | given))


def test_a_loader_that_fails_is_not_called_unsupported(monkeypatch: pytest.MonkeyPatch) -> None:
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
    assert row["unsupported"]["timm"] == "data.batch_size: 15 is not valid: timm's loader mixes images in pairs"


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
    session = open_session(tiny(model=model), tmp_path)
    theirs, difference = reference_loop.timm_model(session)
    assert 0 <= difference < 1e-5
    assert count_parameters(theirs) == count_parameters(session.unwrapped_model)


def test_timms_blocks_are_left_out_as_often_as_ours(tmp_path: Path) -> None:
    session = open_session(tiny(model={"depth": 4, "stochastic_depth_rate": 0.3}), tmp_path)
    theirs, _ = reference_loop.timm_model(session)
    rates = [getattr(block.drop_path1, "drop_prob", 0.0) for block in theirs.blocks]  # type: ignore[union-attr]
    assert rates == pytest.approx([0.0, 0.1, 0.2, 0.3])
    blocks: Any = session.task.model.blocks
    assert rates == pytest.approx([block.depth1.rate for block in blocks])


@pytest.mark.parametrize(
    ("model", "reason"),
    [
        ({"positions": "rope"}, "positions 'rope'; it has learned_1d and, without a distillation token, none"),
        (
            {"positions": "none", "distillation_token": True},
            "positions 'none'; it has learned_1d and, without a distillation token, none",
        ),
        ({"pooling": "cls_gap"}, "pooling 'cls_gap'; it has cls, gap, map"),
        (
            {"final_norm": "pooled", "distillation_token": True},
            "final_norm 'pooled'; it has tokens, none with a distillation token",
        ),
        (
            {"num_registers": 2},
            "positions_on_registers False; it has true where model.positions_on_prefix is, and there are registers",
        ),
        (
            {"num_registers": 2, "distillation_token": True},
            "num_registers 2; it has 0 with a distillation token",
        ),
        (
            {"positions_on_prefix": False, "distillation_token": True},
            "positions_on_prefix False; it has true with a distillation token",
        ),
        (
            {"feedforward": "swiglu", "pooling": "map"},
            "feedforward 'swiglu'; it has gelu, gelu_tanh, quick_gelu with model.pooling 'map'",
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
    line = f"model: the reference loop cannot train it: timm has no model with model.{reason}"
    with pytest.raises(ValueError, match=f"^{re.escape(line)}$"):
        bench_epoch(tiny(model=model), ONCE, silent)


def test_a_model_of_timms_that_answers_otherwise_is_not_timed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    other = partial(reference_models._by_layout, lambda config: build_timm(replace(config, norm_eps=0.1)), TIMM)
    monkeypatch.setitem(reference_models.REFERENCES, "timm", ReferenceModel("timm", other))
    with pytest.raises(RuntimeError, match="timm computes something else: largest relative difference"):
        reference_loop.timm_model(open_session(tiny(), tmp_path))


@pytest.mark.parametrize("loader", [torchvision_loader, timm_loader], ids=["torchvision", "timm"])
def test_an_image_is_what_the_model_takes(loader: Any, tmp_path: Path) -> None:
    """A crop of everything and no other augmentation: the other libraries see the pixels that evaluation sees."""
    augment = {"crop": "random_resized", "scale": (1.0, 1.0), "ratio": (1.0, 1.0), "interpolation": "bicubic"}
    session = open_session(tiny(augment=augment), tmp_path)
    split = pipeline_speed._whole_batches(session)
    images, labels = next(iter(loader(pipeline_speed._loader_spec(session, split, True), 0)))
    assert images.shape == (16, 3, 8, 8)
    assert labels.shape == (16,)
    ours = {int(index): _evaluated(session, int(index)) for index in split.indices}
    for image, label in zip(images, labels, strict=True):
        assert any(
            torch.allclose(image, pixels, atol=0.02) and int(label) == int(split.source.labels[index])
            for index, pixels in ours.items()
        )


def test_kept_images_are_decoded_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    session = open_session(tiny(), tmp_path)
    split, reads = _task(session).train_split, list[int]()
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
    session = open_session(config, tmp_path)
    for cache, expected in ((2.0, True), (0.0, False)):
        data = replace(config.data, cache_gib=cache)
        split, device = _task(session).train_split, session.accelerator.device
        loader = TrainLoader(split, data, config.augment, image_size=(8, 8), seed=0, device=device)
        next(iter(loader.epoch(0)))
        assert loader.is_cached is expected


def _evaluated(session: Session, index: int) -> Tensor:
    from vit.data.preprocessing import normalize, resize_and_crop

    task = _task(session)
    pixels = resize_and_crop(task.train_split.source.read(index), task.preprocessing)
    return normalize(pixels[None], task.preprocessing)[0]


def _task(session: Session) -> ImageTask[Any]:
    assert isinstance(session.task, ImageTask)
    return session.task
