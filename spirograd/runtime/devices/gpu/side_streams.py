"""Streams of the driver in addition to the device's own, and events between them."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import TypeVar

from spirograd.runtime.devices.gpu.stream import Stream

T = TypeVar("T")


class Event:
    """An event of the driver, which is reused once nothing refers to this object."""

    __slots__ = ("__weakref__", "handle")

    def __init__(self, handle: int) -> None:
        self.handle = handle


class SideStreams:
    """The side streams of a device, see `HasStreams`; None stands for ``own``. The device's lock is held, its context current.

    ``between``: an event for this class alone. ``busy``: streams with work that the device's own stream does not come after yet.
    """

    def __init__(self, own: Stream, between: int) -> None:
        self._own = own
        self._driver = own.driver
        self._between = between
        self._free: list[int] = []
        self._free_events: list[int] = []
        self._home: int | None = None  # The device's own stream, while it is replaced by another one.
        self.busy: set[int] = set()

    def take(self) -> int:
        """Return a stream without work."""
        return self._free.pop() if self._free else self._own.side()

    def give(self, stream: int) -> None:
        """Return a stream to the pool, with its work."""
        self._free.append(stream)

    def order(self, first: int | None, then: int | None) -> None:
        """See `HasStreams.order_streams`."""
        self._own.order(self._handle(first), self._handle(then), self._between)
        if then is None and first is not None:
            self.busy.discard(first)

    def join(self) -> None:
        """Have later work of the device's own stream come after all work so far."""
        for stream in tuple(self.busy):  # The device's own stream is replaced.
            self.order(stream, None)

    def begin(self, stream: int) -> None:
        """Send later work to ``stream``."""
        self.busy.add(stream)
        self._home = self._own.select(stream)

    def end(self) -> None:
        """Send later work to the device's own stream again."""
        if self._home is not None:
            self._own.select(self._home)
            self._home = None

    def on_own(self, work: Callable[[], T]) -> T:
        """Run ``work`` on the device's own stream, before later work of the present stream."""
        home = self._home
        if home is None:
            return work()
        stream = self._own.select(home)
        self._own.order(stream, home, self._between)
        try:
            return work()
        finally:
            self._own.select(stream)
            self._own.order(home, stream, self._between)

    def record(self, stream: int | None) -> Event:
        """See `HasStreams.record_event`."""
        event = Event(self._free_events.pop() if self._free_events else self._own.event())
        weakref.finalize(event, self._free_events.append, event.handle).atexit = False
        self._driver.call("record an event", self._driver.event_record, event.handle, self._handle(stream))
        return event

    def wait(self, event: Event, stream: int | None) -> None:
        """See `HasStreams.wait_for_event`."""
        self._driver.call("wait for an event", self._driver.stream_wait, self._handle(stream), event.handle, 0)

    def _handle(self, stream: int | None) -> int:
        return self._own.handle if stream is None else stream
