"""Kernels that run in a driver on the CPU, for the handler of memory faults: a fault in such a driver ends the process."""

from __future__ import annotations

import ctypes

from spirograd.base.loc import Loc

ADVICE = "Run the program with sg.init(debug=True) or SG_DEBUG=1, which reports the access, its index and its line.\n"
_KEPT = 8


class Text:
    """Text in memory that does not move. ``address``: of two words, the address and the length of the text."""

    __slots__ = ("_bytes", "address", "words")

    def __init__(self, text: str) -> None:
        self._bytes = text.encode()
        at = ctypes.cast(ctypes.c_char_p(self._bytes), ctypes.c_void_p).value or 0
        self.words = (ctypes.c_uint64 * 2)(at, len(self._bytes))
        self.address = ctypes.addressof(self.words)


def place(loc: Loc | None) -> str:
    """Return the place of a kernel or a task in the source, for a message."""
    return "" if loc is None else f" ({loc.file}:{loc.line})"


class Flight:
    """The last kernels launched on such drivers since the host waited. ``address``: of an array of addresses of `Text`, or 0."""

    def __init__(self) -> None:
        self._words = (ctypes.c_uint64 * _KEPT)()
        self._texts: list[Text | None] = [None] * _KEPT
        self._count = 0
        self.last: Text | None = None
        self.address = ctypes.addressof(self._words)

    def add(self, text: Text) -> None:
        """Return add a launch of a kernel other than the ``last`` one."""
        k = self._count % _KEPT
        self._texts[k] = self.last = text
        self._words[k] = text.address
        self._count += 1

    def clear(self) -> None:
        if self._count:
            self._words[:] = [0] * _KEPT
            self._texts[:] = [None] * _KEPT
            self._count, self.last = 0, None


FLIGHT = Flight()
