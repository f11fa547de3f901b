"""One stream of the driver: work runs in the order of the calls, and events report its progress."""

from __future__ import annotations

import time
from collections.abc import Callable
from ctypes import addressof, byref, c_int, c_uint64, c_void_p

from spirograd.runtime.devices import interrupts
from spirograd.runtime.devices.gpu.call import CallCode, waiter
from spirograd.runtime.devices.gpu.driver import NOT_READY

_NON_BLOCKING = 1  # CU_STREAM_NON_BLOCKING, hipStreamNonBlocking: no waits for the stream that other code of the process uses by default
RELAXED = 2  # CU_STREAM_CAPTURE_MODERELAXED, hipStreamCaptureModeRelaxed: other users of the driver may go on as always
_NO_TIMING = 2  # CU_EVENT_DISABLE_TIMING, hipEventDisableTiming
# Queries in one wait, some 50 ms; between two waits Python handles Ctrl-C. After the first, a wait sleeps between queries.
_QUERIES = 50_000
_NAP_SECONDS = 100e-6


class Stream:
    """A stream in ``context``, which must be current for all methods but `finish`, `wait` and `done`. The device's lock guards it.

    Streams and events are handles of the driver. ``own``: the handle of this stream. ``handle``: the stream that receives work. ``place``:
    the address where compiled code reads ``handle``.
    """

    def __init__(self, code: CallCode, context: int) -> None:
        self.driver = code.driver
        self._query_stream, *stream_words = waiter(code, "stream_query", context, 1)
        self._wait_stream, *long_stream_words = waiter(code, "stream_query", context, _QUERIES)
        self._query_event, *event_words = waiter(code, "event_query", context, 1)
        self._wait_event, *long_event_words = waiter(code, "event_query", context, _QUERIES)
        self._kept = (stream_words, long_stream_words, event_words, long_event_words)
        handle = c_void_p()
        self.driver.call("create a stream", self.driver.stream_create, byref(handle), _NON_BLOCKING)
        self.own = handle.value or 0
        self._current = c_uint64(self.own)
        self.place = addressof(self._current)
        self._events: list[int] = []
        self._sides: list[int] = []

    @property
    def handle(self) -> int:
        return self._current.value

    def switch(self, handle: int, event: int) -> None:
        """Send later work to another stream, which runs it after the work so far."""
        self.order(self.handle, handle, event)
        self._current.value = handle

    def side(self) -> int:
        """Return another stream, which lives as long as this one."""
        handle = c_void_p()
        self.driver.call("create a stream", self.driver.stream_create, byref(handle), _NON_BLOCKING)
        self._sides.append(handle.value or 0)
        return self._sides[-1]

    def select(self, handle: int) -> int:
        """Send later work to another stream, unordered with the work so far. Return the previous stream."""
        before, self._current.value = self._current.value, handle
        return before

    def back(self) -> None:
        """Send later work to the own stream again; all work is complete."""
        self._current.value = self.own

    def record_graph(self, work: Callable[[], None]) -> int:
        """Return an executable graph of the work that ``work`` gives to the stream; the work does not run.

        Raises the errors of ``work`` and of the driver.
        """
        driver, before = self.driver, self._current.value
        graph, executable = c_void_p(), c_void_p()
        self._current.value = self.own
        try:
            driver.call("record a graph", driver.capture_begin, self.own, RELAXED)
            try:
                work()
            finally:
                code = driver.capture_end(self.own, byref(graph))
            driver.check(code, "record a graph")
            driver.call("make a graph", driver.graph_make, byref(executable), graph, 0)
        finally:
            self._current.value = before
            if graph.value:
                driver.graph_destroy(graph)
        return executable.value or 0

    def is_capturing(self) -> bool:
        """Return whether the stream that receives work is one of another library that records a graph on it."""
        if self.handle == self.own or self.handle in self._sides:
            return False
        state = c_int()
        self.driver.call("query a stream", self.driver.capture_state, self.handle, byref(state))
        return state.value != 0

    def event(self) -> int:
        """Return a new event, which lives as long as the stream."""
        event = c_void_p()
        self.driver.call("create an event", self.driver.event_create, byref(event), _NO_TIMING)
        self._events.append(event.value or 0)
        return self._events[-1]

    def record(self, event: int) -> None:
        """Record ``event``: it is complete after all work so far."""
        self.driver.call("record an event", self.driver.event_record, event, self.handle)

    def order(self, first: int, then: int, event: int) -> None:
        """Have later work of the stream ``then`` come after the work of ``first`` so far. ``event`` may be reused."""
        if first == then:
            return
        self.driver.call("record an event", self.driver.event_record, event, first)
        self.driver.call("order two streams", self.driver.stream_wait, then, event, 0)

    def done(self, event: int) -> bool:
        """Return whether an event is complete. Raises errors of earlier work."""
        code = self._query_event(event)
        if code not in (0, NOT_READY):
            self.driver.check(code, "query an event")
        return code == 0

    def wait(self, event: int) -> None:
        """Wait until an event is complete. Raises errors of earlier work."""
        code = self._wait_event(event)
        if code:
            self._go_on(code, self._query_event, event)

    def finish(self, handle: int | None = None) -> None:
        """Wait until all work is complete, or the work of the stream ``handle``. Raises its errors."""
        handle = self.handle if handle is None else handle
        code = self._wait_stream(handle)
        if code:
            self._go_on(code, self._query_stream, handle)

    def idle(self, handle: int) -> bool:
        """Return whether all work of a stream is complete. Raises its errors."""
        code = self._query_stream(handle)
        if code not in (0, NOT_READY):
            self.driver.check(code, "query a stream")
        return code == 0

    def _go_on(self, code: int, query: Callable[[int], int], handle: int) -> None:
        while code == NOT_READY:
            interrupts.deliver(inside=True)
            time.sleep(_NAP_SECONDS)
            code = query(handle)
        if code:
            self.driver.check(code, "wait for the device")

    def close(self) -> None:
        """Destroy the stream, which must be idle, and its events."""
        for event in self._events:
            self.driver.event_destroy(event)
        self._events.clear()
        for handle in (*self._sides, self.own):
            self.driver.stream_destroy(handle)
        self._sides.clear()
