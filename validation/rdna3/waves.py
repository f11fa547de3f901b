"""The registers of waves that run in lockstep: all of one dispatch that are at the same instruction."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

import numpy as np

from validation.rdna3.arithmetic import Array

# The lanes of a wave, 32 or 64: of all waves of a process.
LANES = int(os.environ.get("RDNA3_WAVE", "32"))
_MASK: Any = {32: np.uint32, 64: np.uint64}[LANES]
VCC, NULL, M0, EXEC = 106, 124, 125, 126
_SCALARS = 128
# What registers hold before they are written: nothing that looks right by chance.
_UNDEFINED = 0xA5B6C7D8


def unpack(masks: Array) -> Array:
    """Masks with a bit for each lane, one for each wave -> a truth value for each lane."""
    flat = np.ascontiguousarray(masks).view(np.uint8).reshape(len(masks), LANES // 8)
    return np.unpackbits(flat, axis=1, bitorder="little").view(np.bool_)


def pack(lanes: Array) -> Array:
    """The opposite of `unpack`."""
    return np.packbits(lanes, axis=1, bitorder="little").view(_MASK)[:, 0]


class Waves:
    """``s``: scalar registers (number, wave), VCC, M0 and EXEC among them; ``v``: vector registers (number, wave, lane); ``scc``: (wave).

    ``index``: the number of each wave in its dispatch; ``group``: of its workgroup. ``pc``: the address of the next instruction.
    """

    def __init__(self, s: Array, v: Array, scc: Array, index: Array, group: Array, pc: int) -> None:
        self.s, self.v, self.scc = s, v, scc
        self.index, self.group = index, group
        self.pc = pc
        self._lanes: Array | None = None
        self._all = False
        self.resting = False  # lets others run first

    @classmethod
    def start(cls, vectors: int, index: Array, group: Array, pc: int) -> Waves:
        n = len(index)
        s = np.full((_SCALARS, n), _UNDEFINED, np.uint32)
        s[NULL] = 0
        v = np.full((vectors, n, LANES), _UNDEFINED, np.uint32)
        return cls(s, v, np.zeros(n, np.bool_), index, group, pc)

    def __len__(self) -> int:
        return len(self.index)

    # --- lanes ---

    def mask(self, register: int) -> Array:
        """The masks in a scalar register; of waves of 64 lanes, in it and the next."""
        if LANES == 32:
            return self.s[register]
        return self.s[register].astype(np.uint64) | (self.s[register + 1].astype(np.uint64) << np.uint64(32))

    @property
    def lanes(self) -> Array:
        """Which lanes are active."""
        if self._lanes is None:
            self._lanes = unpack(self.mask(EXEC))
            self._all = bool(self._lanes.all())
        return self._lanes

    @property
    def all_active(self) -> bool:
        return self._all if self._lanes is not None else bool(self.lanes.all())

    def set_exec(self, masks: Array) -> None:
        self.s[EXEC] = masks.astype(np.uint32)
        if LANES == 64:
            self.s[EXEC + 1] = (masks >> np.uint64(32)).astype(np.uint32)
        self._lanes = None

    def forget_lanes(self) -> None:
        """EXEC was written as a register."""
        self._lanes = None

    def write_vector(self, register: int, value: Array, lanes: Array | None = None) -> None:
        """Write a vector register in active lanes, or in ``lanes``."""
        if lanes is None:
            if self.all_active:
                np.copyto(self.v[register], value)
                return
            lanes = self.lanes
        np.copyto(self.v[register], value, where=lanes)

    # --- sets of waves ---

    def part(self, chosen: Array) -> Waves:
        """Those for which ``chosen`` holds."""
        return Waves(self.s[:, chosen], self.v[:, chosen], self.scc[chosen], self.index[chosen], self.group[chosen], self.pc)

    def keep(self, chosen: Array) -> None:
        """Only those for which ``chosen`` holds stay in this set."""
        rest = self.part(chosen)
        self.s, self.v, self.scc, self.index, self.group = rest.s, rest.v, rest.scc, rest.index, rest.group
        self._lanes = None

    @staticmethod
    def together(sets: Sequence[Waves]) -> Waves:
        """Sets that are at the same instruction, in the order of waves."""
        if len(sets) == 1:
            return sets[0]
        order = np.argsort(np.concatenate([w.index for w in sets]), kind="stable")

        def join(name: str, axis: int) -> Any:
            return np.take(np.concatenate([getattr(w, name) for w in sets], axis=axis), order, axis=axis)

        return Waves(join("s", 1), join("v", 1), join("scc", 0), join("index", 0), join("group", 0), sets[0].pc)
