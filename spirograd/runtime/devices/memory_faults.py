"""The kernel whose access ends the process: the table of `llvmgen.fault_handler`, filled as kernels are loaded.

The handler is installed with the code of the CPU device's worker pool, once for each process, on Linux. Handlers that are installed later
run first, and pass the signal on.
"""

from __future__ import annotations

import atexit
import ctypes
import threading
import weakref
from collections.abc import Iterable, Sequence

from spirograd.base.loc import Loc
from spirograd.llvmgen import fault_handler as layout
from spirograd.llvmgen.object_file import CodeRange
from spirograd.runtime.devices.driver_faults import ADVICE, FLIGHT, Text, place

_CAPACITY = 256  # The first number of records.
_FLAGS = 0x4 | 0x08000000  # SA_SIGINFO, SA_ONSTACK
_lock = threading.RLock()  # The garbage collector frees code at any time.


class _Action(ctypes.Structure):
    """The type `struct sigaction` of Linux's C libraries."""

    _fields_ = (("handler", ctypes.c_void_p), ("mask", ctypes.c_ubyte * 128), ("flags", ctypes.c_int), ("restorer", ctypes.c_void_p))


class _Table:
    """The table of the handler at ``address``, and the objects that its words point to."""

    def __init__(self, address: int) -> None:
        self.words = (ctypes.c_uint64 * layout.WORDS).from_address(address)
        self._kept: list[object] = [_BEFORE, _AFTER]  # A handler may be reading replaced memory.
        self._records = (ctypes.c_uint64 * 0)()
        self._free: list[int] = []
        self._grow()
        self.words[layout.FLIGHT] = FLIGHT.address
        self.words[layout.BEFORE], self.words[layout.AFTER] = _BEFORE.address, _AFTER.address

    def _grow(self) -> None:
        used = len(self._records)
        records = (ctypes.c_uint64 * (max(2 * used, _CAPACITY * layout.RECORD_WORDS)))()
        records[:used] = list(self._records)
        self._kept.append(records)
        self._records = records
        self._free += range(len(records) // layout.RECORD_WORDS - 1, used // layout.RECORD_WORDS - 1, -1)
        self.words[layout.RECORDS] = ctypes.addressof(records)
        self.words[layout.COUNT] = len(records) // layout.RECORD_WORDS

    def add(self, begin: int, end: int, text: Text) -> int:
        """Add a record, and return its number."""
        if not self._free:
            self._grow()
        number = self._free.pop()
        first = number * layout.RECORD_WORDS
        self._records[first + 2], self._records[first + 3] = text.words[:]
        self._records[first : first + 2] = [begin, end]
        return number

    def drop(self, number: int) -> None:
        first = number * layout.RECORD_WORDS
        self._records[first : first + 2] = [0, 0]
        self._free.append(number)


_BEFORE = Text("\nspirograd: memory was accessed that does not exist, while the driver ran these kernels or some of them:")
_AFTER = Text(f".\n{ADVICE}")
_tables: list[_Table] = []


def install(handler: int, table: int) -> None:
    """Let compiled code at ``handler`` handle memory faults, with the table at ``table``, until the interpreter exits."""
    process = ctypes.CDLL(None)
    installed = _Table(table)
    for signal, word in ((layout.SIGSEGV, layout.FORMER_SEGV), (layout.SIGBUS, layout.FORMER_BUS)):
        action, former = _Action(handler=handler, flags=_FLAGS), _Action()
        if process.sigaction(signal, None, ctypes.byref(former)) == 0:
            installed.words[word] = former.handler or 0
            process.sigaction(signal, ctypes.byref(action), None)
            atexit.register(_restore, process, signal, handler, former)
    _tables.append(installed)


def _restore(process: ctypes.CDLL, signal: int, handler: int, former: _Action) -> None:
    """Restore the former handler, unless another one was installed: the code is about to be unloaded."""
    now = _Action()
    if process.sigaction(signal, None, ctypes.byref(now)) == 0 and now.handler == handler:
        process.sigaction(signal, ctypes.byref(former), None)


class WatchedCode:
    """The machine code of a kernel in the handler's table, as long as ``owner``, which keeps the code, lives.

    ``entries``: the symbol of each task.
    """

    def __init__(self, owner: object, name: str, code: Iterable[CodeRange], entries: Sequence[str]) -> None:
        self._name = name
        self._code = list(code)
        self._entries = entries
        self._numbers: list[int] = []
        self._texts: list[Text] = []
        self._describe([])
        weakref.finalize(owner, _drop, self._numbers, self._texts).atexit = False

    def locate(self, locations: Sequence[Loc | None]) -> None:
        """Record the source lines of the tasks."""
        self._describe(locations)

    def _describe(self, locations: Sequence[Loc | None]) -> None:
        if not _tables:
            return
        lines = dict(zip(self._entries, locations))
        with _lock:
            _clear(self._numbers)
            for code in self._code:
                # A task that runs once becomes part of the function that runs all tasks.
                own = (entry for entry in self._entries if code.name == entry or code.name.startswith(f"{entry}."))
                where = place(lines.get(next(own, self._entries[0] if len(self._entries) == 1 else "")))
                what = f"kernel `{self._name}`{where} accessed memory that does not exist: an index is out of bounds."
                text = Text(f"\nspirograd: {what}\n{ADVICE}")
                self._texts.append(text)
                self._numbers.append(_tables[0].add(code.begin, code.end, text))


def _clear(numbers: list[int]) -> None:
    for number in numbers:
        _tables[0].drop(number)
    numbers.clear()


def _drop(numbers: list[int], texts: list[Text]) -> None:
    with _lock:
        _clear(numbers)
    texts.clear()
