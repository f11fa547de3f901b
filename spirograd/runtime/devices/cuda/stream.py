"""One stream of the driver: work is done in the order of the calls, and events tell how far it is."""

from __future__ import annotations

import time
from ctypes import byref, c_void_p
from typing import Any

from spirograd.runtime.devices.cuda.driver import NOT_READY, Driver

_NON_BLOCKING = 1  # CU_STREAM_NON_BLOCKING: no waits for the stream that other code of the process uses by default
_NO_TIMING = 2  # CU_EVENT_DISABLE_TIMING
# Queries in one wait, some 50 ms; between two of them Python handles Ctrl-C. After the first, a wait sleeps between queries.
_QUERIES = 50_000
_NAP_SECONDS = 100e-6


class Stream:
    """A stream in ``context``, which must be current for all methods but `finish`, `wait` and `done`. The device's lock guards it."""

    def __init__(self, driver: Driver, context: c_void_p, spin: Any) -> None:
        self.driver = driver
        self.context = context
        self.handle = c_void_p()
        self._spin = spin  # see `CallCode`
        driver.call("create a stream", driver.stream_create, byref(self.handle), _NON_BLOCKING)

    def event(self) -> c_void_p:
        """A new event, of the driver."""
        event = c_void_p()
        self.driver.call("create an event", self.driver.event_create, byref(event), _NO_TIMING)
        return event

    def record(self, event: c_void_p) -> None:
        """Have ``event`` be done after all work so far."""
        self.driver.call("record an event", self.driver.event_record, event, self.handle)

    def order(self, first: c_void_p, then: c_void_p, event: c_void_p) -> None:
        """Have the stream ``then`` do what it is given from now on after what ``first`` was given so far. ``event`` may be used again."""
        self.driver.call("record an event", self.driver.event_record, event, first)
        self.driver.call("order two streams", self.driver.stream_wait, then, event, 0)

    def done(self, event: c_void_p) -> bool:
        """Whether an event is done. Raises what work before it ran into."""
        code = self._spin(self.driver.event_query, event, self.context, 1)
        if code not in (0, NOT_READY):
            self.driver.check(code, "query an event")
        return bool(code == 0)

    def wait(self, event: c_void_p) -> None:
        """Wait until an event is done. Raises what work before it ran into."""
        self._wait(self.driver.event_query, event)

    def finish(self) -> None:
        """Wait until all work is done. Raises what it ran into."""
        self._wait(self.driver.stream_query, self.handle)

    def _wait(self, query: Any, handle: c_void_p) -> None:
        code = self._spin(query, handle, self.context, _QUERIES)
        while code == NOT_READY:
            time.sleep(_NAP_SECONDS)
            code = self._spin(query, handle, self.context, 1)
        if code:
            self.driver.check(code, "wait for the device")

    def close(self) -> None:
        """Destroy the stream, which must be idle."""
        if self.handle.value:
            self.driver.stream_destroy(self.handle)
