"""Broken modules: do the checks see it? Modules of the corpus are changed at random, one fault each, and given to the checks.

    python -m validation.mutations --count 200

A module that passes is a hole in the checks, unless what was changed has no meaning: `PASSES` lists both, with reasons, and what it lists
has to be met. The seed is fixed, so that a run can be repeated.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from random import Random
from typing import NamedTuple

from spirograd.compiler import compile_kernel
from spirograd.spirvgen.disasm import DisassemblyError, instructions
from spirograd.spirvgen.module import ModuleError
from spirograd.spirvgen.naga_check import check_for_naga
from spirograd.spirvgen.validate import available, validate
from validation.case import load
from validation.collecting import kernels_of
from validation.mutation_kind import BOTH, Kind
from validation.mutation_kinds import KINDS
from validation.mutation_parts import Parts
from validation.profiles import PROFILES

# Small cases with everything that modules have: loops, vectors, atomics, shared memory, all widths, many buffers, diagnostics.
CASES = (
    *("atomic_add_f32", "atomic_extrema_f64", "sums_f32", "reductions_min", "matrix_inverse_3", "run_time_indices", "many_buffers_40"),
    *("break_and_continue", "leaving_two_loops", "mandelbrot", "bounds_checks", "prints", "not_a_number", "division_i64"),
    *("add_sub_mul_i16", "field_of_f16", "field_of_u8", "changing_shapes", "function_exp_f64", "powers", "returned_values"),
)


class Module(NamedTuple):
    case: str
    target: str
    binary: bytes


class Fault(NamedTuple):
    """One mutation: of which module, in which way, what it did, and what came out."""

    module: Module
    kind: str
    what: str
    binary: bytes


class Pass(NamedTuple):
    """A fault that the checks let pass: ``what`` are words of its description, ``targets`` where. ``why``, and whether it is harmless."""

    kind: str
    what: str
    harmless: bool
    why: str
    targets: tuple[str, ...] = BOTH

    def covers(self, fault: Fault) -> bool:
        return self.kind == fault.kind and f" {self.what} " in f" {fault.what} "


_UNSEEN = "spirv-val (2023.1) does not look at the layout of what addresses point to"
_VULKAN = ("vulkan",)
PASSES: tuple[Pass, ...] = (
    Pass("capability dropped", "implied", True, "another one brings it"),
    Pass("capability dropped", "StorageBuffer16BitAccess", False, "spirv-val asks for one of it and Float16 or Int16"),
    Pass("capability dropped", "StorageBuffer8BitAccess", False, "spirv-val asks for one of it and Int8", _VULKAN),
    Pass("instruction after the end of a block", "OpLine", True, "lines may stand between blocks"),
    Pass("operand too many", "OpSource", True, "the text of a file, which may be there"),
    Pass("operand too many", "OpLoad", True, "volatile, or explicitly nothing", _VULKAN),
    Pass("operand too many", "OpStore", True, "volatile, or explicitly nothing", _VULKAN),
    Pass("decoration dropped", "NoContraction", False, "rounds otherwise: only results show it", _VULKAN),
    Pass("id of another sort", "NoContraction", False, "rounds otherwise: only results show it", _VULKAN),
    Pass("execution mode dropped", "SignedZeroInfNanPreserve", False, "infinities may be lost: only results show it", _VULKAN),
    Pass("decoration dropped", "Block", False, _UNSEEN, _VULKAN),
    Pass("decoration dropped", "ArrayStride", False, _UNSEEN, _VULKAN),
    Pass("decoration dropped", "Offset", False, _UNSEEN, _VULKAN),
    Pass("misplaced member", "Offset", False, _UNSEEN, _VULKAN),
    Pass("stride too small", "ArrayStride", False, _UNSEEN, _VULKAN),
    Pass("alignment that is none", "aligned", False, "spirv-val does not look at the number", _VULKAN),
    Pass("decoration dropped", "BuiltIn", False, "spirv-val takes an Input without meaning; no driver fills it"),
    Pass("wrong sign of a type", "OpTypeInt", False, "spirv-val takes any number", _VULKAN),
    Pass("header", "word 4", False, "spirv-val does not look at the reserved word"),
    Pass("subgroup operation on another type", "GroupNonUniform", False, "spirv-val does not compare the types", _VULKAN),
)


@dataclass(slots=True)
class Findings:
    """What was said of one fault: messages, "" for none. ``crash``: our own check raised something else than it should."""

    fault: Fault
    own: str = ""
    spirv_val: str = ""
    crash: str = ""

    @property
    def caught(self) -> bool:
        return bool(self.own or self.spirv_val)

    @property
    def known(self) -> Pass | None:
        """The row of `PASSES` that it belongs to."""
        fault = self.fault
        for row in PASSES:
            if row.covers(fault) and fault.module.target in row.targets:
                return row
        return None


@dataclass(slots=True)
class Tally:
    """Counts of one kind of fault. ``crashes``: our own check raised what it should not."""

    made: int = 0
    own: int = 0
    spirv_val: int = 0
    crashes: int = 0
    harmless: int = 0
    holes: int = 0
    unknown: list[Findings] = field(default_factory=list)


# --- modules -----------------------------------------------------------------------------------------------------------------


def collect(names: Iterable[str] = CASES, targets: Sequence[str] = BOTH) -> list[Module]:
    """The modules of cases of the corpus, for devices with every feature."""
    cases = {case.name: case for case in load()}
    found: list[Module] = []
    for name in names:
        for source in kernels_of(cases[name]):
            for target in targets:
                caps = PROFILES[target]
                compiled = [compile_kernel(kernel, caps, source.options) for kernel in source.kernels(caps)]
                found += [Module(name, target, binary) for one in compiled for binary in one.binaries]
    return found


# --- faults ------------------------------------------------------------------------------------------------------------------


def make_fault(module: Module, kind: Kind, random: Random) -> Fault | None:
    """A fault of this kind; None where the module has not what it takes, or comes out as it was."""
    parts = Parts.of(module.binary)
    what = kind.mutate(parts, random)
    binary = parts.to_bytes()
    return Fault(module, kind.name, what, binary) if what and binary != module.binary else None


def make_faults(modules: Sequence[Module], kinds: Sequence[Kind], count: int, seed: int) -> list[Fault]:
    """``count`` faults of each kind and target, fewer where few modules have what it takes."""
    made: list[Fault] = []
    for kind in kinds:
        for target in kind.targets:
            random = Random(f"{seed} {kind.name} {target}")
            suited = [module for module in modules if module.target == target]
            tried = (make_fault(random.choice(suited), kind, random) for _ in range(5 * count))
            made += islice((fault for fault in tried if fault is not None), count)
    return made


def _read(module: bytes) -> None:
    """The one check of ours that every module passes: its instructions can be told apart."""
    for _ in instructions(module):
        pass


OWN_CHECKS: dict[str, Callable[[bytes], None]] = {"vulkan": _read, "wgpu": check_for_naga}


def _own(fault: Fault) -> tuple[str, str]:
    """What our own checks say: (message, crash)."""
    try:
        OWN_CHECKS[fault.module.target](fault.binary)
    except (ModuleError, DisassemblyError) as error:
        return str(error), ""
    except Exception as error:
        return "", f"{type(error).__name__}: {error}"
    return "", ""


def examine(fault: Fault) -> Findings:
    found = Findings(fault)
    found.own, found.crash = _own(fault)
    try:
        validate(fault.binary, fault.module.target)
    except ModuleError as error:
        found.spirv_val = str(error)
    except subprocess.TimeoutExpired:
        found.spirv_val = "spirv-val did not end"
    return found


def examine_all(faults: Sequence[Fault], jobs: int) -> list[Findings]:
    with ThreadPoolExecutor(jobs) as pool:
        return list(pool.map(examine, faults))


# --- what came of it ---------------------------------------------------------------------------------------------------------


def tally(findings: Iterable[Findings]) -> dict[str, Tally]:
    out: dict[str, Tally] = defaultdict(Tally)
    for found in findings:
        row = out[found.fault.kind]
        row.made += 1
        row.own += bool(found.own)
        row.spirv_val += bool(found.spirv_val)
        row.crashes += bool(found.crash)
        if not found.caught:
            known = found.known
            if known is None:
                row.unknown.append(found)
            elif known.harmless:
                row.harmless += 1
            else:
                row.holes += 1
    return dict(out)


def stale(modules: Sequence[Module], seed: int = 1, tries: int = 2000) -> list[tuple[Pass, str]]:
    """Rows of `PASSES` that are not true, for some target: no such fault can be made, or the checks see it."""
    kinds = {kind.name: kind for kind in KINDS}
    out = []
    for row in PASSES:
        for target in row.targets:
            suited, random = [m for m in modules if m.target == target], Random(seed)
            made = (make_fault(random.choice(suited), kinds[row.kind], random) for _ in range(tries))
            if all(examine(fault).caught for fault in made if fault is not None and row.covers(fault)):
                out.append((row, target))
    return out


_COLUMNS: dict[str, Callable[[Tally], int]] = {
    "made": lambda row: row.made,
    "own checks": lambda row: row.own,
    "spirv-val": lambda row: row.spirv_val,
    "own check crashed": lambda row: row.crashes,
    "pass, harmless": lambda row: row.harmless,
    "pass, known hole": lambda row: row.holes,
    "pass, unknown": lambda row: len(row.unknown),
}


def table(rows: dict[str, Tally]) -> str:
    """Markdown: one line for each kind of fault, and the sums."""
    lines = ["| fault | " + " | ".join(_COLUMNS) + " |", "|---" + "|--:" * len(_COLUMNS) + "|"]
    for name, row in rows.items():
        lines.append(f"| {name} | " + " | ".join(str(get(row)) for get in _COLUMNS.values()) + " |")
    sums = [sum(get(row) for row in rows.values()) for get in _COLUMNS.values()]
    return "\n".join([*lines, "| all | " + " | ".join(map(str, sums)) + " |"])


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m validation.mutations", description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--count", type=int, default=50, help="faults of each kind and target (50)")
    parser.add_argument("--seed", type=int, default=1, help="of the random numbers (1)")
    parser.add_argument("--only", default="", metavar="TEXT", help="kinds of faults whose name contains TEXT")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="processes of spirv-val at a time")
    parser.add_argument("--keep", type=Path, metavar="FOLDER", help="write the modules that pass there")
    return parser.parse_args()


def _keep(passing: Sequence[Findings], folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for k, found in enumerate(passing):
        name = "_".join((*found.fault.kind.replace(":", "").split(), found.fault.module.target, str(k)))
        (folder / f"{name}.spv").write_bytes(found.fault.binary)


def main() -> int:
    """The command; 1 if something passes that `PASSES` does not know, or if a row of it is not true."""
    options = _arguments()
    if not available():
        print("spirv-val is not installed")
        return 1
    kinds = [kind for kind in KINDS if options.only in kind.name]
    modules = collect()
    rows = tally(examine_all(make_faults(modules, kinds, options.count, options.seed), options.jobs))
    print(table(rows))
    passing = [found for row in rows.values() for found in row.unknown]
    for (kind, target, what), count in Counter((f.fault.kind, f.fault.module.target, f.fault.what) for f in passing).most_common():
        print(f"passes: {kind}, {target}: {what} ({count})")
    if options.keep is not None:
        _keep(passing, options.keep)
    untrue = stale(modules, options.seed)
    for row, target in untrue:
        print(f"PASSES is not true any more: {row.kind}, {row.what}, {target}")
    return 1 if passing or untrue else 0


if __name__ == "__main__":
    sys.exit(main())
