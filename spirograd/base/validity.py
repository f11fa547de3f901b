"""The guard of prepared launches: two words of memory that compiled code compares before it launches without Python.

A prepared launch holds the number of the epoch in which it was prepared, and is valid in this epoch only. `renew` begins the next epoch:
a session has begun or ended, memory was freed, an array has got another gradient. Between `suspend` and `resume`, all launches go through
Python: a tape records, a kernel is traced.
"""

from __future__ import annotations

import ctypes
import itertools
import threading
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Protocol

from spirograd.base.arrays import Array
from spirograd.base.dtypes import DType
from spirograd.base.launch_cursor import StepKind
from spirograd.base.records import dataclass

if TYPE_CHECKING:
    from spirograd.base.protocols import Scalar
    from spirograd.base.sizes.evaluate import Shaped

_words = (ctypes.c_int64 * 2)()  # the number of the epoch; the number of open `suspend` calls
_numbers = itertools.count(1).__next__  # atomic, so that epochs have different numbers
_lock = threading.Lock()
ADDRESS = ctypes.addressof(_words)
_words[0] = _numbers()


def number() -> int:
    """Return the number of the epoch. Read it before the state that a launch is prepared from, which may change meanwhile."""
    return _words[0]


def renew() -> None:
    """Begin the next epoch. Takes no lock: the garbage collector may call this."""
    _words[0] = _numbers()


def suspend() -> None:
    """Route all launches through Python until `resume` has been called as often as this function."""
    with _lock:
        _words[1] += 1


def resume() -> None:
    """End one `suspend`."""
    with _lock:
        _words[1] -= 1


class StepRecorder(Protocol):
    """A recorder of the steps by which compiled code checks and packs the arguments of a call, such as
    `runtime.native.launch_preparation.LaunchSteps`. The steps inspect one object at a time. Flat arguments come in order."""

    mortal: list[object]

    def argument(self, number: int) -> None:
        """Look at an argument of the call."""

    def member(self, name: str) -> None:
        """Look at an attribute of the object."""

    def entry(self, number: int) -> None:
        """Look at an entry of the list that it is."""

    def given(self, value: object) -> None:
        """Look at ``value``."""

    def same(self, value: object, mortal: bool = False) -> None:
        """Check that it is ``value``. ``mortal``: which is not kept alive."""

    def equal(self, value: object) -> None:
        """Check that it is of the type of ``value`` and equal."""

    def ask(self, is_same: Callable[[object], bool]) -> None:
        """Check that ``is_same`` gives True for it."""

    def names(self, dictionary: Mapping[Hashable, object], items: Mapping[Hashable, tuple[object, ...]]) -> None:
        """Check that a dictionary has these objects under these keys, none where the tuple is empty."""

    def cells(self, cells: Sequence[object], contents: Sequence[object]) -> None:
        """Check that these cells hold these objects."""

    def scalar(self, t: DType, value: object) -> None:
        """Take a number like ``value`` for the next flat argument."""

    def array(self, value: Shaped) -> None:
        """Take an ndarray like ``value`` for the next flat argument."""

    def host_array(self, value: Array) -> None:
        """Take a NumPy array like ``value`` for the next flat argument."""

    def item(self, dictionary: Mapping[str, object], key: str) -> None:
        """Check that a dictionary has the same object under ``key`` as now."""

    def called(self, function: Callable[[], object]) -> None:
        """Call ``function`` at each launch."""

    def unchanged(self, count: int = 1) -> None:
        """Leave the next flat arguments as they are."""

    def keep_scalars(self, scalars: Iterable[int]) -> None:
        """Check that these flat scalars are equal. Comes before they are taken."""

    def keep_arrays(self) -> None:
        """Check that arrays are the same. Comes before they are taken."""

    def keep_all(self) -> None:
        """Check that scalars are equal, and arrays the same. Comes before they are taken."""


@dataclass(frozen=True, slots=True)
class Record:
    """A recorder of the launches of a call.

    ``number``: the epoch, read before anything else; ``arguments``: the number of arguments; ``steps``: records how they are checked and
    packed; ``result``: makes the result of the call from the values that the kernel returns. ``step``: for launches of an open tape that
    follows a sequence, which are valid while nothing but this tape suspends launches.
    """

    number: int
    arguments: int
    steps: Callable[[StepRecorder], None]
    result: Callable[[tuple[Scalar, ...]], object] | None = None
    step: StepKind | None = None


class NotPrepared(Exception):
    """Raised if launches like this one must go through Python."""
