"""Kernel reports: the fault record and the print ring. Both are plain device buffers, so they work on every back end."""

from __future__ import annotations

import bisect
import re
import struct
import sys
import threading
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import numpy as np

from spirograd.base.artifact import (
    FAULT_FLAG,
    FAULT_LAUNCH,
    FAULT_LOOPS,
    FAULT_MAX_OPERANDS,
    FAULT_OPERANDS,
    FAULT_SITE,
    FAULT_WORDS,
    PRINT_CAPACITY,
    PRINT_CURSOR,
    PRINT_DATA,
    PRINT_WORDS,
    CompiledKernel,
    FaultSite,
    PrintSite,
)
from spirograd.base.dtypes import DType
from spirograd.base.errors import AdStackOverflow, OutOfDeviceMemory, SpirogradAssertionError, SpirogradRuntimeError, render
from spirograd.runtime.allocations import Allocation, Memory

if TYPE_CHECKING:
    from spirograd.base.protocols import Scalar

# No record begins with this word: it marks ring space that was not written since the last drain.
_UNWRITTEN = 0xFFFFFFFF
_FAULT_COUNT = FAULT_SITE + 2  # Word 3: operand words written.
# The most changes of kernel that are remembered between two drains; the launcher drains when they are used up.
_MAX_RUNS = 1 << 14
# In a fault message: an escaped brace, or operand {number} or {number:format}.
_PLACEHOLDER = re.compile(r"(\{\{|\}\})|\{(\d+)(?::([^{}]*))?\}")


def decode_value(low: int, high: int, dtype: DType) -> Scalar:
    """Return the Python value of a 64-bit bit pattern given as two 32-bit words; the unused high bits are ignored."""
    if dtype.kind == "bool":
        return bool(low & 1)
    if dtype.is_float:
        raw = struct.pack("<II", low, high)[: dtype.size]
        return float(np.frombuffer(raw, dtype.np)[0])
    bits = (low | high << 32) & ((1 << dtype.bits) - 1)
    return bits - (1 << dtype.bits) if dtype.is_signed and bits >> (dtype.bits - 1) else bits


def format_value(value: object, dtype: DType, spec: str) -> str:
    """Return ``format(value, spec)``; without a spec, a float has the fewest digits that identify it in its own type."""
    if spec:
        try:
            return format(value, spec)
        except (ValueError, TypeError) as error:
            raise SpirogradRuntimeError(f"print in a kernel: format {spec!r} does not fit a value of type {dtype}: {error}") from error
    if dtype.is_float and dtype.bits < 64:
        return str(float(str(dtype.np.type(value))))
    return str(value)


def format_print(site: PrintSite, words: Sequence[int]) -> str:
    """Return the text of one print record; ``words`` are the operand words, two per value."""
    out: list[str] = []
    for part in site.parts:
        if isinstance(part, str):
            out.append(part)
            continue
        index, spec = part
        dtype = site.dtypes[index]
        out.append(format_value(decode_value(words[2 * index], words[2 * index + 1], dtype), dtype, spec or ""))
    return "".join(out)


def fault_error(site: FaultSite, words: Sequence[int], kernel: str) -> SpirogradRuntimeError:
    """Return the exception for a fault: message with its operands filled in, the source line, the chain of inlined calls."""
    shown = min(len(site.dtypes), len(words) // 2, FAULT_MAX_OPERANDS)
    values = [decode_value(words[2 * i], words[2 * i + 1], site.dtypes[i]) for i in range(shown)]

    def operand(match: re.Match[str]) -> str:
        if match[1]:
            return match[1][0]
        index = int(match[2])
        return format_value(values[index], site.dtypes[index], match[3] or "") if index < shown else "?"

    message = _PLACEHOLDER.sub(operand, site.message)
    kind = _EXCEPTIONS.get(site.code, SpirogradAssertionError)
    return kind(render(message if site.loc is not None else f"{message} (in kernel {kernel})", site.loc, _HINTS.get(site.code, "")))


_HINTS = {
    "adstack": "launch the gradient again: its sizes will be found anew. What this launch added to gradients is wrong: clear them first. "
    "The bounds of the loop were changed through a raw address, or grew too much at once. Change them by spirograd, "
    "or through memory that it hands out (`to_numpy(copy=False)`, DLPack), which is looked at before each launch",
    "race": "have each write to elements of its own, update with atomic operations, such as `x[i] += 1`, or make two loops of this one; "
    "threads of a group can wait for each other: `block.sync()`",
    "stack": "what the launch stored is not to be used. Use a loop where calls go that deep",
}
_EXCEPTIONS: dict[str, type[SpirogradRuntimeError]] = {
    "adstack": AdStackOverflow,
    "cells": OutOfDeviceMemory,
    "loop": SpirogradRuntimeError,
    "space": SpirogradRuntimeError,
    "stack": SpirogradRuntimeError,
}


class _Muted(threading.local):
    muted = False


class Diagnostics:
    """The fault record and print ring of one launcher, and the kernel of each launch number.

    Buffers are allocated when the first kernel that needs them is prepared. `drain` must be called with the device idle.
    """

    def __init__(self, memory: Memory, on_print: Callable[[str], None] | None = None) -> None:
        self._memory = memory
        self._on_print = on_print if on_print is not None else write_stdout
        self._fault: Allocation | None = None
        self._ring: Allocation | None = None
        self._lock = threading.RLock()
        self._numbers: list[int] = []  # The first launch number of each run of launches of one kernel, ascending.
        self._kernels: list[CompiledKernel] = []
        self._muted: list[bool] = []  # Of each run, whether its prints are dropped.
        self._now = _Muted()

    def fault_address(self) -> int:
        """Return the address of the fault record."""
        with self._lock:
            if self._fault is None:
                self._fault = self._memory.allocate(4 * FAULT_WORDS)
            return self._fault.address

    def print_address(self) -> int:
        """Return the address of the print ring."""
        with self._lock:
            if self._ring is None:
                ring = self._memory.allocate(4 * PRINT_WORDS)
                ring.fill(4 * PRINT_DATA, 4 * (PRINT_WORDS - PRINT_DATA), _UNWRITTEN)
                header = [0] * PRINT_DATA
                header[PRINT_CAPACITY] = PRINT_WORDS - PRINT_DATA
                ring.write(0, memoryview(struct.pack(f"<{PRINT_DATA}I", *header)))
                self._ring = ring
            return self._ring.address

    @property
    def muted(self) -> bool:
        """Whether the prints of later launches of the calling thread are dropped."""
        return self._now.muted

    @muted.setter
    def muted(self, muted: bool) -> None:
        self._now.muted = muted

    @property
    def buffers(self) -> list[Allocation]:
        """The buffers of the fault record and of the print ring."""
        return [allocation for allocation in (self._fault, self._ring) if allocation is not None]

    def addresses(self) -> list[int]:
        """Return the addresses of words that are not 0 if there is something to `drain`, on devices whose loops all end."""
        words = [(self._fault, FAULT_FLAG), (self._ring, PRINT_CURSOR)]
        return [allocation.address + 4 * word for allocation, word in words if allocation is not None]

    @property
    def pending(self) -> bool:
        """Whether a kernel that can fail or print was launched since the last drain."""
        return bool(self._numbers)

    @property
    def full(self) -> bool:
        """Whether a drain must come before the next `record`."""
        return len(self._numbers) >= _MAX_RUNS

    def record(self, number: int, kernel: CompiledKernel) -> None:
        """Record that launch ``number`` runs ``kernel``, which can fail or print."""
        with self._lock:
            if not self._kernels or self._kernels[-1] is not kernel or self._muted[-1] != self.muted:
                self._numbers.append(number)
                self._kernels.append(kernel)
                self._muted.append(self.muted)

    def drain(self) -> SpirogradRuntimeError | None:
        """Write the prints in order of launch, then return the error of the first fault, or None. Both buffers are reset."""
        with self._lock:
            if not self._numbers:
                return None
            texts: list[str] = []
            fault: SpirogradRuntimeError | None = None
            try:
                texts = self._drain_prints()
                fault = self._drain_fault()
            finally:
                self._numbers.clear()
                self._kernels.clear()
                self._muted.clear()
        for text in texts:
            self._on_print(text)
        return fault

    def _run_of(self, word: int) -> tuple[int, int] | None:
        """Return the full launch number and the run for the low 32 bits of a launch number."""
        number = self._numbers[0] + ((word - self._numbers[0]) & 0xFFFFFFFF)
        at = bisect.bisect_right(self._numbers, number) - 1
        return (number, at) if at >= 0 else None

    def _kernel_of(self, word: int) -> tuple[int, CompiledKernel] | None:
        """Return the full launch number and the kernel for the low 32 bits of a launch number."""
        run = self._run_of(word)
        return None if run is None else (run[0], self._kernels[run[1]])

    def _drain_prints(self) -> list[str]:
        ring = self._ring
        claimed = 0 if ring is None else _word(ring, PRINT_CURSOR)
        if ring is None or not claimed:
            return []
        used = min(claimed, PRINT_WORDS - PRINT_DATA)
        words = _words(ring, PRINT_DATA, used)
        ring.fill(4 * PRINT_DATA, 4 * used, _UNWRITTEN)
        ring.fill(4 * PRINT_CURSOR, 4, 0)
        records, end = self._records(words)
        texts = [text for _, text in sorted(records, key=lambda record: record[0])]
        if claimed > end:
            texts.append(f"[spirograd: the print buffer was full; {4 * (claimed - end)} bytes of kernel output were lost]\n")
        return texts

    def _records(self, words: list[int]) -> tuple[list[tuple[int, str]], int]:
        """Return (launch number, text) of every complete record that is not muted, and the word where they end."""
        records: list[tuple[int, str]] = []
        at = 0
        while at + 2 <= len(words) and words[at] != _UNWRITTEN:
            run = self._run_of(words[at + 1])
            if run is None or words[at] >= len(self._kernels[run[1]].prints):
                break
            site = self._kernels[run[1]].prints[words[at]]
            end = at + 2 + 2 * len(site.dtypes)
            if end > len(words):
                break
            if not self._muted[run[1]]:
                records.append((run[0], format_print(site, words[at + 2 : end])))
            at = end
        return records, at

    def _drain_fault(self) -> SpirogradRuntimeError | None:
        record = self._fault
        if record is None or not (_word(record, FAULT_FLAG) or self._memory.device.caps.loop_limit):
            return None
        raw = _bytes(record, 0, FAULT_WORDS)
        if raw.count(0) == len(raw):
            return None
        words = struct.unpack(f"<{FAULT_WORDS}I", raw)
        record.fill(0, 4 * FAULT_WORDS, 0)
        unfinished = self._unfinished_loop(words)
        if unfinished is not None:
            return unfinished
        launch = self._kernel_of(words[FAULT_LAUNCH])
        if launch is None or words[FAULT_SITE] >= len(launch[1].faults):
            return SpirogradRuntimeError(
                f"a kernel reported a fault that cannot be read (site {words[FAULT_SITE]}, launch {words[FAULT_LAUNCH]}): "
                "a kernel has probably written outside of its arrays; run with `check_out_of_bound=True`"
            )
        count = min(words[_FAULT_COUNT], 2 * FAULT_MAX_OPERANDS)
        operands = words[FAULT_OPERANDS : FAULT_OPERANDS + count]
        return fault_error(launch[1].faults[words[FAULT_SITE]], operands, launch[1].name)

    def _unfinished_loop(self, words: Sequence[int]) -> SpirogradRuntimeError | None:
        """Return the error of the first launch in which a loop ended early, unless an earlier launch had another fault.

        Within one launch the early end comes first, because other faults may follow from it.
        """
        reports: list[tuple[int, FaultSite, str]] = []
        for site, launch in enumerate(words[FAULT_LOOPS:]):
            launched = self._kernel_of(launch - 1 & 0xFFFFFFFF) if launch else None
            if launched is not None and site < len(launched[1].faults):
                reports.append((launched[0], launched[1].faults[site], launched[1].name))
        if not reports:
            return None
        launch, fault, name = min(reports, key=lambda report: report[0])
        other = self._kernel_of(words[FAULT_LAUNCH]) if words[FAULT_FLAG] else None
        return None if other is not None and other[0] < launch else fault_error(fault, (), name)


def write_stdout(text: str) -> None:
    """Write kernel prints to the standard output, the default."""
    sys.stdout.write(text)


def _words(allocation: Allocation, first: int, count: int) -> list[int]:
    return list(struct.unpack(f"<{count}I", _bytes(allocation, first, count)))


def _bytes(allocation: Allocation, first: int, count: int) -> bytearray:
    """Return the bytes of ``count`` words."""
    raw = bytearray(4 * count)
    allocation.read_into(4 * first, memoryview(raw))
    return raw


def _word(allocation: Allocation, index: int) -> int:
    """Return one word, which is mostly 0.

    The host reads it in place if it can, because this follows every launch on the CPU that may fail.
    """
    view = allocation.device.host_view(allocation.buffer)
    return _words(allocation, index, 1)[0] if view is None else int.from_bytes(view[4 * index : 4 * index + 4], "little")
