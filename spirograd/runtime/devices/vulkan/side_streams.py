"""Streams in addition to the device's own, on the other queues of the family, and events between streams: values of their timelines."""

from __future__ import annotations

from collections.abc import Callable

from spirograd.base.records import dataclass
from spirograd.runtime.devices.vulkan.stream import Stream


@dataclass(frozen=True, slots=True, eq=False)
class Event:
    """An event: a value of the timeline of a stream."""

    stream: Stream
    value: int


class SideStreams:
    """The side streams of a device, see `HasStreams`; None stands for ``own``. The device's lock is held.

    ``make`` makes a stream on a queue; there are ``queues``. ``busy``: streams with work that the device's own stream does not come after
    yet, in the order of their first such work.
    """

    def __init__(self, own: Stream, make: Callable[..., Stream], queues: int) -> None:
        self._own = own
        self._make = make
        self._others = queues - 1
        self._all: list[Stream] = []
        self._free: list[Stream] = []
        self.busy: dict[Stream, None] = {}

    def take(self) -> Stream:
        """Return a stream; work of an earlier user may come before."""
        if self._free:
            return self._free.pop()
        stream = self._make(queue=1 + len(self._all) % self._others if self._others else 0)
        stream.layout = self._own.layout
        self._all.append(stream)
        return stream

    def give(self, stream: Stream) -> None:
        """Return a stream to the pool, with its work."""
        stream.flush()
        self._free.append(stream)

    def order(self, first: Stream | None, then: Stream | None) -> None:
        """See `HasStreams.order_streams`."""
        self.wait(self.record(first), then)
        if then is None and first is not None:
            self.busy.pop(first, None)

    def join(self) -> None:
        """Have later work of the device's own stream come after all work so far."""
        for stream in tuple(self.busy):
            self.order(stream, None)

    def finish(self) -> None:
        """Submit the work of all streams, and wait until the side streams have completed theirs."""
        if self.busy:
            for stream in (*self.busy, self._own):
                stream.flush()
            for stream in self.busy:
                stream.finish()
            self.busy.clear()

    def record(self, stream: Stream | None) -> Event:
        """See `HasStreams.record_event`."""
        stream = stream or self._own
        stream.flush()
        return Event(stream, stream.submitted)

    def wait(self, event: Event, stream: Stream | None) -> None:
        """See `HasStreams.wait_for_event`."""
        stream = stream or self._own
        if stream is not event.stream:
            stream.after(event.stream, event.value)

    def close(self) -> None:
        """Destroy the streams; all must be idle."""
        for stream in self._all:
            stream.close()
