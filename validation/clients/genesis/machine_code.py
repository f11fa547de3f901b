"""Show the machine code of kernels for NVIDIA's GPUs in numbers, task by task: registers, spills, warps that fit, instructions by kind.

It reads the PTX in a folder that `SG_DUMP` named, and needs ptxas and nvdisasm of the CUDA toolkit, but no card.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import tempfile
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

from validation.clients.genesis.scenes import SCALED

_ROOT = Path(__file__).parents[3]
_STAND_IN = _ROOT / "tests" / "unit" / "runtime" / "standin_gpu.c"
_PROPERTIES = re.compile(
    r"entry function '(?P<name>\w+)'.*?(?P<stack>\d+) bytes stack frame, (?P<stores>\d+) bytes spill stores, (?P<loads>\d+) bytes spill "
    r"loads.*?Used (?P<registers>\d+) registers(?P<rest>[^\n]*)",
    re.DOTALL,
)
_ENTRY = re.compile(r"\.entry (?P<name>\w+)\((?P<head>.*?)\{", re.DOTALL)
_SECTION = re.compile(r"^\.text\.(?P<name>\w+):$", re.MULTILINE)
_INSTRUCTION = re.compile(r"^\s+/\*[0-9a-f]{4,}\*/\s+(?:@!?U?P\w+\s+)?(?P<code>[A-Z][\w.]*)", re.MULTILINE)
# Kinds of instructions -> patterns of opcodes. Divisions and roots begin with a reciprocal; their rare cases are calls.
KINDS = {
    "load": r"LDG",
    "store": r"STG",
    "local": r"LDL|STL",
    "shared": r"LDS|STS|ATOMS",
    "atomic": r"ATOMG|RED\b|ATOM\b",
    "shuffle": r"SHFL",
    "barrier": r"BAR|WARPSYNC",
    "fma": r"FFMA",
    "add": r"FADD",
    "mul": r"FMUL",
    "f64": r"D(FMA|ADD|MUL|SETP)",
    "reciprocal": r"MUFU\.(RCP|RSQ|SQRT)",
    "address": r"IMAD\.WIDE|LEA\.HI\.X|IADD3\.X",
    "integer": r"IMAD|IADD|LEA|SHF|LOP3|VIADD|ISETP|IABS|SEL|VIMNMX",
    "branch": r"BRA|BSSY|EXIT",
    "call": r"CALL",
}
_REGISTERS, _WARPS, _GROUPS, _SHARED = 65_536, 64, 32, 228 << 10  # of a multiprocessor


@dataclass
class Task:
    """The machine code of a task. ``spills``: bytes that are stored and loaded; ``shared``: bytes of a workgroup; ``size``: of a
    workgroup, in invocations."""

    name: str
    registers: int
    stack: int
    spills: tuple[int, int]
    shared: int
    size: int
    codes: Counter[str] = field(default_factory=Counter)

    @property
    def warps(self) -> int:
        """The warps of a multiprocessor, as far as registers, shared memory and workgroups allow."""
        warps = max(1, -(-self.size // 32))
        of_registers = _REGISTERS // (-(-self.registers // 8) * 8 * 32) // warps
        of_shared = _SHARED // (self.shared + 1024)
        return min(_WARPS // warps, of_registers, of_shared, _GROUPS) * warps

    def count(self, kind: str) -> int:
        """The instructions of a kind, one of `KINDS`."""
        return sum(count for code, count in self.codes.items() if re.match(KINDS[kind], code))


def tasks_of(ptx: Path, architecture: str) -> list[Task]:
    """The tasks of a kernel, assembled for an architecture ("sm_90")."""
    with tempfile.TemporaryDirectory() as folder:
        binary = Path(folder) / "kernel.cubin"
        said = subprocess.run(["ptxas", "-v", f"-arch={architecture}", ptx, "-o", binary], capture_output=True, text=True, check=True)
        code = subprocess.run(["nvdisasm", "-c", binary], capture_output=True, text=True, check=True).stdout
    sizes = {
        entry["name"]: int(found[1]) for entry in _ENTRY.finditer(ptx.read_text()) if (found := re.search(r"maxntid (\d+)", entry["head"]))
    }
    sections = list(_SECTION.finditer(code))
    ends = [*[section.start() for section in sections[1:]], len(code)]
    codes = {section["name"]: Counter(_INSTRUCTION.findall(code, section.end(), end)) for section, end in zip(sections, ends)}
    tasks = []
    for found in _PROPERTIES.finditer(said.stderr):
        shared = re.search(r"(\d+) bytes smem", found["rest"])
        spills, name = (int(found["stores"]), int(found["loads"])), found["name"]
        size = sizes.get(name, 0)
        tasks.append(Task(name, int(found["registers"]), int(found["stack"]), spills, int(shared[1]) if shared else 0, size, codes[name]))
    return tasks


def table(tasks: list[Task], least: int) -> str:
    """A table of the tasks with at least ``least`` instructions, the largest first."""
    head = ["task", "group", "registers", "warps", "stack", "spills", "shared", "instructions", *KINDS]
    lines = [f"| {' | '.join(head)} |", "|---|" + "---|" * (len(head) - 1)]
    for task in sorted(tasks, key=lambda task: -task.codes.total()):
        if task.codes.total() >= least:
            cells = [task.name, task.size, task.registers, task.warps, task.stack, "/".join(map(str, task.spills)), task.shared]
            lines.append(f"| {' | '.join(map(str, [*cells, task.codes.total(), *[task.count(kind) or '' for kind in KINDS]]))} |")
    return "\n".join(lines) + "\n"


def comparison(before: list[Task], after: list[Task]) -> str:
    """A table of the tasks that differ: registers, warps, bytes of spills and instructions of both."""
    old = {task.name: task for task in before}
    lines = ["| task | registers | warps | spills | instructions | load | integer |", "|---|---|---|---|---|---|---|"]
    for task in sorted(after, key=lambda task: -task.codes.total()):
        one = old.get(task.name)
        if one is not None and (one.codes, one.registers) != (task.codes, task.registers):
            pairs = [
                (side.registers, side.warps, sum(side.spills), side.codes.total(), *[side.count(k) for k in ("load", "integer")])
                for side in (one, task)
            ]
            lines.append(f"| {task.name} | {' | '.join([f'{a} -> {b}' for a, b in zip(*pairs)])} |")
    return "\n".join(lines) + "\n"


def _compile(scene: str, options: argparse.Namespace, folder: Path) -> None:
    """Compile the kernels of a scene into ``folder``."""
    folder.mkdir(parents=True, exist_ok=True)
    for old in folder.iterdir():
        old.unlink()
    driver = folder.parent / "libstandin.so"
    subprocess.run(["cc", "-shared", "-fPIC", "-O1", "-DCUDA", "-o", driver, _STAND_IN, "-lpthread"], check=True)
    path = os.pathsep.join([str(_ROOT), *os.environ.get("PYTHONPATH", "").split(os.pathsep)]).rstrip(os.pathsep)
    command = [options.python, "-m", "spirograd.compat.quadrants", "-m", "validation.clients.genesis.compile_worker", scene]
    command += [
        "--driver",
        str(driver.resolve()),
        "--architecture",
        options.architecture.removeprefix("sm_"),
        "--out",
        str(folder.resolve()),
    ]
    subprocess.run(command, env={**os.environ, "PYTHONPATH": path}, timeout=options.limit, check=True)


def _of_folder(folder: Path, architecture: str) -> list[Task]:
    with ThreadPoolExecutor(2) as pool:
        return [task for tasks in pool.map(lambda ptx: tasks_of(ptx, architecture), sorted(folder.glob("*.ptx"))) for task in tasks]


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m validation.clients.genesis.machine_code", description=__doc__)
    parser.add_argument("folder", nargs="*", type=Path, help="folders with stages of kernels, as SG_DUMP writes them")
    parser.add_argument(
        "--scenes", nargs="+", default=[], choices=SCALED, metavar="SCENE", help="compile the kernels of these scenes of Genesis"
    )
    parser.add_argument("--python", default=sys.executable, help="a python with Genesis and spirograd's requirements (default: this one)")
    parser.add_argument("--architecture", default="sm_90", help="default sm_90")
    parser.add_argument("--before", type=Path, help="a folder of an earlier version: show what differs from it")
    parser.add_argument("--least", type=int, default=0, help="omit tasks with fewer instructions")
    parser.add_argument("--limit", type=float, default=900, help="seconds for the kernels of one scene (default 900)")
    parser.add_argument("--out", type=Path, default=Path("out/genesis-code"), help="folder for the stages of compiled kernels")
    options = parser.parse_args()
    for scene in options.scenes:
        _compile(scene, options, options.out / scene)
    for folder in (*options.folder, *[options.out / scene for scene in options.scenes]):
        tasks = _of_folder(folder, options.architecture)
        print(f"## {folder.name}\n")
        print(
            table(tasks, options.least) if options.before is None else comparison(_of_folder(options.before, options.architecture), tasks)
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
