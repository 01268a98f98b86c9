"""Muon: what orthogonalisation promises, and torch's own Muon step for step."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from vit.training.muon import Muon, orthogonalize


def random_matrix(rows: int, columns: int, seed: int = 0) -> Tensor:
    return torch.randn(rows, columns, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize(("rows", "columns"), [(16, 16), (16, 48), (48, 16), (5, 97)])
def test_singular_values_go_to_about_one_and_vectors_stay(rows: int, columns: int) -> None:
    matrix = random_matrix(rows, columns)
    result = orthogonalize(matrix[None])[0]
    u, values, vh = torch.linalg.svd(matrix, full_matrices=False)
    projected = u.mT @ result @ vh.mT
    large = values > values.max() * 0.02  # five steps lift what is not far below the rest
    assert ((projected.diag()[large] > 0.6) & (projected.diag()[large] < 1.3)).all()
    assert (projected - projected.diag().diag()).abs().max() < 1e-3


def test_matrices_of_a_batch_do_not_see_each_other() -> None:
    a, b = random_matrix(6, 10), random_matrix(6, 10, seed=1) * 100
    both = orthogonalize(torch.stack([a, b]))
    torch.testing.assert_close(both[0], orthogonalize(a[None])[0])
    torch.testing.assert_close(both[1], orthogonalize(b[None])[0])


def test_size_does_not_matter_and_zero_stays_zero() -> None:
    matrix = random_matrix(6, 10)
    torch.testing.assert_close(orthogonalize(1000 * matrix[None]), orthogonalize(matrix[None]))
    assert torch.equal(orthogonalize(torch.zeros(1, 4, 5)), torch.zeros(1, 4, 5))


@pytest.mark.parametrize("shape", [(16, 16), (32, 16), (16, 40)])
def test_steps_are_torchs(shape: tuple[int, int]) -> None:
    """torch.optim.Muon computes in bfloat16, so the tolerance is bfloat16's."""
    start = random_matrix(*shape)
    ours, theirs = nn.Parameter(start.clone()), nn.Parameter(start.clone())
    settings: dict[str, Any] = {"lr": 0.02, "weight_decay": 0.1, "momentum": 0.9}
    one = Muon([ours], **settings)
    other = torch.optim.Muon([theirs], nesterov=True, adjust_lr_fn="match_rms_adamw", **settings)
    for step in range(4):
        gradient = random_matrix(*shape, seed=10 + step)
        ours.grad, theirs.grad = gradient.clone(), gradient.clone()
        one.step()
        other.step()
    moved, expected = ours.detach() - start, theirs.detach() - start
    assert (moved - expected).norm() < 0.02 * expected.norm()


def test_one_step_by_hand() -> None:
    start, gradient = random_matrix(4, 6), random_matrix(4, 6, seed=3)
    parameter = nn.Parameter(start.clone())
    parameter.grad = gradient.clone()
    Muon([parameter], lr=0.1, weight_decay=0.5, momentum=0.75).step()
    nesterov = gradient * 0.25 + 0.75 * (0.25 * gradient)
    expected = start * (1 - 0.05) - 0.1 * 0.2 * 6**0.5 * orthogonalize(nesterov[None])[0]
    torch.testing.assert_close(parameter.detach(), expected)


def test_a_convolution_is_the_matrix_of_its_windows() -> None:
    start, gradient = random_matrix(6, 27), random_matrix(6, 27, seed=1)
    kernel, matrix = nn.Parameter(start.reshape(6, 3, 3, 3).clone()), nn.Parameter(start.clone())
    kernel.grad, matrix.grad = gradient.reshape(6, 3, 3, 3).clone(), gradient.clone()
    for parameter in (kernel, matrix):
        Muon([parameter], lr=0.1, momentum=0.9, weight_decay=0.1).step()
    torch.testing.assert_close(kernel.detach().flatten(1), matrix.detach())


def test_a_fused_projection_is_three_matrices() -> None:
    start, gradient = random_matrix(24, 8), random_matrix(24, 8, seed=1)
    fused = nn.Parameter(start.clone())
    fused.grad = gradient.clone()
    parts = [nn.Parameter(part.clone()) for part in start.chunk(3)]
    for part, share in zip(parts, gradient.chunk(3), strict=True):
        part.grad = share.clone()
    Muon([{"params": [fused], "parts": 3}], lr=0.1, momentum=0.9).step()
    Muon(parts, lr=0.1, momentum=0.9).step()
    torch.testing.assert_close(fused.detach(), torch.cat([part.detach() for part in parts]))
    whole = nn.Parameter(start.clone())
    whole.grad = gradient.clone()
    Muon([whole], lr=0.1, momentum=0.9).step()
    assert not torch.allclose(whole.detach(), fused.detach(), atol=1e-3)


def test_parameters_without_gradients_stay() -> None:
    used, unused = nn.Parameter(random_matrix(4, 4)), nn.Parameter(random_matrix(4, 4, seed=1))
    used.grad = random_matrix(4, 4, seed=2)
    before = unused.detach().clone()
    Muon([used, unused], lr=0.1, weight_decay=0.1).step()
    assert torch.equal(unused.detach(), before)


@pytest.mark.parametrize("shape", [(4,), (2, 3, 4)])
def test_only_matrices_are_taken(shape: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match="Muon takes matrices"):
        Muon([nn.Parameter(torch.zeros(shape))], lr=0.1)
