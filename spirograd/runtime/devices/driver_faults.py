"""Kernels that run in a driver on the CPU, for the handler of memory faults: a fault in such a driver ends the process."""

from __future__ import annotations

import ctypes

from spirograd.base.loc import Loc

ADVICE = "Run the program with sg.init(debug=True) or SG_DEBUG=1, which reports the access, its index and its line.\n"
# The words of a `Flight`, by byte offset: addresses of `Text` or 0; how many were added; the one added last.
FLIGHT_TEXTS = 8
COUNT, LAST = 8 * FLIGHT_TEXTS, 8 * FLIGHT_TEXTS + 8


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
    """The last kernels launched on such drivers since the host waited. ``address``: of the words below, which compiled code writes, too."""

    def __init__(self) -> None:
        self._words = (ctypes.c_uint64 * (FLIGHT_TEXTS + 2))()
        self._texts: list[Text | None] = [None] * FLIGHT_TEXTS  # Those that Python has added: compiled code keeps its own alive.
        self.address = ctypes.addressof(self._words)

    def add(self, text: Text) -> None:
        """Add the launch of a kernel, unless it is the last one."""
        words = self._words
        if words[LAST // 8] != text.address:
            k = words[COUNT // 8] % FLIGHT_TEXTS
            self._texts[k] = text
            words[k] = words[LAST // 8] = text.address
            words[COUNT // 8] += 1

    def clear(self) -> None:
        if self._words[COUNT // 8]:
            self._words[:] = [0] * len(self._words)
            self._texts[:] = [None] * FLIGHT_TEXTS


FLIGHT = Flight()
