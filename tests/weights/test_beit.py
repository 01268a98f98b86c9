"""BEiT and BEiT-2 of timm: their own logits with their own weights, at other sizes too, and the way back.

transformers' BEiT and Data2Vec are among `hf_models.CASES`; how tables are resized is in `test_position_resize`.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import timm
import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from tests.weights import hf_models
from tests.weights.proof import compare_names
from vit.analysis.capture import capturing
from vit.config import ViTConfig
from vit.hub import create_model
from vit.libraries.timm_reading import config_of
from vit.models import VisionTransformer, build_model
from vit.weights.beit import BEIT
from vit.weights.convert import convert_model, is_round_trip_exact
from vit.weights.eva import EVA
from vit.weights.layout import invert_rules
from vit.weights.layouts import find_layout
from vit.weights.loader import load_weights

NAMES = timm.list_models(module="beit")
TABLES: dict[str, dict[str, Any]] = {
    "blocks": {},
    "shared": {"use_rel_pos_bias": False, "use_shared_rel_pos_bias": True},
    "both": {"use_shared_rel_pos_bias": True},
}
"""`relative_tables` → timm's options."""
SMALL: dict[str, Any] = {"depth": 2, "embed_dim": 48, "num_heads": 3, "num_classes": 7, "img_size": 64}


def library_model(name: str = "beit_base_patch16_224", **options: Any) -> nn.Module:
    """timm's model, its zeros filled."""
    torch.manual_seed(0)
    model = timm.create_model(name, **options).eval()
    with torch.no_grad():
        for key, parameter in model.named_parameters():
            is_matrix = parameter.dim() > 1 and not key.endswith(("table", "cls_token", "pos_embed"))
            parameter.add_(torch.randn_like(parameter), alpha=parameter[0].numel() ** -0.5 if is_matrix else 0.3)
    return model


def loaded(theirs: nn.Module) -> VisionTransformer:
    config = config_of(theirs, "timm's")
    ours = build_model(config)
    report = load_weights(ours, theirs.state_dict(), "timm's", source_grid=config.grid_size)
    assert len(report.loaded) == len(ours.state_dict())
    assert isinstance(ours, VisionTransformer)
    return ours.eval()


def largest_difference(theirs: nn.Module, images: Tensor) -> float:
    with torch.inference_mode():
        expected = theirs(images)
        return float((loaded(theirs)(images) - expected).abs().max() / expected.abs().max())


@pytest.mark.parametrize("name", NAMES)
def test_names_and_shapes_are_timms(name: str) -> None:
    with torch.device("meta"):
        theirs = timm.create_model(name)
    config, tensors = config_of(theirs, name), theirs.state_dict()
    assert find_layout(tensors, config) is BEIT
    assert compare_names(BEIT, name, config, tensors).loaded == len(tensors)


@pytest.mark.parametrize(
    "name", ["beit_base_patch16_224", pytest.param("beitv2_large_patch16_224", marks=pytest.mark.slow)]
)
def test_logits_are_timms(name: str) -> None:
    assert largest_difference(library_model(name, depth=2, num_classes=7), torch.randn(2, 3, 224, 224)) < 2e-6


@pytest.mark.parametrize("pooling", ["avg", "token"])
@pytest.mark.parametrize("tables", TABLES)
def test_every_kind_of_tables_and_pooling(tables: str, pooling: str) -> None:
    theirs = library_model(**SMALL, **TABLES[tables], global_pool=pooling)
    ours = loaded(theirs)
    assert ours.config.relative_tables == tables
    assert ours.config.final_norm == ("pooled" if pooling == "avg" else "tokens")
    assert find_layout(theirs.state_dict()) is BEIT
    assert is_round_trip_exact(BEIT, theirs.state_dict(), ours.config)
    assert largest_difference(theirs, torch.randn(2, 3, 64, 64)) < 2e-6
    assert convert_model(ours, "timm").layout is BEIT


@pytest.mark.parametrize("tables", TABLES)
def test_each_table_matters(tables: str) -> None:
    """Loaded without its biases, the model gives other logits: the comparison above would notice."""
    theirs = library_model(**SMALL, **TABLES[tables])
    ours, images = loaded(theirs), torch.randn(2, 3, 64, 64)
    with torch.no_grad():
        expected = theirs(images)
        for name in ("positions.table", "positions.prefix_table"):
            kept = ours.state_dict()[name].clone()
            ours.state_dict()[name].zero_()
            assert float((ours(images) - expected).abs().max() / expected.abs().max()) > 1e-3, name
            ours.state_dict()[name].copy_(kept)


def test_a_table_of_a_grid_that_is_not_square() -> None:
    assert largest_difference(library_model(**SMALL | {"img_size": (48, 112)}), torch.randn(2, 3, 48, 112)) < 2e-6


@pytest.mark.filterwarnings("ignore::UserWarning")  # in timm's interpolator
@pytest.mark.parametrize("size", [(98, 98), (56, 154)])
def test_weights_for_other_images_are_resized_as_timm_does(size: tuple[int, int]) -> None:
    theirs = library_model(**SMALL | {"img_size": 70, "patch_size": 14})
    config = config_of(theirs, "timm's")
    images, ours = torch.randn(2, 3, *size), loaded(theirs)
    theirs.set_input_size(img_size=size)  # type: ignore[operator]
    smaller = build_model(config_of(theirs, "timm's"))
    report = load_weights(smaller, invert_rules(BEIT, ours.state_dict(), config).tensors, "timm's")
    assert list(report.resized) == ["positions.table"]
    with torch.inference_mode():
        expected = theirs(images)
        for each in (ours, smaller.eval()):
            assert float((each(images) - expected).abs().max() / expected.abs().max()) < 1e-5


@pytest.mark.parametrize("tables", TABLES)
def test_attention_of_ours_is_timms(tables: str) -> None:
    """Captured from both, and proved by the layers' outputs; the biases are part of the maps."""
    theirs, images = library_model(**SMALL, **TABLES[tables]), torch.randn(2, 3, 64, 64)
    maps: dict[str, list[Tensor]] = {"ours": [], "theirs": []}
    for name, model in (("ours", loaded(theirs)), ("theirs", theirs)):
        with torch.no_grad(), capturing(model, lambda layer, own=maps[name]: own.append(layer.weights())):  # type: ignore[misc]
            model(images)
    assert len(maps["ours"]) == len(maps["theirs"]) == 2
    for ours, expected in zip(maps["ours"], maps["theirs"], strict=True):
        torch.testing.assert_close(ours, expected, rtol=1e-4, atol=1e-6)


def test_attention_of_timms_relpos_is_read() -> None:
    """`vit_relpos_*`, which timm alone computes, in blocks with a network each and with one for all."""
    for name in ("vit_relpos_small_patch16_224", "vit_srelpos_small_patch16_224"):
        torch.manual_seed(0)
        model = timm.create_model(name, depth=2, img_size=64, num_classes=7).eval()
        maps: list[Tensor] = []
        with torch.no_grad(), capturing(model, lambda layer, own=maps: own.append(layer.weights())):  # type: ignore[misc]
            model(torch.randn(2, 3, 64, 64))
        assert [tuple(each.shape) for each in maps] == [(2, 6, 16, 16)] * 2


def test_microsofts_files_in_pretraining_are_read(tmp_path: Path) -> None:
    """They hold the indices of the table too, what predicts visual words, and a norm of all tokens."""
    theirs = library_model(**SMALL | {"num_classes": 0}, **TABLES["shared"], global_pool="token")
    tensors = theirs.state_dict() | {
        "rel_pos_bias.relative_position_index": torch.zeros(17, 17, dtype=torch.int64),
        "mask_token": torch.zeros(1, 1, 48),
        "lm_head.weight": torch.zeros(5, 48),
    }
    file = tmp_path / "beit_pretrained.safetensors"
    save_file(tensors, file)
    with pytest.raises(ValueError, match=r"^model\.name: it is missing: .*the layout timm-beit, whose tensors do not"):
        create_model(pretrained=str(file))
    options = {"depth": 2, "width": 48, "num_heads": 3, "image_size": 64, "num_classes": 0}
    settings = {"relative_tables": "shared", "pooling": "cls", "final_norm": "tokens"}
    ours = create_model("beit_base_patch16_224", pretrained=str(file), **options, **settings).eval()
    images = torch.randn(2, 3, 64, 64)
    with torch.inference_mode():
        torch.testing.assert_close(ours(images), theirs(images), atol=1e-5, rtol=1e-5)


def test_without_tables_the_names_are_evas() -> None:
    theirs = library_model(**SMALL, use_rel_pos_bias=False, use_abs_pos_emb=True)
    assert find_layout(theirs.state_dict(), config_of(theirs, "timm's")) is EVA
    assert largest_difference(theirs, torch.randn(2, 3, 64, 64)) < 2e-6
    assert find_layout(theirs.state_dict()) is EVA, "its biases of queries and values are not in DeiT-III's files"


def test_positions_of_both_kinds_are_refused(tmp_path: Path) -> None:
    theirs = library_model(**SMALL, use_abs_pos_emb=True)
    with pytest.raises(ValueError, match="it has positions of both kinds, absolute and relative"):
        config_of(theirs, "timm's")
    case = hf_models.CASES["BeitModel"]
    settings = case.settings | {"use_absolute_position_embeddings": True}
    hf_models.saved(hf_models.Case("BeitModel", "BeitConfig", settings, hf_models.pooled), tmp_path)
    with pytest.raises(ValueError, match="positions of both kinds, absolute and relative, are not supported"):
        create_model(pretrained=str(tmp_path))


def test_images_of_transformers_beit_must_be_square(tmp_path: Path) -> None:
    """It reads a table of another shape transposed: its own numbers are not those that were trained."""
    settings = hf_models.CASES["BeitModel"].settings | {"image_size": [32, 48]}
    hf_models.saved(hf_models.Case("BeitModel", "BeitConfig", settings, hf_models.pooled), tmp_path)
    with pytest.raises(ValueError, match=r"image_size: \[32, 48\] is not valid: only squares are supported"):
        create_model(pretrained=str(tmp_path))


def test_a_table_of_no_grid_and_one_under_another_name_are_refused() -> None:
    theirs = library_model(**SMALL)
    config, tensors = config_of(theirs, "timm's"), dict(theirs.state_dict())
    table = "blocks.1.attn.relative_position_bias_table"
    with pytest.raises(ValueError, match=r"does not have .*positions\.table"):
        load_weights(build_model(config), {name: each for name, each in tensors.items() if name != table}, "file")
    wrong = {name: each[:-1] if name.endswith("_table") else each for name, each in tensors.items()}
    with pytest.raises(ValueError, match="48 offsets are those of no square grid"):
        load_weights(build_model(config), wrong, "file")
    plain = ViTConfig(image_size=(64, 64), width=48, depth=2, num_heads=3, num_classes=7)
    with pytest.raises(ValueError, match="it has relative position biases"):
        load_weights(build_model(plain), tensors, "file")


def test_what_timms_beit_lacks_is_refused() -> None:
    sizes: dict[str, Any] = {"image_size": (32, 32), "width": 48, "depth": 1, "num_heads": 3, "num_classes": 7}
    for options, line in (
        ({}, r"model\.relative_prefix False; it has true"),
        ({"relative_prefix": True, "num_registers": 2}, r"model\.num_registers 2; it has 0"),
    ):
        config = ViTConfig(**sizes, positions="relative", **options)  # type: ignore[arg-type]
        with pytest.raises(ValueError, match=line):
            convert_model(build_model(config), "timm")
