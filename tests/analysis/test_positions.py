"""Similarity of positions: closed forms of every kind, and the tables of other libraries."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from timm.layers import resample_abs_pos_embed
from torch import Tensor, nn
from torchvision.models.vision_transformer import interpolate_embeddings

from tests.analysis.models import hugging, timm_model, torchvision_model
from vit.analysis.positions import PositionTable, position_similarity, position_vectors, similarity_of
from vit.config import ViTConfig
from vit.config.vit import PositionKind
from vit.layers.position_resize import resize_grid
from vit.layers.positions import sincos_2d
from vit.models import VisionTransformer

SMALL: dict[str, Any] = {
    "image_size": (24, 40),
    "patch_size": (8, 8),
    "width": 24,
    "depth": 1,
    "num_heads": 2,
    "num_classes": 3,
}


def table(vectors: Tensor, grid: tuple[int, int], kind: str = "learned_1d") -> PositionTable:
    return PositionTable(vectors=vectors, grid=grid, kind=kind)


def test_a_table_by_hand() -> None:
    vectors = torch.tensor([[2.0, 0.0], [1.0, 1.0], [0.0, 3.0]])
    found = similarity_of(table(vectors, (1, 3)))
    half = math.sqrt(0.5)
    expected = torch.tensor([[1, half, 0], [half, 1, half], [0, half, 1]], dtype=torch.float64)
    torch.testing.assert_close(found.similarity[0, :, 0], expected)
    assert found.distance_correlation == pytest.approx(-1)
    assert (found.row_share, found.column_share) == (0, pytest.approx(1))


def test_vectors_that_know_their_column_only_are_all_column() -> None:
    columns = torch.randn(5, 7)
    found = similarity_of(table(columns.repeat(3, 1), (3, 5)))
    assert found.column_share == pytest.approx(1)
    assert found.row_share == pytest.approx(0, abs=1e-12)


def test_sincos_similarity_is_block_toeplitz_and_its_vectors_are_equally_long() -> None:
    gh, gw, width = 4, 6, 64
    vectors = sincos_2d((gh, gw), width)[0]
    torch.testing.assert_close(vectors.square().sum(dim=1), torch.full((gh * gw,), width / 2))
    found = similarity_of(table(vectors, (gh, gw), "sincos_2d"))
    by_offset: dict[tuple[int, int], float] = {}
    for r in range(gh):
        for c in range(gw):
            for y in range(gh):
                for x in range(gw):
                    value = float(found.similarity[r, c, y, x])
                    assert value == pytest.approx(by_offset.setdefault((y - r, x - c), value), abs=1e-6)
    rates = 10_000.0 ** -torch.linspace(0, 1, width // 4, dtype=torch.float64)
    assert by_offset[2, 3] == pytest.approx(float(((2 * rates).cos() + (3 * rates).cos()).mean() / 2), abs=1e-6)
    assert found.row_share + found.column_share == pytest.approx(1, abs=1e-6)


def test_the_kernel_of_rope_is_the_mean_score_over_random_queries() -> None:
    torch.manual_seed(0)
    model = VisionTransformer(ViTConfig(**{**SMALL, "width": 32}, positions="rope"))
    found = position_similarity(model, kind="rope").similarity
    rotations = model.positions.rotations((3, 5), None, torch.device("cpu"))
    assert rotations is not None
    rotate = rotations[0]
    queries = nn.functional.normalize(torch.randn(40_000, 16), dim=1)
    turned = rotate(torch.cat((torch.zeros(40_000, 1, 1, 16), queries[:, None, None].expand(-1, -1, 15, -1)), dim=2))
    scores = torch.einsum("bhnd,bhmd->nm", turned[:, :, 1:], turned[:, :, 1:]) / len(queries)
    torch.testing.assert_close(found.flatten(0, 1).flatten(1).float(), scores, atol=0.01, rtol=0)


def test_axes_of_equal_length_are_row_and_column_and_nothing_else() -> None:
    model = VisionTransformer(ViTConfig(**SMALL, positions="learned_2d"))
    with torch.no_grad():
        for axis in (model.get_parameter("positions.rows"), model.get_parameter("positions.columns")):
            axis.copy_(nn.functional.normalize(torch.randn_like(axis), dim=1))
    found = position_similarity(model)
    assert found.kind == "learned_2d"
    assert found.row_share + found.column_share == pytest.approx(1)
    assert found.grid == (3, 5)


def test_a_larger_grid_is_the_one_that_the_model_computes_with() -> None:
    model = VisionTransformer(ViTConfig(**SMALL, positions="learned_1d"))
    learned = nn.init.normal_(model.get_parameter("positions.grid"))
    vectors = position_vectors(model, (6, 4))["learned_1d"].vectors
    torch.testing.assert_close(vectors, resize_grid(learned.detach(), (3, 5), (6, 4))[0])


def test_the_models_own_grid_as_a_list_is_not_resized() -> None:
    model = timm_model("vit_tiny_patch16_224", img_size=32)
    found, own = (position_vectors(model, grid)["learned"] for grid in ([2, 2], None))  # type: ignore[arg-type]
    torch.testing.assert_close(found.vectors, own.vectors, rtol=0, atol=0)


@pytest.mark.parametrize("kind", ["relative", "none"])
def test_kinds_without_vectors_are_refused(kind: PositionKind) -> None:
    with pytest.raises(ValueError, match=r"no (vectors to compare|position vectors)"):
        position_similarity(VisionTransformer(ViTConfig(**SMALL, positions=kind)))


def test_equal_positions_have_no_correlation_and_no_shares() -> None:
    found = similarity_of(table(torch.ones(6, 4), (2, 3)))
    assert all(math.isnan(v) for v in (found.distance_correlation, found.row_share, found.column_share))


OTHERS = {
    "timm": (lambda: timm_model("vit_tiny_patch16_224"), "learned", (14, 14), lambda m: m.pos_embed[0, 1:]),
    "timm registers": (
        lambda: timm_model("vit_small_patch14_reg4_dinov2", img_size=(28, 42)),
        "learned",
        (2, 3),
        lambda m: m.pos_embed[0],
    ),
    "timm rope": (lambda: timm_model("vit_small_patch16_rope_224"), "rope", (14, 14), None),
    "timm mixed rope": (lambda: timm_model("vit_small_patch16_rope_mixed_224"), "rope", (14, 14), None),
    "torchvision": (torchvision_model, "learned", (4, 4), lambda m: m.encoder.pos_embedding[0, 1:]),
    "vit": (lambda: hugging("ViT"), "learned", (4, 4), lambda m: m.embeddings.position_embeddings[0, 1:]),
    "clip": (lambda: hugging("CLIPVision"), "learned", (4, 4), lambda m: m.embeddings.position_embedding.weight[1:]),
    "siglip": (lambda: hugging("SiglipVision"), "learned", (4, 4), lambda m: m.embeddings.position_embedding.weight),
    "dinov3": (lambda: hugging("DINOv3ViT"), "rope", (4, 4), None),
}


@pytest.mark.parametrize("name", OTHERS)
def test_the_tables_of_other_libraries(name: str) -> None:
    build, kind, grid, rows = OTHERS[name]
    model = build()
    found = position_vectors(model)[kind]
    assert found.grid == grid
    assert len(found.vectors) == grid[0] * grid[1]
    if rows is not None:
        torch.testing.assert_close(found.vectors, rows(model).detach())
    else:
        diagonal = torch.arange(grid[0])
        similarity = similarity_of(found).similarity
        torch.testing.assert_close(similarity[diagonal, diagonal, diagonal, diagonal], torch.ones(grid[0]).double())
    assert position_vectors(model, (3, 5))[kind].vectors.shape[0] == 15


def _of_transformers(model: Any, grid: tuple[int, int]) -> Tensor:
    """Its own `interpolate_pos_encoding`, for images of that grid, without the class token's row."""
    with_class = any(name.endswith(("cls_token", "class_embedding")) for name, _ in model.named_parameters())
    embeddings = next(module for module in model.modules() if hasattr(module, "interpolate_pos_encoding"))
    tokens = torch.zeros(1, grid[0] * grid[1] + with_class, 24)
    rows: Tensor = embeddings.interpolate_pos_encoding(tokens, grid[0] * 8, grid[1] * 8)
    return rows[0, int(with_class) :]


def _of_siglip2(model: Any, grid: tuple[int, int]) -> Tensor:
    embeddings = model.embeddings
    table = embeddings.position_embedding.weight.reshape(4, 4, 24)
    rows: Tensor = embeddings.resize_positional_embeddings(table, torch.tensor([grid]), grid[0] * grid[1])
    return rows[0]


def _of_timm(model: Any, grid: tuple[int, int]) -> Tensor:
    return resample_abs_pos_embed(model.pos_embed, list(grid), num_prefix_tokens=1)[0, 1:]


def _of_naflex(model: Any, grid: tuple[int, int]) -> Tensor:
    rows = torch.zeros(1, grid[0] * grid[1], 24)
    model.embeds._apply_learned_pos_embed(rows, list(grid))
    return rows[0]


def _of_torchvision(model: Any, grid: tuple[int, int]) -> Tensor:
    state = {"encoder.pos_embedding": model.encoder.pos_embedding}
    return interpolate_embeddings(grid[0] * 8, 8, state)["encoder.pos_embedding"][0, 1:]


RESIZED: dict[str, tuple[Any, Any, tuple[tuple[int, int], ...]]] = {
    **{
        kind: (lambda kind=kind: hugging(kind), _of_transformers, ((3, 5), (6, 7)))
        for kind in ("ViT", "Dinov2", "Dinov2WithRegisters", "ViTMSN", "ViTMAE", "IJepa", "CLIPVision", "SiglipVision")
    },
    "Siglip2Vision": (
        lambda: hugging("Siglip2Vision", num_patches=16, image_size=None),
        _of_siglip2,
        ((3, 5), (6, 7)),
    ),
    "timm": (lambda: timm_model("vit_tiny_patch16_224", img_size=64), _of_timm, ((3, 5), (6, 7))),
    "NaFlexVit": (
        lambda: timm_model("naflexvit_base_patch16_radio_v3", embed_dim=24, num_heads=2, pos_embed_grid_size=(4, 4)),
        _of_naflex,
        ((3, 5), (6, 7), (2, 2)),
    ),
    "torchvision": (torchvision_model, _of_torchvision, ((3, 3), (7, 7))),
}


@pytest.mark.parametrize("name", RESIZED)
@torch.no_grad()
def test_tables_are_resized_as_their_library_resizes_them(name: str) -> None:
    build, theirs, grids = RESIZED[name]
    torch.manual_seed(0)
    model = build()
    for key, parameter in model.named_parameters():
        if "pos" in key:
            parameter.normal_()
    for grid in grids:
        found = position_vectors(model, grid)["learned"]
        assert found.grid == grid
        torch.testing.assert_close(found.vectors, theirs(model, grid), atol=1e-5, rtol=1e-5)


def test_a_table_of_no_known_library_is_not_resized() -> None:
    class Unknown(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.image_size = 32
            self.patches = nn.Conv2d(3, 8, 8, 8)
            self.pos_embed = nn.Parameter(torch.randn(1, 16, 8))

    assert position_vectors(Unknown())["learned"].grid == (4, 4)
    with pytest.raises(ValueError, match="how Unknown resizes its positions is not known; known are timm, "):
        position_vectors(Unknown(), (2, 2))


def test_timms_rotary_kernel_depends_on_the_offset_alone() -> None:
    found = similarity_of(position_vectors(timm_model("vit_small_patch16_rope_224"), (4, 5))["rope"]).similarity
    torch.testing.assert_close(found[0, 0, :3, :4], found[1, 1, 1:, 1:], atol=1e-6, rtol=0)


def test_large_grids_are_shown_by_some_of_their_tiles() -> None:
    found = similarity_of(table(sincos_2d((20, 9), 16)[0], (20, 9)))
    axes = found.plot(most=5).axes[0]
    assert [label.get_text() for label in axes.get_yticklabels()] == ["2", "6", "10", "14", "18"]
    assert [label.get_text() for label in axes.get_xticklabels()] == ["1", "5", "9"]
    shown: Any = axes.images[0].get_array()
    assert shown.mask.sum() > 0
    assert shown[0, 0] == pytest.approx(float(found.similarity[1, 0, 0, 0]))
    assert shown[-1, -1] == pytest.approx(float(found.similarity[17, 8, 19, 8]))
    gap = 2  # an eighth of a tile of 20 rows
    tile = shown[3 * (20 + gap) : 3 * (20 + gap) + 20, 9 + gap : 9 + gap + 9]
    torch.testing.assert_close(torch.from_numpy(tile.filled()), found.similarity[13, 4])
    assert (found.step(5), found.step()) == (4, 2)


def test_a_kind_of_positions_that_the_model_lacks() -> None:
    with pytest.raises(ValueError, match="kind: 'rope' is not valid: the model has learned_1d"):
        position_similarity(VisionTransformer(ViTConfig(**SMALL, positions="learned_1d")), kind="rope")
