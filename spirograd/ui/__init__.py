"""`sg.ui`: windows with a canvas, scenes in space and widgets, as in the Taichi family."""

from spirograd.tools.events import KEYS
from spirograd.ui.camera import Camera, ProjectionMode, make_camera
from spirograd.ui.panel import Panel as Gui
from spirograd.ui.scene import Scene
from spirograd.ui.window import PRESS, RELEASE, Canvas, Window

SHIFT, ALT, CTRL, ESCAPE, RETURN, TAB, BACKSPACE, SPACE, UP, DOWN, LEFT, RIGHT, CAPSLOCK, LMB, MMB, RMB = list(KEYS.values())[:16]

__all__ = [
    "ALT", "BACKSPACE", "CAPSLOCK", "CTRL", "DOWN", "ESCAPE", "LEFT", "LMB", "MMB", "PRESS", "RELEASE", "RETURN", "RIGHT", "RMB", "SHIFT",
    "SPACE", "TAB", "UP", "Camera", "Canvas", "Gui", "ProjectionMode", "Scene", "Window", "make_camera",
]  # fmt: skip
