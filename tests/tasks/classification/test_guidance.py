"""Guidance by a teacher's maps: by hand, what it moves and what it refuses, and that a run with it resumes."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.faults.malformed.run_folders import MISSING, in_state
from tests.training.tiny import assert_same_bits, tiny
from vit import create_model
from vit.models import VisionTransformer
from vit.runs import read_metrics
from vit.tasks.classification.guidance import Guidance, similarity_losses
from vit.training.loop import steps, train
from vit.training.session import open_session


@pytest.fixture
def no_figures(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("vit.tasks.classification.report.draw_run", lambda *_: None)


def test_the_similarity_loss_of_two_patches_by_hand() -> None:
    patches = torch.tensor([[[1.0, 0.0], [0.0, 2.0]]])  # at right angles
    parallel = torch.tensor([[[[3.0, 5.0]], [[0.0, 0.0]]]])  # 1 2 1 2: the same direction at both places
    assert similarity_losses(patches, parallel, (1, 2)).tolist() == pytest.approx(
        [2 / 4]
    )  # the two pairs of unlike places
    opposite = torch.tensor([[[[1.0, -1.0]], [[0.0, 0.0]]]])
    assert similarity_losses(patches, opposite, (1, 2)).tolist() == pytest.approx([2 / 4])
    assert similarity_losses(patches, torch.tensor([[[[9.0, 0.0]], [[0.0, 1.0]]]]), (1, 2)).tolist() == pytest.approx(
        [0.0]
    )


def test_a_finer_map_is_averaged_over_each_patch() -> None:
    patches, fine = torch.randn(2, 4, 5), torch.randn(2, 3, 6, 4)
    coarse = torch.stack(
        [fine[:, :, 3 * i : 3 * i + 3, 2 * j : 2 * j + 2].mean((2, 3)) for i in (0, 1) for j in (0, 1)]
    )
    expected = similarity_losses(patches, coarse.permute(1, 2, 0).reshape(2, 3, 2, 2), (2, 2))
    torch.testing.assert_close(similarity_losses(patches, fine, (2, 2)), expected)


def student_of(**settings: Any) -> VisionTransformer:
    sizes = {"image_size": 16, "patch_size": 4, "width": 16, "depth": 4, "num_heads": 2, "num_classes": 3}
    model = create_model("vit", **{**sizes, **settings})
    assert isinstance(model, VisionTransformer)
    return model.train()


def teacher_of(**settings: Any) -> torch.nn.Module:
    return create_model("resnet20", num_classes=3, image_size=16, **settings).eval().requires_grad_(False)


def test_blocks_are_spread_over_the_maps_and_only_those_before_the_last_one_watched_learn() -> None:
    student, teacher = student_of(), teacher_of()
    guidance = Guidance(student, teacher, (16, 16), "T")
    assert [tuple(each.shape[2:]) for each in guidance.maps(torch.zeros(1, 3, 16, 16))] == [(16, 16)] * 2 + [
        (8, 8),
        (4, 4),
    ]
    assert guidance.blocks == [0, 1, 2, 3]
    images = torch.rand(2, 3, 16, 16)
    student(images)
    losses = guidance.losses(images)
    assert losses.shape == (2,)
    losses.sum().backward()
    assert student.head.weight.grad is None
    gradient = student.blocks[0].get_parameter("attention.qkv.weight").grad
    assert gradient is not None
    assert gradient.any()
    before = float(losses.detach().sum())
    with torch.no_grad():
        for parameter in student.parameters():
            if parameter.grad is not None:
                parameter.sub_(parameter.grad, alpha=0.05)
    student(images)
    assert float(guidance.losses(images).detach().sum()) < before


def test_the_loss_is_the_mean_over_the_maps() -> None:
    student, teacher, images = student_of(), teacher_of(), torch.rand(2, 3, 16, 16)
    guidance, outputs = Guidance(student, teacher, (16, 16), "T"), list[torch.Tensor]()
    for block in student.blocks:
        block.register_forward_hook(lambda _, __, output: outputs.append(output))
    student(images)
    maps = guidance.maps(images)
    each = [similarity_losses(output[:, 1:], one, (4, 4)) for output, one in zip(outputs, maps, strict=True)]
    torch.testing.assert_close(guidance.losses(images), torch.stack(each).mean(dim=0))


@pytest.mark.parametrize("depth", range(1, 7))
def test_deeper_maps_guide_deeper_blocks(depth: int) -> None:
    blocks = Guidance(student_of(depth=depth), teacher_of(), (16, 16), "T").blocks
    assert blocks == sorted(blocks)
    assert blocks[0] >= 0
    assert blocks[-1] == depth - 1


def test_the_class_token_is_left_out_and_evaluation_keeps_nothing() -> None:
    student = student_of()
    guidance = Guidance(student, teacher_of(), (16, 16), "T")
    student.eval()
    with torch.no_grad():
        student(torch.rand(1, 3, 16, 16))
    assert not guidance._outputs
    assert student_of().num_prefix_tokens == 1


def test_smaller_images_are_guided_by_the_same_maps() -> None:
    """At a smaller size a rounded map may be fine enough that is not at the full one."""
    sizes: dict[str, Any] = {"patch_size": 14, "image_size": 224}
    student, teacher = student_of(**sizes), create_model("resnet18", num_classes=3).eval()
    guidance = Guidance(student, teacher, (224, 224), "T")
    for side in (224, 98):
        images = torch.rand(1, 3, side, side)
        student(images)
        assert guidance.losses(images).shape == (1,)
        assert len(guidance.maps(images)) == len(guidance.blocks) == 3


def frozen(model: VisionTransformer) -> VisionTransformer:
    model.blocks.requires_grad_(False)
    return model


@pytest.mark.parametrize(
    ("student", "teacher", "message"),
    [
        (lambda: create_model("resnet20", num_classes=3), teacher_of, "only a VisionTransformer has patches"),
        (lambda: student_of(patch_dropout_rate=0.5), teacher_of, r"model\.patch_dropout_rate: 0\.5"),
        (
            lambda: frozen(student_of()),
            teacher_of,
            r"distill\.kind: 'patches' is not valid: it teaches the blocks, which",
        ),
        (student_of, lambda: torch.nn.Linear(3, 3), r"'T' \(Linear\) gives no feature maps"),
        (
            lambda: student_of(patch_size=1, image_size=16),
            lambda: create_model("resnet18", num_classes=3).eval(),
            "as fine as",
        ),
    ],
)
def test_what_cannot_guide_is_refused(student: Any, teacher: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Guidance(student(), teacher(), (16, 16), "T")


@pytest.mark.usefixtures("no_figures")
def test_a_guided_run_differs_from_a_plain_one_and_resumes_to_the_bit(tmp_path: Path) -> None:
    shape: dict[str, Any] = dict.fromkeys(("patch_size", "depth", "num_heads", "width"))
    train(tiny(model={"name": "resnet20", **shape}, train={"epochs": 1}), tmp_path / "teacher")
    distill = {"teacher": str(tmp_path / "teacher"), "kind": "patches", "weight": 0.5}
    constant = {"schedule": "constant", "warmup_epochs": 0.0}
    guided = tiny(distill=distill, optim=constant)
    train(guided, tmp_path / "whole")
    train(tiny(guided, train={"epochs": 1}), tmp_path / "parts")
    train(tiny(guided, train={"epochs": 1}, seed=1), tmp_path / "another")
    (tmp_path / "teacher").rename(tmp_path / "moved")
    (tmp_path / "another").rename(tmp_path / "teacher")
    with pytest.raises(ValueError, match=r"^distill\.teacher: .* is not the teacher that the run was started with"):
        train(guided, tmp_path / "parts", resume=True)
    (tmp_path / "teacher").rename(tmp_path / "another")
    shutil.copytree(tmp_path / "parts", tmp_path / "older")
    in_state("task", "teacher", value=MISSING)(tmp_path / "older")  # so that nobody knows what the teacher was
    with pytest.raises(ValueError, match=r"^distill\.teacher: .*moved' is not valid: the run was started with"):
        train(tiny(guided, distill={"teacher": str(tmp_path / "moved")}), tmp_path / "older", resume=True)
    train(tiny(guided, distill={"teacher": str(tmp_path / "moved")}), tmp_path / "parts", resume=True)
    assert_same_bits(tmp_path / "whole", tmp_path / "parts")
    with_token = tiny(guided, model={"distillation_token": True}, distill={"teacher": str(tmp_path / "moved")})
    session = open_session(with_token, tmp_path / "token")
    head = session.unwrapped_model.get_parameter("distillation_head.weight")
    before = head.detach().clone()
    next(steps(session))
    assert not torch.equal(head, before), "no teacher speaks to this head, so it learns from the labels"
    recomputed = tiny(guided, distill={"teacher": str(tmp_path / "moved")}, train={"gradient_checkpointing": True})
    train(recomputed, tmp_path / "recomputed")
    assert_same_bits(tmp_path / "whole", tmp_path / "recomputed")
    train(tiny(optim=constant), tmp_path / "plain")
    guided_losses, plain_losses = (
        [line["train.loss"] for line in read_metrics(tmp_path / name) if "train.loss" in line]
        for name in ("whole", "plain")
    )
    assert guided_losses[0] != plain_losses[0]
