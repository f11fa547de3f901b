"""Preparation of launches for compiled code: steps that check and pack the arguments of calls like one that Python has just launched."""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from spirograd.base.arguments import FixedLaunch, Write
from spirograd.base.arrays import Array
from spirograd.base.artifact import NARROW, CompiledKernel, DisjointArray, Slot
from spirograd.base.dtypes import DType
from spirograd.base.launch_cursor import StepKind
from spirograd.base.records import dataclass
from spirograd.base.sizes.size_nodes import Arg, Extent, Size, leaves
from spirograd.base.validity import NotPrepared, Record
from spirograd.runtime.array_overlap import span
from spirograd.runtime.native import object_layout
from spirograd.runtime.native.array_words import PACKED, ROLES
from spirograd.runtime.native.launch_code import BEFORE, STEP_BYTES
from spirograd.runtime.native.state import MOST_BLOCK_BYTES, MOST_BUFFERS, MOST_HELD, MOST_SPANS

if TYPE_CHECKING:
    from spirograd.base.device import Lock
    from spirograd.base.protocols import Place
    from spirograd.base.sizes.evaluate import Shaped

_FIRST_ADDRESS = 16
_FIRST_EXTENT = _FIRST_ADDRESS + 8 * len(ROLES)
_I64_MOST = 2**63 - 1
_Step = tuple[str, int, int, int]
# Steps that need no current object.
_FIRST = ("argument", "given", "item", "names", "words")
# Steps whose outcome depends on nothing but the arguments of the call, where these are the same objects or equal integers.
_LASTING = ("argument", "given", "same", "integer32", "integer64", "boolean", "names", "words", "known_span", "overlap", "number")
# The destination of scalars that the kernel does not use.
_NOWHERE = MOST_BLOCK_BYTES - 8


@dataclass(frozen=True, slots=True)
class Prepared:
    """A record of the epoch ``number`` (see `validity`), with the objects that it refers to and keeps alive.

    ``about``: equal for records of the same calls. ``fixed``: for launches whose argument block is the same in all calls with the same
    objects and integers, and which do nothing but write to memory.
    """

    number: int
    record: bytes
    objects: tuple[object, ...]
    about: tuple[object, ...]
    fixed: FixedLaunch | None


class LaunchSteps:
    """A list of the steps of launches of ``kernel``. Flat arguments are added in order, by `scalar`, `array`, `host_array` or `unchanged`;
    those of several kernels one after the other, if there is no ``kernel`` and all are kept.

    ``steps``: addresses of the code's steps. ``block``: the argument block of the launch, in which the steps replace some words.
    ``record``: the recorded launch, see `validity.Record`. ``host_arrays``: whether kernels use memory of the host in place. ``compared``:
    the arrays that each launch compares, see `compare`.
    """

    def __init__(
        self,
        kernel: CompiledKernel | None,
        steps: Mapping[str, int],
        block: bytes,
        record: Record,
        host_arrays: bool = True,
        compared: Sequence[DisjointArray] = (),
    ) -> None:
        self.fixed: set[int] = set()  # Flat arguments that are `unchanged`.
        self.mortal: list[object] = []  # Objects that a record does not keep alive: it must not be used when one of them is gone.
        self._record = record
        self._host_arrays = host_arrays
        self._compared = compared
        self._same_arrays = len(compared) > MOST_SPANS
        self._keeps_all = False
        self._scalars_kept: set[int] = set()
        self._extents_kept: set[tuple[int, int]] = set()
        self._kernel = kernel
        self._writes: list[Write] = []
        self._number: tuple[Callable[[], int], bool] | None = None  # what numbers launches, and whether the kernel reads the number
        self._codes = steps
        self._block = block
        self._steps: list[_Step] = []
        self._locked: list[_Step] = []
        self._after: list[_Step] = []
        self._objects: list[object] = [record.step]
        self._flat = 0
        self._held = self._buffers = 0
        self._scalars: dict[int, Slot] = {}
        self._arrays: dict[int, list[Slot]] = {}
        for slot in () if kernel is None else kernel.args.slots:
            if slot.kind == "scalar":
                self._scalars[slot.index] = slot
            elif slot.kind in ("array", "shape"):
                self._arrays.setdefault(slot.index, []).append(slot)
        if len(block) > _NOWHERE:
            raise NotPrepared
        if record.step is not None:
            self._steps.append(("next_step", record.step.cursor.address, record.step.number, 0))

    # --- the current object ------------------------------------------------------------------------------------------------

    def argument(self, number: int) -> None:
        """Make an argument of the call the current object."""
        self._steps.append(("argument", number, 0, 0))

    def member(self, name: str) -> None:
        """Make an attribute of the current object the current object."""
        self._steps.append(("member", self._named(name), 0, 0))

    def same(self, value: object, mortal: bool = False) -> None:
        """Check that the current object is ``value``. ``mortal``: do not keep it alive."""
        (self.mortal if mortal else self._objects).append(value)
        self._steps.append(("same", id(value), 0, 0))

    def equal(self, value: object) -> None:
        """Check that the current object has the type of ``value``, and equals it."""
        self._steps.append(("equal", self._named(value), self._named(type(value)), 0))

    def ask(self, is_same: Callable[[object], bool]) -> None:
        """Check that ``is_same`` returns True for the current object."""
        self._steps.append(("ask", self._named(is_same), 0, 0))

    def item(self, dictionary: Mapping[str, object], key: str) -> None:
        """Check that this dictionary has the same object under this key as now."""
        value = dictionary.get(key)
        self._objects.append(value)
        self._steps.append(("item", self._named(key), self._named(dictionary), 0 if value is None else id(value)))

    def names(self, dictionary: Mapping[Hashable, object], items: Mapping[Hashable, tuple[object, ...]]) -> None:
        """Check that this dictionary has these objects under these keys; an empty tuple stands for a missing key."""
        words = [0, len(items)]
        for key, value in items.items():
            words += [self._named(key), self._named(value[0]) if value else 0]
        self._steps.append(("names", self._table(words), self._named(dictionary), object_layout.version_address(dictionary)))

    def cells(self, cells: Sequence[object], contents: Sequence[object]) -> None:
        """Check that these cells contain these objects."""
        if not object_layout.has_cells():
            raise NotPrepared
        words = [w for cell, held in zip(cells, contents) for w in (object_layout.content_address(cell), self._named(held))]
        self._objects += cells
        self._steps.append(("words", self._table(words), len(cells), 0))

    def _table(self, words: Sequence[int]) -> int:
        """Return the address of these words, which stay alive and may be written."""
        table = (ctypes.c_uint64 * len(words))(*words)
        self._objects.append(table)
        return ctypes.addressof(table)

    def given(self, value: object) -> None:
        """Make this object the current object."""
        self._steps.append(("given", self._named(value), 0, 0))

    def entry(self, number: int) -> None:
        """Make an entry of the current list the current object."""
        self._steps.append(("entry", number, 0, 0))

    # --- unchanged values: called before the arguments are recorded -----------------------------------------------------

    def keep_scalars(self, scalars: Iterable[int]) -> None:
        """Check that these flat scalars are equal."""
        self._scalars_kept.update(scalars)

    def keep_arrays(self) -> None:
        """Check that arrays are the same."""
        self._same_arrays = True

    def keep_all(self) -> None:
        """Check that scalars are equal, and arrays the same."""
        self._keeps_all = self._same_arrays = True

    def keep_sizes(self, sizes: Iterable[Size | None]) -> None:
        """Check that these sizes, which depend on arguments alone, are equal."""
        for size in sizes:
            for leaf in () if size is None else leaves(size):
                if isinstance(leaf, Arg):
                    self._scalars_kept.add(leaf.number)
                elif isinstance(leaf, Extent):
                    self._extents_kept.add((leaf.array, leaf.axis))
                else:
                    raise NotPrepared

    # --- flat arguments ----------------------------------------------------------------------------------------------------

    def unchanged(self, count: int = 1) -> None:
        """Take the next flat arguments from the recorded launch."""
        self.fixed.update(range(self._flat, self._flat + count))
        self._flat += count

    def scalar(self, t: DType, value: object) -> None:
        """Take the current object, a number like ``value``, as the next flat argument."""
        if self._keeps_all or self._flat in self._scalars_kept:
            (self.equal if value else self.same)(value)  # 0.0 equals -0.0
            self.unchanged()
            return
        slot = self._scalars.get(self._flat)
        self._flat += 1
        place = _NOWHERE if slot is None else slot.offset
        bits = 32 if slot is None or slot.dtype is None or slot.dtype.size == 4 else 64
        if t.is_float:
            self._steps.append((f"float{bits}", place, 0, 0))
        elif t.kind == "bool":
            self._steps.append(("boolean", place, 0, 0))
        else:
            self._steps.append((f"integer{bits}", int(t.min), min(int(t.max), _I64_MOST), place))

    def array(self, value: Shaped) -> None:
        """Take the current object as the next flat argument: any ndarray of the type and session of ``value``."""
        if self._same_arrays:
            self.same(value, mortal=True)
            self.unchanged()
            return
        words = getattr(value, PACKED)
        if not words:
            raise NotPrepared
        self._steps.append(("array", self._named(PACKED), struct.unpack_from("<q", words[0])[0], 0))
        self._keep_extents(struct.unpack_from(f"<{len(value.shape)}q", words[0], _FIRST_EXTENT), _FIRST_EXTENT)
        for k, compared in self._compared_now():
            self._steps.append(("span", _FIRST_ADDRESS + 8 * ROLES.index(compared.role), compared.nbytes, k))
        for slot in self._arrays.get(self._flat, ()):
            if slot.kind == "shape":
                self._steps.append(("word32", _FIRST_EXTENT + 8 * slot.axis, slot.offset, 0))
            else:
                self._steps.append(("address", _FIRST_ADDRESS + 8 * ROLES.index(slot.role), slot.offset, 0))
        for role in self._written("array", self._flat):
            for n in range(len(ROLES)) if role == "" else (ROLES.index(role),):
                self._steps.append(("held", 1 + n, 0, 0))
                self._after.append(("tick_held", self._named(""), self._held, 0))
                self._held += 1
        if self._held > MOST_HELD:
            raise NotPrepared
        self._flat += 1

    def host_array(self, value: Array) -> None:
        """Take the current object as the next flat argument: any NumPy array with this number of axes and element type, used in place."""
        format, nbytes = value.data.format.encode() + b"\0", value.itemsize
        slots = self._arrays.get(self._flat, ())
        roles = {slot.role for slot in slots if slot.kind == "array"}
        self._buffers += 1
        in_place = self._host_arrays and not self._same_arrays and not roles - {"primal"}
        if not in_place or len(format) != 2 or nbytes & (nbytes - 1) or self._buffers > MOST_BUFFERS:
            raise NotPrepared
        kind = value.ndim | format[0] << 16 | nbytes << 32
        self._steps.append(("buffer", self._named(np.ndarray), kind, NARROW * nbytes))
        self._steps += [("address", 0, slot.offset, 0) for slot in slots if slot.kind == "array"]
        self._steps += [("buffer_span", 0, 0, k) for k, _ in self._compared_now()]
        self._steps.append(("shape", 0, 0, 0))
        self._steps += [("word32", 8 * slot.axis, slot.offset, 0) for slot in slots if slot.kind == "shape"]
        self._keep_extents(value.shape, 0)
        self._flat += 1

    def _keep_extents(self, extents: Sequence[int], first: int) -> None:
        """Check the extents. ``first``: the index of the first extent in the words of the array."""
        for k, axis in self._extents_kept:
            if k == self._flat:
                self._steps.append(("extent", first + 8 * axis, int(extents[axis]), 0))

    def _compared_now(self) -> list[tuple[int, DisjointArray]]:
        """Return the compared arrays that are the next flat argument in some role, with their numbers."""
        return [(k, array) for k, array in enumerate(self._compared) if array.index == self._flat]

    def compare(self, arrays: Sequence[Place | None], overlap: bool) -> None:
        """Check whether two of the compared arrays overlap, after all arguments. ``arrays``: those of the recorded launch; if all of them
        are `unchanged`, so is the answer."""
        if all(array.index in self.fixed for array in self._compared):
            return
        for k, array in enumerate(self._compared):
            if array.index in self.fixed:
                self._steps.append(("known_span", *span(array, arrays[array.index]), k))
        written = sum(array.written << k for k, array in enumerate(self._compared))
        self._steps.append(("overlap", len(self._compared), written, int(overlap)))

    # --- launch and result -----------------------------------------------------------------------------------------------

    def numbered(self, next_number: Callable[[], int], accept: Callable[[int], bool] | None = None) -> None:
        """Give the launch a number, as the last step before it.

        ``accept`` is called with the number under the outer lock of `finish`; unless it returns True, Python runs the launch.
        """
        assert self._kernel is not None
        places = [slot.offset for slot in self._kernel.args.slots if slot.kind == "launch"]
        steps = self._steps if accept is None else self._locked
        self._number = next_number, bool(places)
        steps.append(("number", self._named(next_number), places[0] if places else _NOWHERE, 0))
        if accept is not None:
            steps.append(("ask", self._named(accept), 0, 0))

    def returned(self, read: Callable[[], object]) -> None:
        """Return the result of ``read`` after the launch."""
        self._after.append(("result", self._named(read), 0, 0))

    def reported(self, address: int, report: Callable[[int], None]) -> None:
        """Call ``report`` with the number of the launch if the word at this address is not 0, as the last step."""
        self._after.append(("report", address, self._named(report), 0))

    def called(self, function: Callable[[], object]) -> None:
        """Call this at each launch."""
        self._after.append(("called", self._named(function), 0, 0))

    def wrote(self, generations: dict[str, int], part: str) -> None:
        """Record that the launch writes this part of an allocation."""
        self._writes.append((generations, part))
        self._after.append(("tick", self._named(part), self._named(generations), 0))

    def advanced(self, step: StepKind) -> None:
        """Advance the cursor of a tape, after the writes of the launch."""
        self._locked.append(("begin_step", step.cursor.address, 0, 0))
        self._after.append(("end_step", step.cursor.address, self._ticks(), 0))

    def _ticks(self) -> int:
        """Return the number of ticks that a launch takes for its writes."""
        return sum(name in ("tick", "tick_held") for name, *_ in self._after)

    def _written(self, kind: str, index: int) -> Iterable[str]:
        """Return the parts of an argument or a tree that the kernel writes."""
        assert self._kernel is not None
        return [part for k, i, part in self._kernel.effects.all_written() if (k, i) == (kind, index)]

    def _named(self, value: object) -> int:
        """Return the address of an object, which stays alive."""
        self._objects.append(value)
        return id(value)

    def finish(self, entry: tuple[int, int], keep: Sequence[object], outer: Lock | None = None, lock: Lock | None = None) -> Prepared:
        """Return the finished record, which keeps ``keep`` alive.

        ``entry``: addresses of the function that launches, and of its context. ``outer``, ``lock``: held during launches, acquired in this
        order.
        """
        checked = _without_repetitions(self._steps) if self._keeps_all else self._steps
        before, locked, after = (self._packed(steps) for steps in (checked, self._locked, self._after))
        methods = [method for held in (outer, lock) for method in ((0, 0) if held is None else self._methods(held))]
        locked_at = BEFORE + len(before)
        after_at = locked_at + len(locked)
        block_at = after_at + len(after)
        nbytes, of = len(self._block), self._record
        suspensions = 0 if of.step is None else 1  # that of the open tape
        words = (block_at + nbytes, of.number, suspensions, of.arguments, nbytes, *entry, *methods, locked_at, after_at, block_at)
        record = struct.pack(f"<{len(words)}q", *words) + before + locked + after + self._block
        about = (*self._steps, *self._locked, *self._after)
        fixed = None if outer is not None or lock is not None else self._fixed()
        return Prepared(self._record.number, record, (*self._objects, *keep), about, fixed)

    def _fixed(self) -> FixedLaunch | None:
        """Return the launch by an argument block that lasts, if it has one."""
        lasts = all(name in _LASTING for name, *_ in self._steps) and all(name == "tick" for name, *_ in self._after)
        if not lasts or self._locked or self._number is None or self._number[1]:
            return None
        return FixedLaunch(len(self._block), self._number[0], self._writes)

    def _methods(self, lock: Lock) -> tuple[int, int]:
        return self._named(lock.acquire), self._named(lock.release)

    def _packed(self, steps: Sequence[_Step]) -> bytes:
        listed = [struct.pack("<4q", self._codes[name], *operands) for name, *operands in steps]
        return b"".join(listed) + bytes(STEP_BYTES)


def _without_repetitions(steps: Sequence[_Step]) -> list[_Step]:
    """Return checks without those that come again: each looks at an object first, or at none."""
    checks: list[list[_Step]] = []
    for step in steps:
        if step[0] in _FIRST or not checks:
            checks.append([])
        checks[-1].append(step)
    return [step for check in dict.fromkeys(map(tuple, checks)) for step in check]
