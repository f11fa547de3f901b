"""Work on several streams of a device, with the results of one stream.

An `Order` records the memory that work uses. Before work touches memory that another stream changes, or changes memory that another stream
reads, its stream waits for the other one. This happens while there may be work on streams in addition to the device's own, which is number
0: from the first use of another stream (`active` is then set, and all launches go through Python) until the device's own stream waits for
all of them.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import field
from typing import TYPE_CHECKING, TypeVar

from spirograd.base import validity
from spirograd.base.device import HasStreams
from spirograd.base.records import dataclass

if TYPE_CHECKING:
    from spirograd.base.protocols import Allocation

T = TypeVar("T")
Uses = Iterable["tuple[Allocation | None, str]"]  # Allocations and parts of them, "" for all.

active: Order | None = None
# After this number of launches in a row on the device's own stream, the others are queried for completion.
_ALONE = 64


Tracked = tuple["Allocation", str]


def _tracked(uses: Uses) -> list[Tracked] | None:
    """Return the uses of memory whose order is tracked; None if there is other memory: of another library, or unknown."""
    uses = list(uses)
    tracked = [(memory, part) for memory, part in uses if memory is not None and memory.keep is None]
    return tracked if len(tracked) == len(uses) else None


@dataclass(slots=True, eq=False)
class Side:
    """A stream. ``number``: its index in its `Order`. ``given``: the amount of work so far.

    ``seen``: by number of another stream, the amount of its work that this one comes after. ``manual``: the stream waits for others on
    request only.
    """

    number: int
    handle: object
    manual: bool = False
    given: int = 0
    seen: dict[int, int] = field(default_factory=dict)


@dataclass(slots=True, eq=False)
class _Part:
    """The last uses of a part of an allocation: streams and positions in their work."""

    write: tuple[int, int]
    reads: dict[int, int] = field(default_factory=dict)


class _Selected(threading.local):
    side: Side | None = None


class Order:
    """The order of work on streams, see the docstring of the module. ``device``: the device of the streams."""

    def __init__(self, device: HasStreams) -> None:
        self.device = device
        self.lock = threading.RLock()
        self._own = Side(0, None)
        self._sides: dict[int, Side] = {0: self._own}
        self._numbers = 0
        self._selected = _Selected()
        self._memory: dict[int, dict[str, _Part]] = {}  # By number of the allocation.
        self._alone = 0
        self._sections: list[Side] = []
        self.dropped: list[Side] = []  # Streams that nothing refers to any more, stored here by finalizers.

    # --- streams ---------------------------------------------------------------------------------------------------------

    def new(self, manual: bool = False) -> Side:
        """Return a new stream. ``manual``: see `Side`."""
        with self.lock:
            while self.dropped:
                self.delete(self.dropped.pop())
            self._numbers += 1
            side = self._sides[self._numbers] = Side(self._numbers, self.device.new_stream(), manual)
            return side

    def section(self, number: int) -> Side:
        """Return a stream for one of several pieces of work that may run at the same time."""
        with self.lock:
            while len(self._sections) <= number:
                self._sections.append(self.new())
            return self._sections[number]

    def delete(self, side: Side) -> None:
        """Release a stream; later work of the device's own stream comes after its work."""
        with self.lock:
            if self._sides.pop(side.number, None) is not None:
                if self is active:
                    self._wait(self._own, side)
                self.device.delete_stream(side.handle)

    @contextlib.contextmanager
    def on(self, side: Side) -> Iterator[None]:
        """Have the launches, fills and copies of this thread run on a stream in the block."""
        before = self._selected.side
        with self.lock:
            self._activate()
            self._selected.side = side if side.number in self._sides else None  # A deleted stream stands for the device's own.
        try:
            yield
        finally:
            self._selected.side = before

    # --- work ------------------------------------------------------------------------------------------------------------

    def run(self, work: Callable[[], T], reads: Uses, writes: Uses, by_host: bool = False) -> T:
        """Run ``work``, which uses this memory, on the stream of the thread.

        ``by_host``: the work also concerns the host, and runs on the device's own stream.
        """
        with self.lock:
            side = (None if by_host else self._selected.side) or self._own
            read, written = _tracked(reads), _tracked(writes)
            if read is None or written is None:
                return self._after_all(work)
            if not side.manual:
                for number, place in self._needed(side, read, written).items():
                    if side.seen.get(number, 0) < place and number in self._sides:
                        self._wait(side, self._sides[number])
            with self.device.on_stream(side.handle):
                result = work()
            self._note(side, read, written)
            if side is self._own:
                self._retire(by_host)
            else:
                self._alone = 0
            return result

    def after_all(self, work: Callable[[], T]) -> T:
        """Run ``work`` after all work so far, and before all later work."""
        with self.lock:
            return self._after_all(work)

    def join(self) -> None:
        """Have the device's own stream wait for all others. Until one of them is used again, no order is tracked."""
        global active
        with self.lock:
            if active is not self:
                return
            self._wait_for_all()
            if self._selected.side is None:
                active = None
                self._memory.clear()
                validity.resume()

    def _activate(self) -> None:
        global active
        if active is None:
            validity.suspend()
            self._memory.clear()
            active = self

    def _after_all(self, work: Callable[[], T]) -> T:
        self._wait_for_all()
        self._memory.clear()
        return work()

    def _wait_for_all(self) -> None:
        for side in self._sides.values():
            if side is not self._own and self._own.seen.get(side.number, 0) < side.given:
                self._wait(self._own, side)

    def _wait(self, then: Side, first: Side) -> None:
        """Have later work of ``then`` come after the work of ``first`` so far."""
        self.device.order_streams(first.handle, then.handle)
        then.seen[first.number] = first.given
        for number, place in first.seen.items():
            if number != then.number:
                then.seen[number] = max(then.seen.get(number, 0), place)

    def _needed(self, side: Side, reads: Sequence[Tracked], writes: Sequence[Tracked]) -> dict[int, int]:
        """Return the positions in the work of other streams that work with this memory must wait for."""
        needed: dict[int, int] = {}

        def after(number: int, place: int) -> None:
            if number != side.number:
                needed[number] = max(needed.get(number, 0), place)

        for uses, changes in ((reads, False), (writes, True)):
            for memory, part in uses:
                for used in self._parts(memory, part):
                    after(*used.write)
                    for number, place in used.reads.items() if changes else ():
                        after(number, place)
        return needed

    def _parts(self, memory: Allocation, part: str) -> list[_Part]:
        """Return the known uses of the parts that may overlap one. Memory without known uses was last used by the device's own stream."""
        known = self._memory.get(memory.number)
        if known is None:
            self._own.given += 1
            known = self._memory[memory.number] = {"": _Part((0, self._own.given))}
        return list(known.values()) if not part else [known[name] for name in ("", part) if name in known]

    def _note(self, side: Side, reads: Sequence[Tracked], writes: Sequence[Tracked]) -> None:
        side.given += 1
        for memory, part in reads:
            self._parts(memory, part)
            known = self._memory[memory.number]
            if part not in known:
                known[part] = _Part(known[""].write)
            known[part].reads[side.number] = side.given
        for memory, part in writes:
            if part:
                self._parts(memory, part)
                self._memory[memory.number][part] = _Part((side.number, side.given))
            else:
                self._memory[memory.number] = {"": _Part((side.number, side.given))}

    def _retire(self, by_host: bool) -> None:
        """Stop tracking, after work on the device's own stream, if it is the only stream with work."""
        self._alone += 1
        if self._alone >= _ALONE and self._selected.side is None and not by_host:
            self._alone = 0
            if all(self.device.stream_done(side.handle) for side in self._sides.values() if side is not self._own):
                self.join()


def close(order: Order | None) -> None:
    """Close ``order`` at the end of its session."""
    global active
    if order is not None and active is order:
        active = None
        validity.resume()
