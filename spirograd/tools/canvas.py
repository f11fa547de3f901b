"""A picture in memory and functions that draw into it. Positions are in [0, 1] x [0, 1], the origin is the lower left corner.

Pixel (x, y) lies at (x / width, y / height). A disc of radius r covers max(0, min(1, r - d)) of a pixel at the distance d of its centre,
and likewise for lines, which are the points near a segment. Radii are in pixels, colours are integers 0xRRGGBB.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from spirograd.base.errors import SpirogradTypeError, SpirogradValueError
from spirograd.tools.media_packages import media_package
from spirograd.tools.pictures import as_array, as_bytes

Floats = npt.NDArray[np.float32]


def colours(color: object) -> Floats:
    """Convert 0xRRGGBB, or an array of such numbers, to numbers in [0, 1] in a last axis of three. Raises SpirogradTypeError for other
    types."""
    given = as_array(color)
    if given.dtype.kind not in "iufb":
        raise SpirogradTypeError(f"a colour is an integer, got {color!r}", None, "write 0xFF0000 for red")
    numbers = given.astype(np.int64)[..., None]
    return np.asarray(((numbers >> np.array([16, 8, 0])) & 255) / 255, np.float32)


class Canvas:
    """``pixels``: (width, height, 3), floats in [0, 1]."""

    def __init__(self, width: int, height: int, pixels: Floats | None = None) -> None:
        self.pixels: Floats = np.zeros((width, height, 3), np.float32) if pixels is None else pixels
        self._size = np.array([width, height], np.float32)

    def clear(self, color: int) -> None:
        self.pixels[:] = colours(color)

    def set_image(self, img: object) -> None:
        """Replace all pixels by a picture of the same size."""
        array = as_array(img)
        if array.shape[:2] != self.pixels.shape[:2]:
            problem = f"the window has {self.pixels.shape[:2]} pixels, and the picture is of shape {array.shape}"
            raise SpirogradValueError(f"{problem}: scale it with `sg.tools.imresize`, or open the window with `res={array.shape[:2]}`")
        given = array if array.dtype.kind == "f" else as_bytes(array) / np.float32(255)
        given = given if given.ndim == 3 else given[..., None]
        if given.shape[2] == 2:  # the Taichi family accepts vectors of two: red and green
            given = np.concatenate([given, np.zeros_like(given[..., :1])], 2)
        self.pixels[:] = np.clip(np.nan_to_num(given[..., :3]), 0, 1)

    def circles(self, pos: object, radius: object, color: object) -> None:
        """Draw discs at ``pos``, (n, 2); ``radius`` and ``color`` are numbers or have n of them. Later discs cover earlier ones; of many
        small ones with the same nearest pixel, only the last is drawn."""
        centres = self.points(pos)
        radii, hues = _radii(radius, len(centres)), _hues(color, len(centres))
        keep = np.isfinite(centres).all(1) & (centres > -radii[:, None] - 1).all(1) & (centres < self._size + radii[:, None] + 1).all(1)
        centres, radii, hues = centres[keep], radii[keep], hues[keep]
        reach = int(np.ceil(np.max(radii, initial=0)))
        if len(centres) < (2 * reach + 1) ** 2:
            for centre, r, hue in zip(centres, radii, hues):
                self._near(centre, centre, r, hue)
            return
        corner = np.round(centres).astype(np.int64)
        offsets = np.arange(-reach, reach + 1)
        for offset in np.stack(np.meshgrid(offsets, offsets), -1).reshape(-1, 2):  # all discs at once, one pixel of each at a time
            pixel = corner + offset
            covered = np.clip(radii - np.linalg.norm(pixel - centres, axis=1), 0, 1)
            there = (covered > 0) & (pixel >= 0).all(1) & (pixel < self._size).all(1)
            x, y = pixel[there].T
            share = covered[there, None]
            self.pixels[x, y] = self.pixels[x, y] * (1 - share) + hues[there] * share

    def lines(self, begin: object, end: object, radius: object, color: object) -> None:
        """Draw lines from ``begin`` to ``end``, each (n, 2); ``radius`` and ``color`` are numbers or have n of them."""
        a, b = self.points(begin), self.points(end)
        need_as_many(a, b)
        for p, q, r, hue in zip(a, b, _radii(radius, len(a)), _hues(color, len(a))):
            if np.isfinite(p).all() and np.isfinite(q).all():
                self._near(p, q, r, hue)

    def triangles(self, a: object, b: object, c: object, color: object) -> None:
        """Draw triangles with the corners ``a``, ``b``, ``c``, each (n, 2); ``color`` is a number or has n of them."""
        ends = [self.points(a), self.points(b), self.points(c)]
        need_as_many(*ends)
        corners = np.stack(ends, 1)
        for triangle, hue in zip(corners, _hues(color, len(corners))):
            if np.isfinite(triangle).all():
                region, points = self._region(triangle.min(0), triangle.max(0))
                sides = [_cross(q - p, points - p) for p, q in zip(triangle, np.roll(triangle, -1, 0))]
                inside = np.all([s >= 0 for s in sides], 0) | np.all([s <= 0 for s in sides], 0)
                region[inside] = hue

    def text(self, content: str, pos: object, font_size: float, color: int) -> None:
        """Draw text below and to the right of ``pos``."""
        image = media_package("PIL.Image", "text in a window")
        drawing = media_package("PIL.ImageDraw", "text in a window")
        font = media_package("PIL.ImageFont", "text in a window").load_default(font_size)
        mask = image.new("L", self.pixels.shape[:2])
        x, y = self.points(pos)[0]
        drawing.Draw(mask).text((x, self.pixels.shape[1] - y), content, fill=255, font=font)
        share = as_array(mask)[::-1].T[..., None].astype(np.float32) / 255
        self.pixels[:] = self.pixels * (1 - share) + colours(color) * share

    def _near(self, a: Floats, b: Floats, radius: float, hue: Floats) -> None:
        """Colour the points within ``radius`` of the segment from a to b, in pixels."""
        region, points = self._region(np.minimum(a, b) - np.float32(radius), np.maximum(a, b) + np.float32(radius))
        along = b - a
        length = float(along @ along)
        t = np.clip((points - a) @ along / length, 0, 1)[..., None] if length else 0.0
        share = np.clip(radius - np.linalg.norm(points - (a + t * along), axis=-1), 0, 1)[..., None]
        region[:] = region * (1 - share) + hue * share

    def _region(self, low: Floats, high: Floats) -> tuple[Floats, Floats]:
        """Return a writable view of the picture between two corners, and the positions of its pixels."""
        (x0, y0), (x1, y1) = (np.clip(edge, 0, self._size).astype(np.int64) for edge in (np.floor(low), np.ceil(high) + 1))
        points = np.stack(np.meshgrid(np.arange(x0, x1), np.arange(y0, y1), indexing="ij"), -1)
        return self.pixels[x0:x1, y0:y1], points.astype(np.float32)

    def points(self, pos: object) -> Floats:
        """Convert positions to pixels, (n, 2). Raises SpirogradValueError for other shapes."""
        points = as_array(pos)
        if points.ndim == 0 or points.shape[-1] != 2:
            raise SpirogradValueError(f"positions have two coordinates in [0, 1] each, in an array of shape (n, 2), got {points.shape}")
        return points.astype(np.float32).reshape(-1, 2) * self._size


def need_as_many(*ends: Floats) -> None:
    """Raise SpirogradValueError unless all have the same number."""
    counts = [len(points) for points in ends]
    if len(set(counts)) > 1:
        raise SpirogradValueError(f"a line or triangle has a position in each array, got {' and '.join(map(str, counts))} positions")


def _radii(radius: object, count: int) -> Floats:
    return _for_each(as_array(radius).astype(np.float32).reshape(-1), count, "radii")


def _hues(color: object, count: int) -> Floats:
    return _for_each(colours(color).reshape(-1, 3), count, "colours")


def _for_each(given: Floats, count: int, what: str) -> Floats:
    """Return an element of ``given`` for each of ``count`` shapes. Raises SpirogradValueError unless it has one element, or ``count``."""
    if len(given) not in (1, count):
        raise SpirogradValueError(f"there are {len(given)} {what} for {count} shapes: pass one for all, or one for each")
    return np.broadcast_to(given, (count, *given.shape[1:]))


def _cross(a: Floats, b: Floats) -> Floats:
    return np.asarray(a[..., 0] * b[..., 1] - a[..., 1] * b[..., 0])
