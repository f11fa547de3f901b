"""`GUI`: a window with a canvas, as in the Taichi family."""

from __future__ import annotations

import tempfile
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from types import TracebackType

import numpy as np
import numpy.typing as npt

from spirograd.base import knobs
from spirograd.base.arrays import Array
from spirograd.base.errors import SpirogradRuntimeError, SpirogradValueError
from spirograd.base.near_names import NearNames
from spirograd.tools import events
from spirograd.tools.canvas import Canvas, need_as_many
from spirograd.tools.display import Display, open_display
from spirograd.tools.events import KEYS, EventQueue, EventType
from spirograd.tools.pictures import as_array, imwrite
from spirograd.tools.videos import write_video

_HEAD = 0.3  # the length of an arrow's head, relative to the arrow
_VIDEOS = (".gif", ".mp4")


class WidgetValue:
    """The ``value`` that a slider or a label shows."""

    def __init__(self, value: float) -> None:
        self._value = value
        self._watching: Callable[[float], object] = lambda _: None

    @property
    def value(self) -> float:
        return self._value

    @value.setter
    def value(self, value: float) -> None:
        if value != self._value:
            self._value = value
            self._watching(value)

    def watch(self, changed: Callable[[float], object]) -> None:
        self._watching = changed


class GUI(NearNames):
    """A window ``name`` with a canvas of ``res`` pixels, ``background_color`` at first, with positions in [0, 1] x [0, 1] from the lower
    left corner and colours 0xRRGGBB.

    It is shown on the screen, ``fullscreen`` if requested, if there is a display and ``show_gui`` is true. Without a display, drawing and
    `show` work, but there are no events. ``fast_gui`` is accepted and has no effect.

    If the environment variable ``SG_GUI`` is set, frames are written to that folder, or to that ``.gif`` or ``.mp4`` file, which is
    complete when the window is closed or the program ends. After ``SG_GUI_FRAMES`` frames, the window closes.
    """

    Event = events.Event
    MOTION, PRESS, RELEASE = EventType.Move, EventType.Press, EventType.Release
    SHIFT, ALT, CTRL, ESCAPE, RETURN, TAB, BACKSPACE, SPACE, UP, DOWN, LEFT, RIGHT, CAPSLOCK, LMB, MMB, RMB, EXIT, WHEEL, MOVE = (
        KEYS.values()
    )

    def __init__(
        self,
        name: str = "spirograd",
        res: int | tuple[int, int] = 512,
        background_color: int = 0,
        show_gui: bool = True,
        fullscreen: bool = False,
        fast_gui: bool = False,
    ) -> None:
        self.name = name
        self.res: tuple[int, int] = (res, res) if isinstance(res, int) else (int(res[0]), int(res[1]))
        if min(self.res) < 1:
            raise SpirogradValueError(f"`res`: a window has at least one pixel along each axis, got {res}")
        self.background_color = background_color
        self.fps_limit: float | None = 60.0
        self.frame = 0
        self.event: events.Event | None = None
        self._canvas = Canvas(*self.res)
        self._canvas.clear(background_color)
        self._events = EventQueue()
        self._closing = False
        self._last = time.perf_counter()
        self._sink = _Sink(Path(knobs.get("SG_GUI"))) if knobs.get("SG_GUI") else None
        self._display: Display | None = None
        if show_gui and self._sink is None:
            self._display = open_display(name, self.res, fullscreen, self._events)
            if self._display is None:
                warnings.warn(
                    "there is no display: frames are not shown; set the environment variable SG_GUI=frames.gif to write them to a file",
                    RuntimeWarning,
                    stacklevel=2,
                )

    def __enter__(self) -> GUI:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    @property
    def visible(self) -> bool:
        """Return whether there is a window on a screen."""
        return self._display is not None

    @property
    def is_drawn(self) -> bool:
        """Whether frames go to a screen, or to where ``SG_GUI`` says."""
        return self.visible or self._sink is not None

    @property
    def picture(self) -> npt.NDArray[np.float32]:
        """The pixels of the canvas, (width, height, 3), in place: floats in [0, 1]."""
        return self._canvas.pixels

    @property
    def running(self) -> bool:
        """Whether the window is open. Programs may set it to False."""
        return not (self._closing or (self._display is not None and self._display.closed) or self._enough())

    @running.setter
    def running(self, value: bool) -> None:
        self._closing = not value

    def close(self) -> None:
        """Close the window, and complete the video that ``SG_GUI`` names."""
        self._closing = True
        if self._display is not None:
            self._display.close()
            self._display = None
        if self._sink is not None:
            self._sink.close()

    def show(self, file: str | None = None) -> None:
        """End a frame: show it, write it to ``file`` (a picture, see `tools.imwrite`) if one is given, and begin the next one, cleared."""
        if file is not None:
            imwrite(self._canvas.pixels, file)
        if self._sink is not None and not self._closing:
            self._sink.add(self._canvas.pixels)
        if self._display is not None:
            rows = self._canvas.pixels.swapaxes(0, 1)[::-1]
            self._display.show(np.ascontiguousarray(rows * 255, np.uint8))
            self._wait()
        self.frame += 1
        if self._enough() and self._sink is not None:
            self._sink.close()
        self.clear()

    def clear(self, color: int | None = None) -> None:
        """Fill the canvas with ``color``, by default the background."""
        self._canvas.clear(self.background_color if color is None else color)

    def set_image(self, img: object) -> None:
        """Show ``img``, a field or an array with one element for each pixel: floats in [0, 1] or unsigned integers; grey, or with a last
        axis of colours. Raises SpirogradValueError for other shapes.
        """
        self._canvas.set_image(img)

    def get_image(self) -> npt.NDArray[np.float32]:
        """Return the canvas: (width, height, 4), floats in [0, 1]."""
        return np.concatenate([self._canvas.pixels, np.ones((*self.res, 1), np.float32)], 2)

    def circle(self, pos: object, color: int = 0xFFFFFF, radius: float = 1) -> None:
        """Draw a disc around ``pos``; ``radius`` in pixels, ``color`` as 0xRRGGBB."""
        self._canvas.circles(pos, radius, color)

    def circles(
        self, pos: object, radius: object = 1, color: object = 0xFFFFFF, palette: object = None, palette_indices: object = None
    ) -> None:
        """Draw discs at the positions ``pos``, a field or array (n, 2); ``radius`` (pixels), ``color`` (0xRRGGBB): one, or n. With a
        ``palette``, the colour of each disc is given by its entry of ``palette_indices``. Raises SpirogradValueError if these are missing,
        or if there are neither one nor n of an argument.
        """
        if palette is not None:
            if palette_indices is None:
                raise SpirogradValueError("`palette` needs `palette_indices`: the number of the colour of each disc")
            color = _chosen(as_array(palette), as_array(palette_indices).reshape(-1))
        self._canvas.circles(pos, radius, color)

    def line(self, begin: object, end: object, radius: float = 1, color: int = 0xFFFFFF) -> None:
        """Draw a line from ``begin`` to ``end``; ``radius``: half of its width in pixels, ``color`` as 0xRRGGBB."""
        self._canvas.lines(begin, end, radius, color)

    def lines(self, begin: object, end: object, radius: object = 1, color: object = 0xFFFFFF) -> None:
        """Draw lines from ``begin`` to ``end``, two fields or arrays (n, 2); ``radius`` and ``color`` as for `line`: one, or n."""
        self._canvas.lines(begin, end, radius, color)

    def triangle(self, a: object, b: object, c: object, color: int = 0xFFFFFF) -> None:
        """Draw a filled triangle with the corners ``a``, ``b``, ``c``; ``color`` as 0xRRGGBB."""
        self._canvas.triangles(a, b, c, color)

    def triangles(self, a: object, b: object, c: object, color: object = 0xFFFFFF) -> None:
        """Draw filled triangles with the corners ``a``, ``b``, ``c``, each a field or array (n, 2); ``color``: one, or n."""
        self._canvas.triangles(a, b, c, color)

    def rect(self, topleft: object, bottomright: object, radius: float = 1, color: int = 0xFFFFFF) -> None:
        """Draw the sides of the rectangle with the corners ``topleft`` and ``bottomright``; ``radius``, ``color`` as for `line`."""
        (x0, y0), (x1, y1) = as_array(topleft), as_array(bottomright)
        corners = np.array([[x0, y0], [x1, y0], [x1, y1], [x0, y1]])
        self._canvas.lines(corners, np.roll(corners, -1, 0), radius, color)

    def arrow(self, orig: object, direction: object, radius: float = 1, color: int = 0xFFFFFF) -> None:
        """Draw an arrow from ``orig`` to ``orig + direction``; ``radius``, ``color`` as for `line`."""
        self.arrows(as_array(orig)[None], as_array(direction)[None], radius, color)

    def arrows(self, orig: object, direction: object, radius: object = 1, color: object = 0xFFFFFF) -> None:
        """Draw arrows from ``orig`` to ``orig + direction``, two fields or arrays (n, 2); ``radius``, ``color`` as for `lines`."""
        begin, along = (self._canvas.points(x) / np.array(self.res) for x in (orig, direction))
        need_as_many(begin, along)
        tip = begin + along
        self._canvas.lines(begin, tip, radius, color)
        pixels = along * np.array(self.res)
        for side in (1, -1):
            back = -_HEAD * (pixels + side * np.stack([-pixels[:, 1], pixels[:, 0]], 1) / 2) / np.array(self.res)
            self._canvas.lines(tip, tip + back, radius, color)

    def text(self, content: str, pos: object, font_size: float = 15, color: int = 0xFFFFFF) -> None:
        """Draw the text ``content`` below and to the right of ``pos``; ``font_size`` in pixels, ``color`` as 0xRRGGBB. Needs Pillow."""
        self._canvas.text(content, pos, font_size, color)

    def slider(self, text: str, minimum: float, maximum: float, step: float = 1) -> WidgetValue:
        """Add a slider with the label ``text``, from ``minimum`` to ``maximum`` in steps of ``step``. Its ``value``, which the user sets,
        is ``minimum`` at first."""
        value = WidgetValue(minimum)
        if self._display is not None:
            self._display.add_slider(text, value, minimum, maximum, step)
        return value

    def label(self, text: str) -> WidgetValue:
        """Add a label that shows ``text`` and its ``value``."""
        value = WidgetValue(0.0)
        if self._display is not None:
            self._display.add_label(text, value)
        return value

    def button(self, text: str, event_name: str | None = None) -> str:
        """Add a button with the label ``text``, and return the key of its events, which is ``event_name`` if given."""
        key = event_name or f"WidgetButton_{text}"
        if self._display is not None:
            self._display.add_button(text, key)
        return key

    def get_events(self, *filters: object) -> Iterator[events.Event]:
        """Iterate over pending events that match one of the filters, or over all: a type (`PRESS`, `RELEASE`, `MOTION`), a key, or a pair
        of both."""
        if self._display is not None:
            self._display.poll()
        return self._events.take(filters)

    def get_event(self, *filters: object) -> bool:
        """Take the next event that matches one of the filters, as `get_events`, and assign it to ``event``; return False if there is
        none."""
        event = next(self.get_events(*filters), None)
        if event is not None:
            self.event = event
        return event is not None

    def get_key_event(self) -> events.Event:
        """Wait for a key. Raises SpirogradRuntimeError without a window."""
        while self.visible:
            if self.get_event(self.PRESS):
                assert self.event is not None
                return self.event
            time.sleep(0.01)
        raise SpirogradRuntimeError("there is no window, so no key can be pressed: check `visible` before waiting for keys")

    def has_key_event(self) -> bool:
        """Return whether there is an event for `get_event`."""
        if self._display is not None:
            self._display.poll()
        return self._events.any()

    def take_presses(self, key: str) -> bool:
        """Remove the pending events of ``key``; return whether it was pressed."""
        return self._events.take_presses(key)

    def is_pressed(self, *keys: str) -> bool:
        """Return whether one of ``keys`` is held."""
        return self._events.held(keys)

    def get_cursor_pos(self) -> tuple[float, float]:
        """Return the position of the mouse: x and y in [0, 1], from the lower left corner."""
        return self._events.cursor

    def _enough(self) -> bool:
        limit = knobs.get("SG_GUI_FRAMES")
        return bool(limit) and self.frame >= int(limit)

    def _wait(self) -> None:
        """Wait until the next frame is due by `fps_limit`."""
        if self.fps_limit:
            time.sleep(max(0.0, self._last + 1 / self.fps_limit - time.perf_counter()))
        self._last = time.perf_counter()


def _chosen(palette: Array, indices: Array) -> Array:
    """Return the colour of each index. Raises SpirogradValueError for indices outside of the palette."""
    if len(indices) and not 0 <= indices.min().item() <= indices.max().item() < len(palette):
        given = f"from {indices.min()} to {indices.max()}"
        raise SpirogradValueError(f"`palette_indices` are {given}, and `palette` has {len(palette)} colours")
    chosen: Array = palette[indices.astype(np.int64)]
    return chosen


class _Sink:
    """The output of ``SG_GUI``: a folder of PNG files, or a video."""

    def __init__(self, path: Path) -> None:
        self._video = path if path.suffix in _VIDEOS else None
        self._scratch = tempfile.TemporaryDirectory(prefix="spirograd-frames") if self._video else None
        self._folder = Path(self._scratch.name) if self._scratch else path
        self._folder.mkdir(parents=True, exist_ok=True)
        self._frames: list[Path] = []

    def add(self, pixels: npt.NDArray[np.float32]) -> None:
        self._frames.append(self._folder / f"{len(self._frames):06d}.png")
        imwrite(pixels, self._frames[-1])

    def close(self) -> None:
        if self._scratch is not None:
            if self._frames and self._video is not None:
                write_video(self._frames, self._video, framerate=24)
            self._scratch.cleanup()
            self._scratch = None
