"""Windows that draw nothing: they count frames, report no events, and end the program after the last frame.

They take the place of `taichi.GUI` and `taichi.ui`, so that programs run without a display, on Taichi as on spirograd.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


class Finished(BaseException):
    """The program has shown all frames that it was to show. No `except Exception` of the program catches it."""


class Frames:
    """Counts frames: ``shown`` is called at each one and raises `Finished` at the last; ``drawn`` is given what the program draws."""

    def __init__(self, shown: Callable[[], None], drawn: Callable[[str, Any], None]) -> None:
        self.shown = shown
        self.drawn = drawn


class _Names(type):
    """A class whose unknown attributes are names of keys and events: ``GUI.ESCAPE``."""

    def __getattr__(cls, name: str) -> str:
        if name.startswith("__"):
            raise AttributeError(name)
        return name


class _Slider:
    def __init__(self, value: float) -> None:
        self.value = value


class _Event:
    key = type = modifier = ""
    pos = (0.5, 0.5)


class Silent(metaclass=_Names):
    """Any method may be called, with anything; it returns nothing. What is drawn is told to ``Frames.drawn``."""

    frames: Frames  # set by `install`
    library: Any  # set by `install`: the module `taichi`
    resolution = (512, 512)

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        size = kwargs.get("res", args[1] if len(args) > 1 else None)
        if size is not None:
            self.resolution = (size, size) if isinstance(size, int) else tuple(size)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        if name.isupper():
            return name

        def method(*args: Any, **kwargs: Any) -> None:
            for given in (*args, *kwargs.values()):
                self.frames.drawn(name, given)

        return method


class Camera(Silent):
    """`taichi.ui.Camera`: it stands where the program puts it. The vectors are Taichi's, as programs compute with them."""

    def __init__(self) -> None:
        vector = self.library.Vector
        self.curr_position, self.curr_lookat, self.curr_up = vector([0.0, 0.0, 0.0]), vector([0.0, 0.0, 1.0]), vector([0.0, 1.0, 0.0])

    def position(self, x: float, y: float, z: float) -> None:
        self.curr_position = self.library.Vector([x, y, z])

    def lookat(self, x: float, y: float, z: float) -> None:
        self.curr_lookat = self.library.Vector([x, y, z])

    def up(self, x: float, y: float, z: float) -> None:
        self.curr_up = self.library.Vector([x, y, z])


class Panel(Silent):
    """Widgets of a window: nothing is pressed, and values stay as they are."""

    def sub_window(self, *args: Any, **kwargs: Any) -> Panel:
        return self

    def __enter__(self) -> Panel:
        return self

    def __exit__(self, *exception: Any) -> None:
        return None

    def button(self, *args: Any, **kwargs: Any) -> bool:
        return False

    def slider_float(self, text: str, old_value: Any, *args: Any, **kwargs: Any) -> Any:
        return old_value

    slider_int = checkbox = color_edit_3 = slider_float


class Window(Silent):
    """`taichi.ui.Window`, and what `taichi.GUI` has in common with it."""

    running = True
    event = _Event()
    frame = 0
    fps_limit = None

    @property
    def GUI(self) -> Panel:
        """The old name of `get_gui()`."""
        return self.get_gui()

    def __enter__(self) -> Window:
        return self

    def __exit__(self, *exception: Any) -> None:
        return None

    def show(self, *args: Any, **kwargs: Any) -> None:
        self.frame += 1
        self.frames.shown()

    def get_event(self, *args: Any, **kwargs: Any) -> bool:
        return False

    def get_events(self, *args: Any, **kwargs: Any) -> list[Any]:
        return []

    def is_pressed(self, *keys: Any) -> bool:
        return False

    def get_cursor_pos(self) -> tuple[float, float]:
        return (0.5, 0.5)

    def get_window_shape(self) -> tuple[int, ...]:
        return self.resolution

    def get_canvas(self) -> Silent:
        return Silent()

    def get_scene(self) -> Silent:
        return Silent()

    def get_gui(self) -> Panel:
        return Panel()


class GUI(Window):
    """`taichi.GUI`."""

    @property
    def res(self) -> tuple[int, ...]:
        return self.resolution

    def slider(self, text: str, minimum: float, maximum: float, *args: Any, **kwargs: Any) -> _Slider:
        return _Slider(minimum)

    def label(self, *args: Any, **kwargs: Any) -> _Slider:
        return _Slider(0)

    def button(self, *args: Any, **kwargs: Any) -> str:
        return "button"

    def get_image(self) -> Any:
        import numpy

        return numpy.zeros((*self.resolution, 3), numpy.float32)


class Ui(metaclass=_Names):
    """The module `taichi.ui`."""

    Window = Window
    Scene = Silent
    Camera = Camera
    Gui = Panel

    @staticmethod
    def make_camera() -> Camera:
        return Camera()


def install(taichi: Any, frames: Frames) -> None:
    """Replace the windows of the module ``taichi``, those of OpenCV, and the pauses of matplotlib, in which it draws."""
    Silent.frames, Silent.library = frames, taichi
    taichi.GUI = GUI
    taichi.ui = Ui
    _close_opencv(frames)
    try:
        from matplotlib import pyplot
    except ImportError:
        return
    pyplot.pause = lambda interval: frames.shown()


def _close_opencv(frames: Frames) -> None:
    """Let OpenCV show nothing: packages of it for machines without a display have no windows. `waitKey` ends a frame; no key is pressed."""
    try:
        import cv2
    except ImportError:
        return
    for name in ("imshow", "namedWindow", "moveWindow", "resizeWindow", "destroyWindow", "destroyAllWindows", "setMouseCallback"):
        setattr(cv2, name, lambda *args, **kwargs: None)
    cv2.waitKey = lambda *args, **kwargs: frames.shown() or -1
