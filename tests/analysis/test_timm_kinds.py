"""Models that timm computes, small and at random weights, one of each kind: figures, frozen features and exports."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import timm
import torch
from einops import rearrange
from timm.models.vision_transformer import ParallelScalingBlock
from timm.models.vision_transformer_sam import Attention as SamAttention
from torch import Tensor, nn

from vit.analysis.capture import AttentionLayer, capture_attention, capturing
from vit.analysis.figures import FIGURES
from vit.analysis.head_ablation import attention_outputs, without_head
from vit.analysis.maps import attention_maps, relevance, rollout
from vit.analysis.model_structure import patch_grid, patch_size, residual_blocks, second_branches
from vit.analysis.norms import token_norms
from vit.analysis.patch_features import patches_after
from vit.analysis.streams import residual_streams
from vit.analysis.targets import AnalysisTarget, ImageSet
from vit.analysis.unsupported import Unsupported
from vit.config import Preprocessing
from vit.deployment.export import SUFFIXES, export_classifier
from vit.deployment.program import Format
from vit.engine import make_accelerator
from vit.evaluation.frozen_features import feature_reader, resolve_features
from vit.hub import OpenedModel
from vit.libraries import NEVER_TRAINED

pytestmark = pytest.mark.filterwarnings("ignore:::timm")

SMALL: dict[str, Any] = {"embed_dim": 48, "depth": 2, "num_heads": 3, "num_classes": 5, "img_size": 64}
WIDE = {"depth": 2, "num_classes": 5, "img_size": 64}
"""For models whose convolutional stem fixes the width."""
WHOLE_WINDOWS = SMALL | {"img_size": 224}
"""Images that are one window of SAM's."""
FLEXIBLE = {name: value for name, value in SMALL.items() if name != "img_size"}
GROUPED = SMALL | {"num_heads": 4, "num_kv_heads": (4, 2)}
OF_MAPS = (
    *("attention_distance", "attention_distance_sorted", "attention_overlays", "attention_heads"),
    *("attention_entropy", "head_ablation"),
)
NO_POSITIONS = {"position_similarity": "it has no position vectors that are known"}
IN_WINDOWS = dict.fromkeys(OF_MAPS, "it attends in windows of 14×14, and has no map of all 4×4 patches")
DIFFERENTIAL = dict.fromkeys(OF_MAPS, "its map is the difference of two")
PARALLEL = {"residual_streams": "is not known to add attention and after it feed-forward"}
CONVOLUTIONS = PARALLEL | NO_POSITIONS | dict.fromkeys(OF_MAPS, "no attention") | {"token_norms": "give maps"}

KINDS: dict[str, tuple[str, dict[str, Any], dict[str, str]]] = {
    "stem of a convolution": ("vit_tiny_r_s16_p8_224", SMALL, {}),
    "parallel branches": ("vit_base_patch16_xp_224", SMALL, PARALLEL),
    "attention twice at once": ("vit_small_patch16_18x2_224", SMALL, {}),
    "relative positions": ("vit_relpos_small_patch16_224", SMALL, NO_POSITIONS),
    "windows": ("samvit_base_patch16_224", SMALL, NO_POSITIONS | IN_WINDOWS),
    "differential": ("vit_dwee_patch16_reg1_gap_256", SMALL, DIFFERENTIAL),
    "differential, one place": ("vit_dlittle_patch16_reg1_gap_256", SMALL, DIFFERENTIAL),
    "differential, parallel": ("vit_dpwee_patch16_reg1_gap_256", SMALL, DIFFERENTIAL | PARALLEL),
    "parallel, registers": ("vit_pwee_patch16_reg1_gap_256", SMALL, PARALLEL),
    "stem, MobileCLIP": ("vit_base_mci_224", WIDE, {}),
    "stem, ResNet V2": ("vit_small_r26_s32_224", SMALL, {}),
    "stem, ResNet": ("vit_small_resnet50d_s16_224", SMALL, {}),
    "stem, ViTamin": ("vitamin_small_224", WIDE, {}),
    "relative positions, class token": ("vit_relpos_medium_patch16_cls_224", SMALL, NO_POSITIONS),
    "relative positions, post-norm": ("vit_relpos_medium_patch16_rpn_224", SMALL, NO_POSITIONS),
    "relative positions, shared": ("vit_srelpos_small_patch16_224", SMALL, NO_POSITIONS),
    "post-norm": ("vit_base_patch16_rpn_224", SMALL, {}),
    "post-norm, EVA-02": ("eva02_enormous_patch14_clip_224", SMALL | {"img_size": 56}, {}),
    "norms inside": ("beit3_base_patch16_224", SMALL, {}),
    "grouped queries": ("vit_base_patch16_sapiens2", GROUPED, {}),
    "one window": ("samvit_base_patch16_224", WHOLE_WINDOWS, NO_POSITIONS),
    "rest of pixels": ("vit_so400m_patch14_siglip_384", SMALL | {"img_size": 62}, {}),
    "factorized positions": ("naflexvit_base_patch16_parfac_gap", FLEXIBLE, NO_POSITIONS),
    "ResNet of CLIP": ("resnet50_clip", {"num_classes": 5, "img_size": 64}, CONVOLUTIONS),
    "ResNet of CLIP, pooled": ("resnet50_clip_gap", {"num_classes": 5}, CONVOLUTIONS),
}
"""Kind → timm's name, options, and the figures that it lacks with the reasons."""
QUICK = tuple(KINDS)[:6]
ALL = [pytest.param(kind, marks=[] if kind in QUICK else pytest.mark.slow) for kind in KINDS]
COMPILED = ("windows", "grouped queries")
"""Exported in every format; the compiler takes half a minute and more for each of the others."""
EXPORTED = [
    pytest.param(
        kind,
        format,
        marks=[] if kind in COMPILED or (kind in QUICK and format != "compiled") else pytest.mark.exhaustive,
    )
    for kind in KINDS
    for format in SUFFIXES
]


def build(kind: str) -> tuple[Any, int]:
    """The model, with no number left at zero, and the side of its images."""
    name, options, _ = KINDS[kind]
    torch.manual_seed(0)
    model = timm.create_model(name, **options).eval()
    for parameter in model.parameters():
        parameter.data.add_(torch.randn_like(parameter), alpha=0.05)
    return model, options.get("img_size", 64)


def opened(kind: str) -> OpenedModel:
    model, side = build(kind)
    return OpenedModel(
        name=kind,
        source=f"timm:{KINDS[kind][0]}",
        model=model,
        provenance=NEVER_TRAINED,
        stated_preprocessing=Preprocessing(image_size=(side, side)),
        class_names=list("abcde"),
        num_classes=5,
        implementation="timm",
    )


def target(kind: str) -> AnalysisTarget:
    model, side = build(kind)
    images = ImageSet(
        pixels=torch.randint(0, 256, (4, 3, side, side), dtype=torch.uint8),
        names=list("wxyz"),
        source="made",
        labels=torch.arange(4),
        class_names=tuple("abcde"),
    )
    preprocessing, classes = Preprocessing(image_size=(side, side)), tuple("abcde")
    return AnalysisTarget(name=kind, model=model, preprocessing=preprocessing, images=images, class_names=classes)


@pytest.mark.parametrize("kind", ALL)
def test_every_figure_or_a_true_reason(kind: str) -> None:
    from matplotlib import pyplot

    given, reasons = target(kind), dict[str, str]()
    names = ("token_norms", "attention_overlays", "residual_streams") if kind in QUICK else tuple(FIGURES)
    for name in names:
        try:
            assert "No relevance" not in FIGURES[name](given).caption
        except Unsupported as error:
            reasons[name] = str(error)
        pyplot.close("all")
    expected = {name: why for name, why in KINDS[kind][2].items() if name in names}
    assert set(reasons) - {"layer_probe"} == set(expected)
    for name, why in expected.items():
        assert why in reasons[name]
        assert "\n" not in reasons[name]


@pytest.mark.parametrize("kind", ALL)
def test_frozen_features(kind: str) -> None:
    model = opened(kind)
    only_head = any(part in KINDS[kind][0] for part in ("samvit", "resnet50_clip"))
    kinds = list(dict.fromkeys(resolve_features(model, ["head"] if only_head else ["head", "patches"]).values()))
    side = model.preprocessing.image_size[0]
    found = feature_reader(model, kinds, make_accelerator("cpu", "fp32"))(
        torch.randint(0, 256, (3, 3, side, side), dtype=torch.uint8)
    )
    for features in found.values():
        assert features.shape[0] == 3
        assert features.isfinite().all()
        assert float(features.std(dim=0).max()) > 0
    if only_head and kind != "ResNet of CLIP, pooled":
        with pytest.raises(ValueError, match="is computed by timm, and only its head's input is read: 'head'"):
            resolve_features(model, ["patches"])


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:::torch|onnxscript|copyreg", "ignore::DeprecationWarning")
@pytest.mark.parametrize(("kind", "format"), EXPORTED)
def test_exported_files_answer_like_the_model(kind: str, format: Format, tmp_path: Path) -> None:
    if format == "onnx":
        pytest.importorskip("onnxruntime")
    found = export_classifier(opened(kind), format, tmp_path / f"model{SUFFIXES[format]}", logits=True)
    assert found.largest > 0.01
    assert max(found.differences.values()) < 1e-4 * max(found.largest, 1)


# ------------------------------------------------------------------ where things are


def pictures(side: int, count: int = 2) -> Tensor:
    return torch.randn(count, 3, side, side, generator=torch.Generator().manual_seed(1))


def layers_of(model: nn.Module, images: Tensor) -> list[AttentionLayer]:
    layers: list[AttentionLayer] = []
    with torch.no_grad():
        capture_attention(model, images, layers.append)
    return layers


@pytest.mark.parametrize(
    ("kind", "step"), [("stem of a convolution", 32), pytest.param("stem, ResNet", 16, marks=pytest.mark.slow)]
)
def test_a_hybrids_patches_are_those_of_its_tokens_and_not_of_its_first_convolution(kind: str, step: int) -> None:
    model, side = build(kind)
    assert patch_size(model) == (step, step)
    assert patch_grid(model, (side, side)) == (side // step, side // step)
    assert list(residual_blocks(model)) == ["blocks.0", "blocks.1"], "none of the stem's"
    images = pictures(side)
    images[0, :, :step, step:] += 9  # it changes the second patch of the first row most
    with torch.no_grad():
        change = [model.patch_embed(each)[0] for each in (images, pictures(side))]
    patches = rearrange((change[0] - change[1]).norm(dim=-1), "(gh gw) -> gh gw", gh=side // step)
    assert (patches == patches.max()).nonzero().tolist()[0][0] == 0
    assert int(patches[0, :2].argmax()) == 1


def test_a_map_with_channels_last_is_read_as_patches() -> None:
    model, side = build("windows")
    images, outputs = pictures(side), list[Tensor]()
    hook = model.blocks[1].register_forward_hook(lambda *call: outputs.append(call[2]))
    with torch.no_grad():
        model(images)
    hook.remove()
    found, name = patches_after(model, images)
    assert name == "blocks.1"
    torch.testing.assert_close(found, outputs[0].double())
    norms = token_norms(model, images)
    assert float(norms.highest[1]) == pytest.approx(float(outputs[0].double().norm(dim=-1).max()))


@pytest.mark.parametrize("fused", [False, True])
def test_a_block_of_parallel_branches_is_read_as_it_computes(fused: bool) -> None:
    torch.manual_seed(0)
    block: Any = ParallelScalingBlock(12, 3, qk_norm=True, fuse_out_proj=fused, init_values=0.5)
    tokens, layers = torch.randn(2, 7, 12), list[AttentionLayer]()
    with torch.no_grad(), capturing(block, layers.append):
        output = block(tokens)
    query, key = block.in_proj(block.in_norm(tokens)).split(block.in_split, dim=-1)[1:3]
    query, key = (rearrange(each, "b n (h d) -> b h n d", h=3) for each in (query, key))
    query, key = block.q_norm(query), block.k_norm(key)
    torch.testing.assert_close(layers[0].weights(), (query @ key.mT / 2).softmax(dim=-1))
    torch.testing.assert_close(layers[0].output, output)
    ((_, place),) = attention_outputs(block).items()
    with torch.no_grad(), without_head(place, 1):
        attended = (layers[0].weights() @ layers[0].value) * torch.tensor([1.0, 0.0, 1.0])[:, None, None]
        torch.testing.assert_close(block(tokens), layers[0].finish(attended, slice(None)))


def test_a_bias_that_sams_queries_decide_on_is_read() -> None:
    torch.manual_seed(0)
    module: Any = SamAttention(12, 3, use_rel_pos=True, input_size=(2, 3))
    for table in (module.rel_pos_h, module.rel_pos_w):
        nn.init.normal_(table)
    layers: list[AttentionLayer] = []
    with torch.no_grad(), capturing(module, layers.append):
        module(torch.randn(2, 2, 3, 12))
    layer = layers[0]
    assert layer.window == (2, 3)
    assert layer.bias is not None
    rows, columns = torch.arange(6) // 3, torch.arange(6) % 3
    by_row = module.rel_pos_h[rows[:, None] - rows + 1]  # n m d
    by_column = module.rel_pos_w[columns[:, None] - columns + 2]
    expected = torch.einsum("bhnd,nmd->bhnm", layer.query, by_row + by_column)
    torch.testing.assert_close(layer.bias, expected)


def test_relevance_goes_through_a_map() -> None:
    model, _ = build("windows")
    for block in model.blocks:
        block.window_size = 0
        block.attn.use_rel_pos = False
    found = relevance(model, pictures(64))
    assert found.maps.shape == (2, 4, 4)
    assert float(found.maps.max()) > 0


def test_modules_that_attend_at_once_are_one_layer_of_a_rollout() -> None:
    model, side = build("attention twice at once")
    images = pictures(side)
    maps = [layer.weights() for layer in layers_of(model, images)]
    assert len(maps) == 4
    expected = rollout([torch.cat(maps[:2], dim=1), torch.cat(maps[2:], dim=1)])
    found = attention_maps(model, images)
    assert found.maps.shape[0] == 4
    torch.testing.assert_close(found.rollout.flatten(1), expected[:, 0, 1:])


def test_modules_that_attend_at_once_are_one_block_in_pictures() -> None:
    model, side = build("attention twice at once")
    found = attention_maps(model, pictures(side))
    torch.testing.assert_close(found.overlays()["last block"], found.maps[2:].mean(dim=(0, 2)))
    assert [label.get_text() for label in found.plot().axes[1].get_yticklabels()] == ["1", "1", "2", "2"]


@pytest.mark.parametrize(
    "kind", ["attention twice at once", pytest.param("relative positions, post-norm", marks=pytest.mark.slow)]
)
def test_the_stream_between_the_branches_is_what_attention_left(kind: str) -> None:
    model, side = build(kind)
    block, kept = model.blocks[0], dict[str, Tensor]()
    hooks = [
        block.register_forward_pre_hook(lambda *call: kept.update(before=call[1][0])),
        second_branches(model)["blocks.0"].register_forward_pre_hook(lambda *call: kept.update(between=call[1][0])),
    ]
    with torch.no_grad():
        model(pictures(side))
        if hasattr(block, "attns"):
            expected = kept["before"] + sum(attend(kept["before"]) for attend in block.attns)
        else:
            expected = kept["before"] + block.norm1(block.attn(kept["before"]))
    for hook in hooks:
        hook.remove()
    torch.testing.assert_close(kept["between"], expected)
    assert bool(residual_streams(model, pictures(side)).patch_ratio.isfinite().all())
