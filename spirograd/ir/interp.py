"""The reference interpreter: runs IR of either level on NumPy scalars, by the evaluators of the op table.

A kernel is compiled once into Python closures, one for each operation (`interp_steps`), that work on a list of values (``env``). A run
calls them in order. Memory is reached only through ``memory.resolve(address)``, and every index is checked: an access out of range is
recorded in the fault record as a ``bounds`` fault. Such a load gives zero, and such a store writes nothing.

To step through a kernel, pass ``on_op``: it is called after each operation with the operation and a `Values`, which gives the value of
every operation that has run (``values[op]``).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext

import numpy as np

from spirograd.base.artifact import ArgBlock, FaultSite, PrintSite
from spirograd.base.dtypes import u32
from spirograd.base.python_limits import deep_recursion
from spirograd.base.records import dataclass
from spirograd.ir.interp_memory import AddressSpace, resolve
from spirograd.ir.interp_races import Races
from spirograd.ir.interp_state import FAULT, LAUNCH, PRINT, VALUES, Compiler, OnOp, Values
from spirograd.ir.interp_steps import maker_of
from spirograd.ir.nodes import Kernel, TempRef


@dataclass(frozen=True, slots=True, eq=False)
class Program:
    """A compiled kernel. ``faults`` holds the given sites, then one ``bounds`` site for each memory access, then races in the order of
    detection.

    ``run(block, memory)`` runs the whole kernel once with an argument block (``block.size`` bytes).
    """

    run: Callable[[bytes | bytearray, AddressSpace], None]
    faults: Sequence[FaultSite]


def compile_for_run(
    kernel: Kernel,
    block: ArgBlock,
    temps: Mapping[TempRef, int],
    faults: Sequence[FaultSite] = (),
    prints: Sequence[PrintSite] = (),
    on_op: OnOp | None = None,
    lanes: int = 1,
    detects_races: bool = False,
    chunks: int = 1,
    uncontended: bool = False,
) -> Program:
    """Prepare ``kernel``, of any level, for running with argument blocks of the layout ``block``.

    ``temps``: byte offset of each temporary (analysis.temps); ``faults``, ``prints``: the numbered sites (analysis.sites). The block should
    have a ``fault`` entry: without one a fault raises SpirogradAssertionError at once. Raises ValueError if the block lacks another entry
    that the kernel needs. ``on_op(op, values)`` is called after each operation except constants, arguments, and operations at which threads
    of a group wait for each other. ``lanes``: the size of subgroups. ``detects_races``: see `interp_races`. ``chunks``: the number of
    chunks of a range. ``uncontended``: whether uncontended variants run. Both count at the level "loops" only.
    """
    c = Compiler(kernel, block, temps, maker_of)
    c.faults, c.on_op, c.lanes, c.races = list(faults), on_op, lanes, Races() if detects_races else None
    c.chunks, c.uncontended = chunks, uncontended
    c.checks = {site: k for k, site in enumerate(faults)}
    c.prints = {site: k for k, site in enumerate(prints)}
    for function in kernel.functions:
        c.functions[function.name] = c.region(function.body)
    _, steps, _ = c.region(kernel.body)
    special = {kind: c.block.get((kind, 0, 0, "primal")) for kind in ("fault", "print", "launch")}
    temporaries = c.block.get(("temps", 0, 0, "primal"))

    def run(block: bytes | bytearray, memory: AddressSpace) -> None:
        data = bytes(block)
        env = list(c.template)
        env[VALUES] = (
            None if on_op is None else Values(c.entries, env)
        )  # `Values` refers to memory, which the cycle collector would free late.
        for entry, kind in ((FAULT, "fault"), (PRINT, "print")):
            slot = special[kind]
            raw = resolve(memory, data, slot) if slot is not None else ()
            env[entry] = raw[: len(raw) // 4 * 4].view(u32.np) if isinstance(raw, np.ndarray) and len(raw) else None
        launch = special["launch"]
        env[LAUNCH] = int.from_bytes(data[launch.offset : launch.offset + 4], "little") if launch is not None else 0
        with np.errstate(all="ignore"):
            for prepare in c.prologue:
                prepare(env, data, memory)
            try:
                with deep_recursion() if c.recursive else nullcontext():
                    for step in steps:
                        step(env)
            except BaseException:
                # Some temporaries are zero between launches, such as exact sums: what an interrupted launch left there is dropped.
                if temporaries is not None:
                    resolve(memory, data, temporaries)[:] = 0
                raise

    return Program(run, c.faults)
