"""Digital corruptions: warping, pixelation, compression. Pixels are float32 (b, 3, h, w) in [0, 1]."""

from __future__ import annotations

from collections.abc import Callable
from io import BytesIO

import numpy as np
import torch
from einops import rearrange
from PIL import Image
from torch import Tensor
from torch.nn.functional import grid_sample

from vit.evaluation.corruptions.blur import gaussian_filter
from vit.randomness import SampleRandom


def elastic_transform(pixels: Tensor, rng: SampleRandom, amplitude: float, smoothness: float, jitter: float) -> Tensor:
    """Apply a random affine map and a smooth random displacement (Simard, Steinkraus and Platt 2003).

    Both in one interpolation; the original takes two, which blurs a little more.
    """
    height, width = pixels.shape[-2:]
    noise = rng.fork("displacement").uniform(2, height, width) * 2 - 1
    moved = amplitude * gaussian_filter(noise, smoothness, border="reflect", cut_off=3)  # b 2 h w
    columns = torch.arange(width, device=pixels.device).expand(height, -1) + moved[:, 0]
    rows = torch.arange(height, device=pixels.device)[:, None] + moved[:, 1]
    here = torch.stack((columns, rows, torch.ones_like(rows)), dim=-1)  # b h w 3
    source = rearrange(here, "b h w p -> b (h w) p") @ _affine((height, width), rng.fork("corners"), jitter)
    last = torch.tensor((width - 1, height - 1), device=pixels.device)
    grid = rearrange(source / last * 2 - 1, "b (h w) p -> b h w p", h=height)
    return grid_sample(pixels, grid, mode="bilinear", padding_mode="reflection", align_corners=True)


def _affine(size: tuple[int, int], rng: SampleRandom, jitter: float) -> Tensor:
    """Draw maps (b, 3, 2) of (column, row, 1) to the source pixel: three points each move by up to `jitter`."""
    column, row, reach = size[1] // 2, size[0] // 2, min(size) // 3
    points = [[column + reach, row + reach], [column + reach, row - reach], [column - reach, row - reach]]
    before = torch.tensor(points, device=rng.state.device, dtype=torch.float32).expand(len(rng.state), -1, -1)
    after = before + (rng.uniform(3, 2) * 2 - 1) * jitter
    ones = torch.ones_like(after[..., :1])
    return torch.linalg.solve(torch.cat((after, ones), dim=-1), before)


def pixelate(pixels: Tensor, rng: SampleRandom, part: float) -> Tensor:  # noqa: ARG001
    """Shrink to a fraction `part` of the sides and enlarge again, both by Pillow's box filter."""

    def coarsen(image: Image.Image) -> Image.Image:
        small = image.resize((int(image.width * part), int(image.height * part)), Image.Resampling.BOX)
        return small.resize(image.size, Image.Resampling.BOX)

    return _through_pillow(pixels, coarsen)


def jpeg_compression(pixels: Tensor, rng: SampleRandom, quality: float) -> Tensor:  # noqa: ARG001
    """Store as JPEG of a low quality by Pillow, and read again."""

    def compress(image: Image.Image) -> Image.Image:
        file = BytesIO()
        image.save(file, "JPEG", quality=int(quality))
        return Image.open(file).convert("RGB")

    return _through_pillow(pixels, compress)


def _through_pillow(pixels: Tensor, change: Callable[[Image.Image], Image.Image]) -> Tensor:
    """Change one image after another on the CPU."""
    levels = rearrange((pixels * 255).round().to(torch.uint8), "b c h w -> b h w c").cpu().numpy()
    changed = np.stack([np.asarray(change(Image.fromarray(image))) for image in levels])
    return rearrange(torch.from_numpy(changed), "b h w c -> b c h w").to(pixels.device, torch.float32) / 255
