"""The widgets of a window, which programs ask for their values in each frame. Without a screen, values stay as they are."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator

import numpy as np

from spirograd.base.near_names import NearNames
from spirograd.tools.canvas import Canvas as Drawing
from spirograd.tools.window import GUI, WidgetValue
from spirograd.ui.raster import Raster

_LINE = 16  # pixels of a line of text


class Panel(NearNames):
    """The widgets of a window: sliders and buttons below the picture, and lines of text in it."""

    def __init__(self, gui: GUI, draw: Callable[[Callable[[Raster], None]], None]) -> None:
        self._gui, self._draw = gui, draw
        self._sliders: dict[str, WidgetValue] = {}
        self._buttons: dict[str, str] = {}
        self._corner = [0.0, 0.0]  # where the next line of text begins, in pixels from the upper left corner

    def begin(self, name: str, x: float, y: float, width: float, height: float) -> None:
        """Begin a part of the panel, at (``x``, ``y``) from the upper left corner of the window."""
        self._corner = [x * self._gui.res[0], y * self._gui.res[1]]

    def end(self) -> None:
        """End a part of the panel."""

    @contextlib.contextmanager
    def sub_window(self, name: str, x: float, y: float, width: float, height: float) -> Iterator[Panel]:
        """Begin a part of the panel, and end it after the block."""
        self.begin(name, x, y, width, height)
        yield self
        self.end()

    def text(self, text: str, color: object = None) -> None:
        """Write a line of text."""
        x, y = self._corner
        self._corner[1] += _LINE
        hue = 0xFFFFFF if color is None else int.from_bytes(bytes(int(255 * min(max(c, 0), 1)) for c in np.asarray(color)[:3]), "big")

        def write(raster: Raster) -> None:
            canvas = Drawing(*raster.size, raster.pixels)
            canvas.text(str(text), (x / raster.size[0], 1 - y / raster.size[1]), _LINE - 3, hue)

        self._draw(write)

    def checkbox(self, text: str, old_value: bool) -> bool:
        """Return whether a box is checked."""
        return bool(self._slide(text, float(old_value), 0, 1, 1))

    def slider_int(self, text: str, old_value: int, minimum: int, maximum: int) -> int:
        """Return the number that a slider shows."""
        return round(self._slide(text, old_value, minimum, maximum, 1))

    def slider_float(self, text: str, old_value: float, minimum: float, maximum: float) -> float:
        """Return the number that a slider shows."""
        return self._slide(text, old_value, minimum, maximum, (maximum - minimum) / 1000)

    def color_edit_3(self, text: str, old_value: tuple[float, float, float]) -> tuple[float, float, float]:
        """Return the colour that three sliders show."""
        red, green, blue = (self._slide(f"{text}: {name}", float(v), 0, 1, 0.01) for name, v in zip(("red", "green", "blue"), old_value))
        return red, green, blue

    def button(self, text: str) -> bool:
        """Return whether a button was pressed since the last call."""
        if not self._gui.visible:
            return False
        key = self._buttons.get(text)
        if key is None:
            key = self._buttons[text] = self._gui.button(text)
        return self._gui.take_presses(key)

    def _slide(self, text: str, old: float, minimum: float, maximum: float, step: float) -> float:
        if not self._gui.visible:
            return old
        slider = self._sliders.get(text)
        if slider is None:
            slider = self._sliders[text] = self._gui.slider(text, minimum, maximum, step)
            slider.value = old
        return slider.value
