"""Events of a window: keys, buttons and moves of the mouse."""

from __future__ import annotations

import enum
from collections import deque
from collections.abc import Iterator
from dataclasses import field

from spirograd.base.records import dataclass


class EventType(enum.Enum):
    """The kind of an event."""

    Move = 0
    Press = 1
    Release = 2


KEYS = {
    "SHIFT": "Shift", "ALT": "Alt", "CTRL": "Control", "ESCAPE": "Escape", "RETURN": "Return", "TAB": "Tab", "BACKSPACE": "BackSpace",
    "SPACE": " ", "UP": "Up", "DOWN": "Down", "LEFT": "Left", "RIGHT": "Right", "CAPSLOCK": "Caps_Lock",
    "LMB": "LMB", "MMB": "MMB", "RMB": "RMB", "EXIT": "WMClose", "WHEEL": "Wheel", "MOVE": "Motion",
}  # fmt: skip


@dataclass(slots=True)
class Event:
    """An event of a window. ``key``: a value of `KEYS`, or a character; ``pos``: the position of the mouse, in [0, 1]; ``modifier``: keys
    held; ``delta``: the motion of the wheel."""

    type: EventType
    key: str
    pos: tuple[float, float] = (0.0, 0.0)
    modifier: list[str] = field(default_factory=list)
    delta: tuple[float, float] = (0.0, 0.0)


class EventQueue:
    """Pending events, and the keys that are held."""

    def __init__(self) -> None:
        self._waiting: deque[Event] = deque()
        self._held: set[str] = set()
        self.cursor = (0.0, 0.0)

    def put(self, event: Event) -> None:
        event.modifier = [key for key in ("Shift", "Alt", "Control") if key in self._held]
        self.cursor = event.pos
        if event.type is EventType.Press and event.key != "Wheel":
            self._held.add(event.key)
        elif event.type is EventType.Release:
            self._held.discard(event.key)
        self._waiting.append(event)

    def held(self, keys: tuple[str, ...]) -> bool:
        """Return whether one of ``keys`` is held."""
        return any(key in self._held for key in keys)

    def any(self) -> bool:
        """Return whether there are pending events."""
        return bool(self._waiting)

    def take(self, filters: tuple[object, ...]) -> Iterator[Event]:
        """Iterate over pending events, and remove them; events that match no filter are dropped. A filter: a type, a key, or a pair of
        both."""
        while self._waiting:
            event = self._waiting.popleft()
            if not filters or any(_fits(event, wanted) for wanted in filters):
                yield event

    def take_presses(self, key: str) -> bool:
        """Remove the pending events of ``key``; return whether it was pressed."""
        of_key = [event for event in self._waiting if event.key == key]
        self._waiting = deque(event for event in self._waiting if event.key != key)
        return any(event.type is EventType.Press for event in of_key)


def _fits(event: Event, wanted: object) -> bool:
    if isinstance(wanted, (tuple, list)):
        return all(_fits(event, part) for part in wanted)
    return wanted is event.type if isinstance(wanted, EventType) else wanted == event.key
