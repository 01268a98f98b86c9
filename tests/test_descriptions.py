"""The texts and choices of settings, which `--help` and the documentation list."""

from __future__ import annotations

import pytest

from vit.config.descriptions import describe_settings
from vit.settings import flat_settings
from vit.tasks import TASKS


@pytest.mark.parametrize("task", TASKS)
def test_every_setting_has_a_text_whose_first_sentence_is_short(task: str) -> None:
    kind = TASKS[task].run_config
    described = [each for section in describe_settings(kind).values() for each in section]
    assert [each.name for each in described if not each.text] == []
    assert [each.name for each in described if len(each.first_sentence) > 130] == []
    assert {each.name for each in described} == set(flat_settings(kind()))  # type: ignore[call-arg]


def test_choices_are_read_from_the_annotations() -> None:
    sections = describe_settings(TASKS["classification"].run_config)
    choices = {each.name: each.choices for section in sections.values() for each in section}
    assert choices["optim.name"] == ("adamw", "sgd", "lamb", "muon")
    assert choices["train.trackers"] == ("tensorboard", "wandb", "mlflow")
    assert choices["model.stem"] == ("patch", "conv", "resnet", "imagenet", "cifar", "deep"), "of both architectures"
    assert choices["data.name"][:2] == ("digits", "cifar10")
    assert choices["optim.lr"] == choices["task"] == ()


def test_a_setting_of_two_architectures_has_both_texts() -> None:
    texts = {each.name: each.text for each in describe_settings(TASKS["classification"].run_config)["model"]}
    assert texts["model.width"] == "Width of the tokens. ResNets: channels of the first stage, and of the stem."
    assert texts["model.shortcut"].startswith("ResNets: the way around")
    assert "ResNets" not in texts["model.image_size"], "said once where it is the same"
