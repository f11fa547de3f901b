"""A window on the screen, by Tk, which comes with Python."""

from __future__ import annotations

import contextlib
import importlib
from collections.abc import Callable
from types import ModuleType
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from spirograd.tools.events import Event, EventQueue, EventType

if TYPE_CHECKING:
    import tkinter

    from spirograd.tools.window import WidgetValue

    TkEvent = tkinter.Event[tkinter.Misc]
_BUTTONS = {1: "LMB", 2: "MMB", 3: "RMB"}
_KEYS = {"space": " ", "ISO_Left_Tab": "Tab", **{f"{key}_{side}": key for key in ("Shift", "Alt", "Control") for side in "LR"}}


def open_display(title: str, size: tuple[int, int], fullscreen: bool, events: EventQueue) -> Display | None:
    """Open a window; return None if there is no screen, or no Tk."""
    try:
        tk = importlib.import_module("tkinter")
        return Display(tk, tk.Tk(), title, size, fullscreen, events)
    except ImportError:
        return None
    except Exception as why:
        if type(why).__name__ == "TclError":
            return None
        raise


class Display:
    """A window that shows pictures and reports events. ``closed``: whether the user has closed it."""

    def __init__(self, tk: ModuleType, root: tkinter.Tk, title: str, size: tuple[int, int], fullscreen: bool, events: EventQueue) -> None:
        self._tk, self._root, self._size, self._events = tk, root, size, events
        self.closed = False
        root.title(title)
        root.resizable(False, False)
        root.attributes("-fullscreen", fullscreen)
        self._label = tk.Label(root, width=size[0], height=size[1], borderwidth=0)
        self._image = tk.PhotoImage(width=size[0], height=size[1])
        self._label.configure(image=self._image)
        self._label.pack()
        root.protocol("WM_DELETE_WINDOW", self._close)
        bindings: dict[str, tuple[EventType, Callable[[TkEvent], str]]] = {
            "<KeyPress>": (EventType.Press, _key),
            "<KeyRelease>": (EventType.Release, _key),
            "<ButtonPress>": (EventType.Press, _button),
            "<ButtonRelease>": (EventType.Release, _button),
            "<Motion>": (EventType.Move, lambda _: "Motion"),
        }
        for name, (kind, key) in bindings.items():
            (root if "Key" in name else self._label).bind(name, self._reporting(kind, key))
        self.poll()

    def show(self, pixels: npt.NDArray[np.uint8]) -> None:
        """Show ``pixels`` of shape (height, width, 3), with the top row first."""
        header = b"P6 %d %d 255 " % (pixels.shape[1], pixels.shape[0])
        self._image.configure(data=header + pixels.tobytes())
        self.poll()

    def poll(self) -> None:
        """Handle events."""
        with contextlib.suppress(self._tk.TclError):
            self._root.update()

    def close(self) -> None:
        with contextlib.suppress(self._tk.TclError):
            self._root.destroy()

    def add_button(self, text: str, event_name: str) -> None:
        def pressed() -> None:
            self._events.put(Event(EventType.Press, event_name, self._events.cursor))
            self._events.put(Event(EventType.Release, event_name, self._events.cursor))

        self._tk.Button(self._root, text=text, command=pressed).pack()

    def add_slider(self, text: str, value: WidgetValue, minimum: float, maximum: float, step: float) -> None:
        scale = self._tk.Scale(self._root, label=text, from_=minimum, to=maximum, resolution=step, orient="horizontal", length=200)
        scale.set(value.value)
        scale.configure(command=lambda given: setattr(value, "value", float(given)))
        value.watch(scale.set)
        scale.pack()

    def add_label(self, text: str, value: WidgetValue) -> None:
        label = self._tk.Label(self._root, text=text)
        value.watch(lambda given: label.configure(text=f"{text}: {given:g}"))
        label.pack()

    def _close(self) -> None:
        self.closed = True
        self._events.put(Event(EventType.Press, "WMClose", self._events.cursor))

    def _reporting(self, kind: EventType, key: Callable[[TkEvent], str]) -> Callable[[TkEvent], None]:
        def report(event: TkEvent) -> None:
            pos = (event.x / self._size[0], 1 - event.y / self._size[1]) if event.widget is self._label else self._events.cursor
            wheel = {4: 1.0, 5: -1.0}.get(getattr(event, "num", 0), 0.0)
            if wheel and kind is EventType.Release:
                return
            self._events.put(Event(kind, "Wheel" if wheel else key(event), pos, delta=(0.0, wheel)))

        return report


def _key(event: TkEvent) -> str:
    name = event.keysym
    return _KEYS.get(name, name.lower() if len(name) == 1 else name)


def _button(event: TkEvent) -> str:
    return _BUTTONS.get(int(event.num), f"button{event.num}")
