"""Work on several streams of a device, with the results of one stream.

An `Order` knows which work uses which memory, and has a stream wait for another one before it touches memory that the other one changes,
or before it changes what the other one reads. It does so while there may be work on streams beside the device's own, which is number 0:
from the first use of another stream (`active` is then set, and all launches go through Python) until the device's own stream waits for all
of them.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import field
from typing import Any, TypeVar

from spirograd.base import validity
from spirograd.base.device import HasStreams
from spirograd.base.records import dataclass

T = TypeVar("T")
Uses = Iterable["tuple[Any, str]"]  # allocations and parts of them, "" for all

active: Order | None = None
# So many launches in a row on the device's own stream, and it is found out whether the others are done.
_ALONE = 64


@dataclass(slots=True, eq=False)
class Side:
    """A stream. ``number``: in its `Order`. ``given``: how much work it was given. ``seen``: by number of another stream, up to where of
    its work this one comes after. ``manual``: it waits for nothing by itself."""

    number: int
    handle: Any
    manual: bool = False
    given: int = 0
    seen: dict[int, int] = field(default_factory=dict)


@dataclass(slots=True, eq=False)
class _Part:
    """Who used a part of an allocation last: stream and place in its work."""

    write: tuple[int, int]
    reads: dict[int, int] = field(default_factory=dict)


class _Selected(threading.local):
    side: Side | None = None


class Order:
    """See the head of this file. ``device``: whose streams they are."""

    def __init__(self, device: HasStreams) -> None:
        self.device = device
        self.lock = threading.RLock()
        self._own = Side(0, None)
        self._sides: dict[int, Side] = {0: self._own}
        self._numbers = 0
        self._selected = _Selected()
        self._memory: dict[int, dict[str, _Part]] = {}  # by number of the allocation
        self._alone = 0
        self._sections: list[Side] = []
        self.dropped: list[Side] = []  # streams that nothing refers to any more, put here by finalizers

    # --- streams ---------------------------------------------------------------------------------------------------------

    def new(self, manual: bool = False) -> Side:
        """A new stream. ``manual``: see `Side`."""
        with self.lock:
            while self.dropped:
                self.delete(self.dropped.pop())
            self._numbers += 1
            side = self._sides[self._numbers] = Side(self._numbers, self.device.new_stream(), manual)
            return side

    def section(self, number: int) -> Side:
        """A stream for one of several pieces of work that may run at the same time."""
        with self.lock:
            while len(self._sections) <= number:
                self._sections.append(self.new())
            return self._sections[number]

    def delete(self, side: Side) -> None:
        """Give a stream back; what comes next on the device's own one comes after its work."""
        with self.lock:
            if self._sides.pop(side.number, None) is not None:
                if self is active:
                    self._wait(self._own, side)
                self.device.delete_stream(side.handle)

    @contextlib.contextmanager
    def on(self, side: Side) -> Iterator[None]:
        """Have the launches, fills and copies of this thread go to a stream in the block."""
        before = self._selected.side
        with self.lock:
            self._activate()
            self._selected.side = side if side.number in self._sides else None  # one that was deleted stands for the device's own
        try:
            yield
        finally:
            self._selected.side = before

    # --- work ------------------------------------------------------------------------------------------------------------

    def run(self, work: Callable[[], T], reads: Uses, writes: Uses, by_host: bool = False) -> T:
        """Do ``work``, which uses this memory, on the stream of the thread; ``by_host``: it also concerns the host, and goes to the
        device's own stream."""
        with self.lock:
            side = (None if by_host else self._selected.side) or self._own
            reads, writes = list(reads), list(writes)
            if any(memory is None or memory.keep is not None for memory, _ in (*reads, *writes)):
                return self._after_all(work)
            if not side.manual:
                for number, place in self._needed(side, reads, writes).items():
                    if side.seen.get(number, 0) < place and number in self._sides:
                        self._wait(side, self._sides[number])
            with self.device.on_stream(side.handle):
                result = work()
            self._note(side, reads, writes)
            if side is self._own:
                self._retire(by_host)
            else:
                self._alone = 0
            return result

    def after_all(self, work: Callable[[], T]) -> T:
        """Do ``work`` after all work so far, and before all that comes next."""
        with self.lock:
            return self._after_all(work)

    def join(self) -> None:
        """Have the device's own stream wait for all others. Until one of them is used again, all is as if there was only this one."""
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
        """Have ``then`` do what it is given from now on after what ``first`` was given so far."""
        self.device.order_streams(first.handle, then.handle)
        then.seen[first.number] = first.given
        for number, place in first.seen.items():
            if number != then.number:
                then.seen[number] = max(then.seen.get(number, 0), place)

    def _needed(self, side: Side, reads: Sequence[Any], writes: Sequence[Any]) -> dict[int, int]:
        """Up to where of the work of other streams work that uses this memory must wait."""
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

    def _parts(self, memory: Any, part: str) -> list[_Part]:
        """What is known of the parts that may overlap one. What nothing is known of, the device's own stream used last."""
        known = self._memory.get(memory.number)
        if known is None:
            self._own.given += 1
            known = self._memory[memory.number] = {"": _Part((0, self._own.given))}
        return list(known.values()) if not part else [known[name] for name in ("", part) if name in known]

    def _note(self, side: Side, reads: Sequence[Any], writes: Sequence[Any]) -> None:
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
        """After work on the device's own stream: if it is the only one at work, let it be so."""
        self._alone += 1
        if self._alone >= _ALONE and self._selected.side is None and not by_host:
            self._alone = 0
            if all(self.device.stream_done(side.handle) for side in self._sides.values() if side is not self._own):
                self.join()


def close(order: Order | None) -> None:
    """The session of ``order`` ends."""
    global active
    if order is not None and active is order:
        active = None
        validity.resume()
