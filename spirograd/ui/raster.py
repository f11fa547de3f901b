"""Rasterization of triangles and discs with NumPy: fragments, a depth test, and near-plane clipping.

Positions are in pixels, from the lower left corner. Pixel (x, y) is covered if its centre, (x + 1/2, y + 1/2), is inside. Shapes are
divided by the size of their bounding boxes into classes, so that the pixels of many boxes are one array.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float32]
Integers = npt.NDArray[np.int64]
_FRAGMENTS = 1 << 20  # of one array


class Raster:
    """A picture with a depth for each pixel. ``pixels``: (width, height, 3), which is written; ``depth``: (width, height), smaller where
    the picture is nearer, and infinite where nothing is."""

    def __init__(self, pixels: Floats) -> None:
        self.size = (pixels.shape[0], pixels.shape[1])
        self.pixels = pixels
        self.depth: Floats = np.full(self.size, np.inf, np.float32)

    def write(self, x: Integers, y: Integers, hue: Floats, depth: Floats | None = None) -> None:
        """Write fragments: those that are nearer than what is there, or, without ``depth``, all, later ones over earlier ones."""
        if depth is not None:
            near = depth < self.depth[x, y]
            x, y, hue, depth = x[near], y[near], hue[near], depth[near]
            order = np.argsort(-depth, kind="stable")  # of several assignments to one pixel, the last one remains
            x, y, hue = x[order], y[order], hue[order]
            self.depth[x, y] = depth[order]
        self.pixels[x, y] = np.clip(hue, 0, 1)


def disc_fragments(centres: Floats, radii: Floats, size: tuple[int, int]) -> Iterator[tuple[Integers, Integers, Integers, Floats]]:
    """Yield the pixels of discs: the number of the disc, x, y, and the distance from its centre in units of the radius, (n, 2)."""
    reach = radii[:, None]
    for number, x, y in _boxes(centres - reach, centres + reach, size):
        offset = (np.stack([x, y], 1) + 0.5 - centres[number]) / np.maximum(radii[number, None], 1e-9)
        inside = (offset * offset).sum(1) <= 1
        yield number[inside], x[inside], y[inside], offset[inside].astype(np.float32)


def triangle_fragments(corners: Floats, size: tuple[int, int]) -> Iterator[tuple[Integers, Integers, Integers, Floats]]:
    """Yield the pixels of triangles (n, 3, 2): the number of the triangle, x, y, and the weights of its corners, (n, 3)."""
    a, b, c = corners[:, 0], corners[:, 1], corners[:, 2]
    area = _cross(b - a, c - a)
    for number, x, y in _boxes(corners.min(1), corners.max(1), size):
        points = np.stack([x, y], 1) + 0.5
        whole = area[number]
        with np.errstate(divide="ignore", invalid="ignore"):
            first = _cross(b[number] - points, c[number] - points) / whole
            second = _cross(c[number] - points, a[number] - points) / whole
        weights = np.stack([first, second, 1 - first - second], 1)
        inside = (weights >= 0).all(1)  # False for triangles without an area, whose weights are NaN
        yield number[inside], x[inside], y[inside], weights[inside].astype(np.float32)


def clipped(triangles: Floats, inside: Floats) -> Floats:
    """Return the parts of triangles (n, 3, k) where ``inside`` (n, 3), a linear function given at the corners, is positive."""
    count = (inside > 0).sum(1)
    parts = [triangles[count == 3]]
    for corners in (1, 2):  # number of corners inside: the part is a triangle, or two
        chosen = count == corners
        odd = (inside[chosen] > 0 if corners == 1 else inside[chosen] <= 0).argmax(1)  # the corner that is alone on its side
        turned = (odd[:, None] + np.arange(3)) % 3
        p, f = (np.take_along_axis(v[chosen], turned.reshape(*turned.shape, *[1] * (v.ndim - 2)), 1) for v in (triangles, inside))
        cuts = [p[:, 0] + (p[:, k] - p[:, 0]) * (f[:, 0] / (f[:, 0] - f[:, k]))[:, None] for k in (1, 2)]
        if corners == 1:
            parts.append(np.stack([p[:, 0], *cuts], 1))
        else:
            parts += [np.stack([cuts[0], p[:, 1], p[:, 2]], 1), np.stack([cuts[0], p[:, 2], cuts[1]], 1)]
    return np.concatenate(parts)


def _boxes(low: Floats, high: Floats, size: tuple[int, int]) -> Iterator[tuple[Integers, Integers, Integers]]:
    """Yield the pixels of bounding boxes, in the window: the number of the box, x and y."""
    finite: npt.NDArray[np.bool_] = np.asarray(np.isfinite(low).all(1) & np.isfinite(high).all(1))
    first = np.clip(np.floor(np.where(finite[:, None], low, 0)), 0, size).astype(np.int64)
    end = np.clip(np.ceil(np.where(finite[:, None], high, 0)), 0, size).astype(np.int64)
    extent = (end - first).max(1)
    drawn: npt.NDArray[np.bool_] = np.asarray(finite & ((end - first).min(1) > 0))
    levels = np.ceil(np.log2(np.maximum(extent, 1))).astype(np.int64)
    for level in np.unique(levels[drawn]):
        side = 1 << int(level)
        offsets = np.stack(np.meshgrid(np.arange(side), np.arange(side), indexing="ij"), -1).reshape(1, -1, 2)
        boxes = np.flatnonzero(drawn & (levels == level))
        for part in np.array_split(boxes, max(1, len(boxes) * side * side // _FRAGMENTS)):
            pixels = first[part, None] + offsets
            there = (pixels < end[part, None]).all(2)
            x, y = pixels[there].T
            yield np.repeat(part, there.sum(1)), x, y


def _cross(a: Floats, b: Floats) -> Floats:
    return np.asarray(a[:, 0] * b[:, 1] - a[:, 1] * b[:, 0])
