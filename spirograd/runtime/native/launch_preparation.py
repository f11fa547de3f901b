"""Preparing launches for compiled code: steps that check and pack the arguments of calls like one that Python has just launched."""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from spirograd.base.artifact import CompiledKernel, Slot
from spirograd.base.dtypes import DType
from spirograd.base.records import dataclass
from spirograd.base.sizes.size_nodes import Arg, Extent, Size, leaves
from spirograd.base.validity import NotPrepared, Record
from spirograd.runtime.native import object_layout
from spirograd.runtime.native.array_words import PACKED, ROLES
from spirograd.runtime.native.launch_code import BEFORE, STEP_BYTES
from spirograd.runtime.native.state import MOST_BLOCK_BYTES, MOST_BUFFERS, MOST_HELD

_FIRST_ADDRESS = 8
_FIRST_EXTENT = _FIRST_ADDRESS + 8 * len(ROLES)
_I64_MOST = 2**63 - 1
_MOST_ELEMENTS = 2**31 - 1  # of arrays whose indices have 32 bits
# Where scalars go that the kernel does not use.
_NOWHERE = MOST_BLOCK_BYTES - 8


@dataclass(frozen=True, slots=True)
class Prepared:
    """A record of the epoch ``number`` (see `validity`), with the objects that it names and keeps alive. ``about``: equal for records of
    the same calls."""

    number: int
    record: bytes
    objects: tuple[Any, ...]
    about: tuple[Any, ...]


class Recording:
    """Collects the steps of launches of ``kernel``. Flat arguments are taken in order, by `scalar`, `array`, `host_array` or
    `unchanged`.

    ``steps``: addresses of the code's steps. ``block``: the argument block of the launch that others are like, but for what is packed anew.
    ``record``: what records them. ``host_arrays``: whether kernels use memory of the host in place.
    """

    def __init__(self, kernel: CompiledKernel, steps: Mapping[str, int], block: bytes, record: Record, host_arrays: bool = True) -> None:
        self.fixed: set[int] = set()  # flat arguments that are `unchanged`
        self.mortal: list[object] = []  # objects that a record does not keep alive: it must not be used when one of them is gone
        self._record = record
        self._host_arrays = host_arrays
        self._same_arrays = False
        self._scalars_kept: set[int] = set()
        self._extents_kept: set[tuple[int, int]] = set()
        self._kernel = kernel
        self._codes = steps
        self._block = block
        self._steps: list[tuple[str, int, int, int]] = []
        self._locked: list[tuple[str, int, int, int]] = []
        self._after: list[tuple[str, int, int, int]] = []
        self._objects: list[object] = []
        self._flat = 0
        self._held = self._buffers = 0
        self._scalars: dict[int, Slot] = {}
        self._arrays: dict[int, list[Slot]] = {}
        for slot in kernel.args.slots:
            if slot.kind == "scalar":
                self._scalars[slot.index] = slot
            elif slot.kind in ("array", "shape"):
                self._arrays.setdefault(slot.index, []).append(slot)
        if len(block) > _NOWHERE:
            raise NotPrepared

    # --- the current object ------------------------------------------------------------------------------------------------

    def argument(self, number: int) -> None:
        """Look at an argument of the call."""
        self._steps.append(("argument", number, 0, 0))

    def member(self, name: str) -> None:
        """Look at an attribute of what was looked at."""
        self._steps.append(("member", self._named(name), 0, 0))

    def same(self, value: object, mortal: bool = False) -> None:
        """It must be this object. ``mortal``: which is not kept alive."""
        (self.mortal if mortal else self._objects).append(value)
        self._steps.append(("same", id(value), 0, 0))

    def equal(self, value: object) -> None:
        """It must be of this type and equal."""
        self._steps.append(("equal", self._named(value), self._named(type(value)), 0))

    def ask(self, is_same: Callable[[object], bool]) -> None:
        """``is_same`` must give True for it."""
        self._steps.append(("ask", self._named(is_same), 0, 0))

    def item(self, dictionary: Mapping[str, object], key: str) -> None:
        """What this dictionary has under this key must be the same object as now."""
        value = dictionary.get(key)
        self._objects.append(value)
        self._steps.append(("item", self._named(key), self._named(dictionary), 0 if value is None else id(value)))

    def names(self, dictionary: Mapping[Hashable, object], items: Mapping[Hashable, tuple[object, ...]]) -> None:
        """This dictionary must have these objects under these keys, none where the tuple is empty."""
        words = [0, len(items)]
        for key, value in items.items():
            words += [self._named(key), self._named(value[0]) if value else 0]
        self._steps.append(("names", self._table(words), self._named(dictionary), object_layout.version_address(dictionary)))

    def cells(self, cells: Sequence[object], contents: Sequence[object]) -> None:
        """These cells must hold these objects."""
        if not object_layout.has_cells():
            raise NotPrepared
        words = [w for cell, held in zip(cells, contents) for w in (object_layout.content_address(cell), self._named(held))]
        self._objects += cells
        self._steps.append(("words", self._table(words), len(cells), 0))

    def _table(self, words: Sequence[int]) -> int:
        """The address of these words, which stay alive and may be written."""
        table = (ctypes.c_uint64 * len(words))(*words)
        self._objects.append(table)
        return ctypes.addressof(table)

    def given(self, value: object) -> None:
        """Look at this object."""
        self._steps.append(("given", self._named(value), 0, 0))

    def entry(self, number: int) -> None:
        """Look at an entry of the list that was looked at."""
        self._steps.append(("entry", number, 0, 0))

    # --- what must stay as it is: said before the arguments are recorded ---------------------------------------------------

    def keep_scalars(self, scalars: Iterable[int]) -> None:
        """These flat scalars must be equal."""
        self._scalars_kept.update(scalars)

    def keep_arrays(self) -> None:
        """Arrays must be the same."""
        self._same_arrays = True

    def keep_sizes(self, sizes: Iterable[Size | None]) -> None:
        """These sizes, which depend on arguments alone, must be equal."""
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
        """The next flat arguments are those of the launch that was recorded."""
        self.fixed.update(range(self._flat, self._flat + count))
        self._flat += count

    def scalar(self, t: DType, value: object) -> None:
        """The next flat argument is the number that is looked at, like ``value``."""
        if self._flat in self._scalars_kept:
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

    def array(self, value: object) -> None:
        """The next flat argument is the ndarray that is looked at: any of the type and session of ``value``."""
        if self._same_arrays:
            self.same(value, mortal=True)
            self.unchanged()
            return
        words = getattr(value, PACKED)
        if not words:
            raise NotPrepared
        self._steps.append(("array", self._named(PACKED), struct.unpack_from("<q", words[0])[0], 0))
        self._keep_extents(value, _FIRST_EXTENT)
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

    def host_array(self, value: np.ndarray[Any, Any]) -> None:
        """The next flat argument is the NumPy array that is looked at: any with as many axes and this type of elements, used in place."""
        format, nbytes = value.data.format.encode() + b"\0", value.itemsize
        slots = self._arrays.get(self._flat, ())
        roles = {slot.role for slot in slots if slot.kind == "array"}
        self._buffers += 1
        in_place = self._host_arrays and not self._same_arrays and not roles - {"primal"}
        if not in_place or len(format) != 2 or nbytes & (nbytes - 1) or self._buffers > MOST_BUFFERS:
            raise NotPrepared
        kind = value.ndim | format[0] << 16 | nbytes << 32
        self._steps.append(("buffer", self._named(np.ndarray), kind, _MOST_ELEMENTS * nbytes))
        self._steps += [("address", 0, slot.offset, 0) for slot in slots if slot.kind == "array"]
        self._steps.append(("shape", 0, 0, 0))
        self._steps += [("word32", 8 * slot.axis, slot.offset, 0) for slot in slots if slot.kind == "shape"]
        self._keep_extents(value, 0)
        self._flat += 1

    def _keep_extents(self, value: Any, first: int) -> None:
        """``first``: where the first extent is in the words of the array."""
        for k, axis in self._extents_kept:
            if k == self._flat:
                self._steps.append(("extent", first + 8 * axis, int(value.shape[axis]), 0))

    # --- what else there is ------------------------------------------------------------------------------------------------

    def numbered(self, next_number: Callable[[], int], told: Callable[[int], bool] | None = None) -> None:
        """The last step before a launch: it gets a number. ``told`` gets that with the outer lock of `finish` held; if it does not give
        True, the launch is left to Python."""
        places = [slot.offset for slot in self._kernel.args.slots if slot.kind == "launch"]
        steps = self._steps if told is None else self._locked
        steps.append(("number", self._named(next_number), places[0] if places else _NOWHERE, 0))
        if told is not None:
            steps.append(("ask", self._named(told), 0, 0))

    def returned(self, read: Callable[[], object]) -> None:
        """The call returns what ``read`` gives after the launch."""
        self._after.append(("result", self._named(read), 0, 0))

    def reported(self, address: int, report: Callable[[int], None]) -> None:
        """If there is anything but 0 at this address, ``report`` is called with the number of the launch. Comes last."""
        self._after.append(("report", address, self._named(report), 0))

    def called(self, function: Callable[[], object]) -> None:
        """Launches call this."""
        self._after.append(("called", self._named(function), 0, 0))

    def wrote(self, generations: dict[str, int], part: str) -> None:
        """The launch writes this part of an allocation."""
        self._after.append(("tick", self._named(part), self._named(generations), 0))

    def _written(self, kind: str, index: int) -> Iterable[str]:
        """The parts of an argument or a tree that the kernel writes."""
        return [part for k, i, part in self._kernel.effects.all_written() if (k, i) == (kind, index)]

    def _named(self, value: object) -> int:
        """The address of an object, which stays alive."""
        self._objects.append(value)
        return id(value)

    def finish(self, entry: tuple[int, int], keep: Sequence[Any], outer: Any = None, lock: Any = None) -> Prepared:
        """``entry``: addresses of the function that launches, and of its context. ``outer``, ``lock``: held during launches, taken in this
        order. The record keeps ``keep``."""
        before, locked, after = (self._packed(steps) for steps in (self._steps, self._locked, self._after))
        methods = [method for held in (outer, lock) for method in ((0, 0) if held is None else self._methods(held))]
        locked_at = BEFORE + len(before)
        after_at = locked_at + len(locked)
        block_at = after_at + len(after)
        nbytes, of = len(self._block), self._record
        words = (block_at + nbytes, of.number, of.arguments, nbytes, *entry, *methods, locked_at, after_at, block_at)
        record = struct.pack(f"<{len(words)}q", *words) + before + locked + after + self._block
        about = (*self._steps, *self._locked, *self._after)
        return Prepared(self._record.number, record, (*self._objects, *keep), about)

    def _methods(self, lock: Any) -> tuple[int, int]:
        return self._named(lock.acquire), self._named(lock.release)

    def _packed(self, steps: Sequence[tuple[str, int, int, int]]) -> bytes:
        listed = [struct.pack("<4q", self._codes[name], *operands) for name, *operands in steps]
        return b"".join(listed) + bytes(STEP_BYTES)
