"""`Window`: a window of the screen, or a picture in memory, with a canvas, scenes and a panel of widgets, as in the Taichi family.

Pictures are drawn when something needs them: a screen, the environment variable ``SG_GUI``, or a call that reads or saves the picture.
"""

from __future__ import annotations

from collections.abc import Callable
from os import PathLike

import numpy as np
import numpy.typing as npt

from spirograd.base.errors import SpirogradValueError
from spirograd.base.near_names import NearNames
from spirograd.tools.canvas import colours
from spirograd.tools.events import Event, EventType
from spirograd.tools.pictures import as_array, as_bytes, imresize, imwrite
from spirograd.tools.window import GUI
from spirograd.ui.panel import Panel
from spirograd.ui.raster import Raster, disc_fragments, triangle_fragments
from spirograd.ui.scene import GREY, Scene, hues_of, numbers_of, points_of, radii_of

Floats = npt.NDArray[np.float32]
PRESS, RELEASE = EventType.Press, EventType.Release


class Window(NearNames):
    """A window ``name`` of ``res`` pixels. ``show_window``: whether it is shown on the screen, if there is one; ``fps_limit``: the greatest
    number of frames a second. ``vsync`` and ``pos`` are accepted and have no effect. ``SG_GUI`` and ``SG_GUI_FRAMES`` work as for `GUI`."""

    def __init__(
        self,
        name: str,
        res: int | tuple[int, int],
        vsync: bool = False,
        show_window: bool = True,
        fps_limit: float = 1000,
        pos: tuple[int, int] = (100, 100),
    ) -> None:
        self._gui = GUI(name, res, show_gui=show_window)
        self._gui.fps_limit = fps_limit
        self._pending: list[Callable[[Raster], None]] = []
        self._raster = Raster(self._gui.picture)
        self._background: Floats = np.zeros(3, np.float32)
        self._canvas, self._scene, self._panel = Canvas(self), Scene(), Panel(self._gui, self._pending.append)

    @property
    def running(self) -> bool:
        """Whether the window is open. Programs may set it to False."""
        return self._gui.running

    @running.setter
    def running(self, value: bool) -> None:
        self._gui.running = value

    @property
    def event(self) -> Event | None:
        """The event that `get_event` has taken; None before the first one."""
        return self._gui.event

    @property
    def GUI(self) -> Panel:
        """The panel of widgets, as `get_gui`."""
        return self._panel

    def get_canvas(self) -> Canvas:
        """Return the canvas, which covers the window."""
        return self._canvas

    def get_scene(self) -> Scene:
        """Return the scene of the window."""
        return self._scene

    def get_gui(self) -> Panel:
        """Return the panel of widgets."""
        return self._panel

    def get_window_shape(self) -> tuple[int, int]:
        """Return width and height, in pixels."""
        return self._gui.res

    def show(self) -> None:
        """End the frame: show it, or write it where ``SG_GUI`` says, and begin the next one."""
        if self._gui.is_drawn:
            self._draw()
        self._pending.clear()
        self._gui.show()
        self._clear(self._raster)

    def save_image(self, filename: str | PathLike[str]) -> None:
        """Write the picture of this frame to a file, see `tools.imwrite`. Call it before `show`."""
        imwrite(self._draw(), filename)

    write_image = save_image

    def get_image_buffer_as_numpy(self) -> Floats:
        """Return the picture of this frame: (width, height, 4), floats in [0, 1]."""
        self._draw()
        return self._gui.get_image()

    get_image_buffer = get_image_buffer_as_numpy

    def get_depth_buffer_as_numpy(self) -> Floats:
        """Return the depths of the scene of this frame: (width, height), 1 at the near plane and 0 where nothing is."""
        self._draw()
        depth = -self._raster.depth
        return np.where(np.isfinite(depth), depth, np.float32(0))

    def get_depth_buffer(self, depth: object) -> None:
        """Store the depths of the scene of this frame in ``depth``, a field or ndarray of the size of the window."""
        depth.from_numpy(self.get_depth_buffer_as_numpy())  # type: ignore[attr-defined]

    def get_events(self, tag: EventType | None = None) -> list[Event]:
        """Return the pending events of keys and buttons, of the kind ``tag`` if it is given."""
        return list(self._gui.get_events(*_kinds(tag)))

    def get_event(self, tag: EventType | None = None) -> bool:
        """Take the next event of a key or button, of the kind ``tag`` if it is given, and assign it to ``event``; return False if there is
        none."""
        return self._gui.get_event(*_kinds(tag))

    def is_pressed(self, *keys: str) -> bool:
        """Return whether one of ``keys`` is held."""
        return self._gui.is_pressed(*keys)

    def get_cursor_pos(self) -> tuple[float, float]:
        """Return the position of the mouse: x and y in [0, 1], from the lower left corner."""
        return self._gui.get_cursor_pos()

    def destroy(self) -> None:
        """Close the window."""
        self._gui.close()

    def set_background(self, hue: Floats) -> None:
        """Clear this frame and later ones with a colour."""
        self._background = hue
        self._pending.insert(0, self._clear)

    def _clear(self, raster: Raster) -> None:
        raster.pixels[:] = self._background
        raster.depth.fill(np.inf)

    def draw(self, command: Callable[[Raster], None]) -> None:
        """Have the picture of this frame drawn by ``command``, after earlier ones."""
        self._pending.append(command)

    def _draw(self) -> Floats:
        """Draw what is pending; return the picture."""
        for command in self._pending:
            command(self._raster)
        self._pending.clear()
        return self._raster.pixels


class Canvas(NearNames):
    """The canvas of a window. Positions are in [0, 1] x [0, 1], from the lower left corner; radii and widths are relative to the height of
    the window; colours have three numbers in [0, 1]. Positions and colours are fields or arrays, which each call copies."""

    def __init__(self, window: Window) -> None:
        self._window = window
        self._size = np.array(window.get_window_shape(), np.float32)

    def set_background_color(self, color: object) -> None:
        """Clear the canvas with ``color``, in this frame and later ones."""
        self._window.set_background(np.asarray(as_array(color), np.float32)[:3])

    def set_image(self, img: object) -> None:
        """Fill the canvas with a picture, scaled to its size: a field, texture or array of floats in [0, 1] or unsigned integers."""
        array = as_array(img)
        floats = array if array.dtype.kind == "f" else as_bytes(array) / np.float32(255)
        shape = self._window.get_window_shape()
        scaled = floats.copy() if floats.shape[:2] == shape else imresize(floats, *shape)
        planes = scaled if scaled.ndim == 3 else scaled[..., None]
        if planes.shape[2] == 2:  # red and green
            planes = np.concatenate([planes, np.zeros_like(planes[..., :1])], 2)
        self._window.draw(lambda raster: np.copyto(raster.pixels, np.clip(np.nan_to_num(planes[..., :3]), 0, 1)))

    def circles(
        self, centers: object, radius: float, color: object = GREY, per_vertex_color: object = None, per_vertex_radius: object = None
    ) -> None:
        """Draw discs."""
        points = points_of(centers, 2, "centers") * self._size
        hues = hues_of(color, per_vertex_color, len(points))
        radii = radii_of(radius, per_vertex_radius, len(points)) * self._size[1]

        def draw(raster: Raster) -> None:
            for number, x, y, _ in disc_fragments(points, np.maximum(radii, 0.5), raster.size):
                raster.write(x, y, hues[number])

        self._window.draw(draw)

    def triangles(self, vertices: object, color: object = GREY, indices: object = None, per_vertex_color: object = None) -> None:
        """Draw a triangle for each three vertices, or for each three of ``indices``."""
        points = points_of(vertices, 2, "vertices") * self._size
        numbers = numbers_of(indices, len(points))
        self._triangles(points, hues_of(color, per_vertex_color, len(points)), numbers[: len(numbers) // 3 * 3].reshape(-1, 3))

    def lines(self, vertices: object, width: float, indices: object = None, color: object = GREY, per_vertex_color: object = None) -> None:
        """Draw a line for each two vertices, or for each two of ``indices``."""
        points = points_of(vertices, 2, "vertices") * self._size
        numbers = numbers_of(indices, len(points))
        pairs = numbers[: len(numbers) // 2 * 2].reshape(-1, 2)
        begin, end = points[pairs[:, 0]], points[pairs[:, 1]]
        along = end - begin
        side = np.stack([-along[:, 1], along[:, 0]], 1) / np.maximum(np.linalg.norm(along, axis=1, keepdims=True), 1e-9)
        side *= max(width * self._size[1], 1) / 2
        corners = np.stack([begin + side, end + side, end - side, begin - side], 1).reshape(-1, 2)
        hues = hues_of(color, per_vertex_color, len(points))[pairs][:, [0, 1, 1, 0]].reshape(-1, 3)
        first = 4 * np.arange(len(pairs))[:, None]
        self._triangles(corners, hues, (first + np.array([0, 1, 2, 0, 2, 3])).reshape(-1, 3))

    def vector_field(
        self, vector_field: object, arrow_spacing: int = 5, scale: float = 0.1, width: float = 0.002, color: object = (0, 0, 0)
    ) -> None:
        """Draw a line along each ``arrow_spacing``-th vector of a field with two axes, in each; the longest has the length ``scale``."""
        vectors = as_array(vector_field).astype(np.float32)
        longest = np.linalg.norm(vectors, axis=2).max()
        grid = np.stack(np.meshgrid(*(np.arange(0, n, arrow_spacing) for n in vectors.shape[:2]), indexing="ij"), -1).reshape(-1, 2)
        begin = grid / np.array(vectors.shape[:2], np.float32)
        end = begin + vectors[grid[:, 0], grid[:, 1], :2] * (scale / max(float(longest), 1e-20))
        self.lines(np.stack([begin, end], 1).reshape(-1, 2), width, color=color)

    def contour(self, scalar_field: object, cmap_name: str = "plasma", normalize: bool = False) -> None:
        """Fill the canvas with the values of a field with two axes, by a colour map: plasma, viridis, inferno, magma, jet or gray;
        ``normalize``: scale the values to [0, 1]."""
        values = as_array(scalar_field).astype(np.float32)
        if normalize:
            values = (values - values.min()) / max(float(values.max() - values.min()), 1e-20)
        self.set_image(_mapped(values, cmap_name))

    def scene(self, scene: Scene) -> None:
        """Draw a scene."""
        draw = scene.take(float(self._size[0] / self._size[1]))
        if draw is not None:
            self._window.draw(draw)

    def _triangles(self, points: Floats, hues: Floats, faces: npt.NDArray[np.int64]) -> None:
        def draw(raster: Raster) -> None:
            for number, x, y, weights in triangle_fragments(points[faces], raster.size):
                raster.write(x, y, (hues[faces][number] * weights[..., None]).sum(1))

        self._window.draw(draw)


def _kinds(tag: EventType | None) -> tuple[EventType, ...]:
    return (PRESS, RELEASE) if tag is None else (tag,)


# Colour maps by the names of Matplotlib: colours at equal distances, between which values are interpolated.
_MAPS = {
    "plasma": (0x0D0887, 0x7E03A8, 0xCC4778, 0xF89540, 0xF0F921),
    "viridis": (0x440154, 0x3B528B, 0x21918C, 0x5EC962, 0xFDE725),
    "inferno": (0x000004, 0x57106E, 0xBC3754, 0xF98E09, 0xFCFFA4),
    "magma": (0x000004, 0x51127C, 0xB73779, 0xFC8961, 0xFCFDBF),
    "jet": (0x00007F, 0x007FFF, 0x7FFF7F, 0xFF7F00, 0x7F0000),
    "gray": (0x000000, 0xFFFFFF),
}


def _mapped(values: Floats, name: str) -> Floats:
    """Return the colours of values in [0, 1]. Raises SpirogradValueError for an unknown map."""
    if name not in _MAPS:
        raise SpirogradValueError(f"`cmap_name` is one of {', '.join(_MAPS)}, not {name!r}")
    known = colours(np.array(_MAPS[name]))
    at = np.clip(np.nan_to_num(values), 0, 1) * (len(known) - 1)
    below = np.minimum(at.astype(np.int64), len(known) - 2)
    share = (at - below)[..., None]
    return np.asarray(known[below] * (1 - share) + known[below + 1] * share, np.float32)
