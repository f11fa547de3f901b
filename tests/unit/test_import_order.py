"""The order of packages: who may import whom. Read off the source, so that nothing need be importable."""

from __future__ import annotations

import ast
import functools
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "spirograd"
FILES = sorted(PACKAGE.rglob("*.py"))

# Part of the package -> parts that it may import, besides itself.
ALLOWED = {
    "base": set(),
    "ir": {"base"},
    "analysis": {"base", "ir"},
    "transforms": {"base", "ir", "analysis"},
    "autodiff": {"base", "ir", "analysis", "transforms"},
    "lang": {"base", "ir"},
    "spirvgen": {"base", "ir"},
    "llvmgen": {"base", "ir"},
    "compiler": {"base", "ir", "kernel_key", "analysis", "transforms", "spirvgen", "llvmgen"},
    # The runtime never sees the IR. Its interpreter runs what the artifact carries.
    "runtime": {"base"},
    "config": {"base", "runtime"},
    "transfers": {"base", "config", "lang", "runtime"},
    "dumps": {"base", "ir"},
    "errors": {"base"},
    "kernel_key": {"base", "ir"},
    "kernel_coverage": {"base", "lang"},
    "session": {"base", "ir", "compiler", "config", "dumps", "kernel_coverage", "kernel_key", "lang", "runtime", "transfers"},
    "derivatives": {"base", "ir", "autodiff", "lang", "runtime", "session"},
    "ad": {"base", "ir", "autodiff", "lang", "derivatives"},
    "interop": {"base", "ir", "lang", "derivatives", "ad"},
    "report": {"base", "ir", "compiler", "dumps", "spirvgen", "llvmgen"},
    "api": {"base", "ad", "config", "derivatives", "kernel_coverage", "lang", "runtime", "session"},
    "survey": {"base", "ir", "autodiff", "compiler", "derivatives", "dumps", "llvmgen", "report", "runtime"},
    "tools": {"base"},
    "ui": {"base", "lang", "tools"},
    "types": {"base", "lang"},
    "math": {"base", "lang"},
}
# Parts above all others: what users see and call.
TOP = {"", "cli", "commands", "compat", "demo", "__main__", "simt", "algorithms", "aot", "linalg", "optim", "profiler", "distributed"}

# Single modules that may import more than their part. The CPU device runs what LLVM makes, and LLVM comes as a library of functions:
# its pool of workers and its calls are compiled by it too. Text of LLVM IR that a user put in place of the compiler's is compiled again.
MODULE_ALLOWED = {
    # The page that users see as `sg.ad` shows the functions for torch and JAX, too.
    "spirograd.ad": {"interop"},
    # Checks derivatives by running the very IR that is differentiated in f64, next to it.
    "spirograd.ad.gradcheck": {"analysis"},
    "spirograd.runtime.devices.cpu": {"llvmgen"},
    "spirograd.runtime.devices.cpu_call": {"llvmgen"},
    "spirograd.runtime.devices.cpu_pool": {"llvmgen"},
    "spirograd.runtime.devices.cpu_timer": {"llvmgen"},
    "spirograd.runtime.devices.posix_clock": {"llvmgen"},
    "spirograd.runtime.devices.timer_code": {"llvmgen"},
    "spirograd.runtime.devices.windows_clock": {"llvmgen"},
    "spirograd.runtime.devices.memory_faults": {"llvmgen"},
    "spirograd.runtime.devices.vulkan.call": {"llvmgen"},
    "spirograd.runtime.devices.vulkan.call_code": {"llvmgen"},
    "spirograd.runtime.devices.gpu.call": {"llvmgen"},
    "spirograd.runtime.devices.gpu.call_code": {"llvmgen"},
    "spirograd.runtime.devices.gpu.cuda": {"llvmgen"},
    "spirograd.runtime.devices.gpu.cuda_context": {"llvmgen"},
    "spirograd.runtime.devices.gpu.hip": {"llvmgen"},
    "spirograd.runtime.devices.gpu.hip_context": {"llvmgen"},
    "spirograd.runtime.native.cursor_code": {"llvmgen"},
    "spirograd.runtime.native.launch_code": {"llvmgen"},
    "spirograd.runtime.native.launch_function": {"llvmgen"},
    "spirograd.runtime.native.reverse_code": {"llvmgen"},
    "spirograd.runtime.native.state": {"llvmgen"},
    "spirograd.runtime.native.step_code": {"llvmgen"},
    "spirograd.dumps": {"llvmgen"},
}
# Imports inside of functions. Each has a reason; nothing else may.
LATE = {
    # Large libraries, and the interpreter, that other targets do without.
    ("compiler", "spirograd.ir.interp"),
    ("autodiff", "spirograd.autodiff.forward"),
    ("autodiff", "spirograd.ir.spec"),
    ("compiler", "spirograd.ir.spec"),
    ("compiler", "spirograd.llvmgen.emit"),
    ("compiler", "spirograd.llvmgen.gpu"),
    ("compiler", "spirograd.llvmgen.translate"),
    ("compiler", "spirograd.llvmgen.toolchain"),
    ("compiler", "spirograd.spirvgen.disasm"),
    ("compiler", "spirograd.spirvgen.emit"),
    ("dumps", "spirograd.llvmgen.translate"),
    # Large parts of the package that many programs do without: those whose kernels are in the offline cache, and those without gradients.
    ("runtime", "spirograd.runtime.devices.cpu_pool"),
    ("runtime", "spirograd.runtime.devices.cpu_timer"),
    ("runtime", "spirograd.runtime.devices.vulkan.call"),
    ("runtime", "spirograd.runtime.native.launch_function"),
    ("runtime", "spirograd.runtime.native.launch_preparation"),
    ("session", "spirograd.compiler"),
    ("session", "spirograd.runtime.profiling"),
    ("session", "spirograd.runtime.tuning"),
    ("lang", "spirograd.lang.frontend.recorded_reads"),
    ("lang", "spirograd.lang.frontend.stored_traces"),
    ("lang", "spirograd.lang.frontend.trace_storing"),
    # Passes that most kernels do without. The others of `transforms.conditional` stand there in a table.
    ("transforms", "spirograd.transforms.checks.space_limits"),
    ("transforms", "spirograd.transforms.loops.list_iterations"),
    ("transforms", "spirograd.transforms.loops.vector_loops"),
    ("transforms", "spirograd.transforms.lowering.group_fission"),
    ("transforms", "spirograd.transforms.tasks.fuse"),
    ("api", "spirograd.derivatives.gradient"),
    ("api", "spirograd.ad.replay"),
}
# Third-party packages, and the only parts that may import them. Every part may import NumPy.
THIRD_PARTY = {
    "llvmlite": {"llvmgen", "runtime"},
    "vulkan": {"runtime"},
    "wgpu": {"runtime"},
    "torch": {"interop", "lang", "compat", "distributed"},
    "jax": {"interop"},
    "mpi4py": {"distributed"},
    "rich": {"commands", "demo"},
    "matplotlib": {"demo"},
    "PIL": {"tools"},
    "imageio_ffmpeg": {"tools"},
}


def _module(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def _part(module: str) -> str:
    return [*module.split("."), ""][1]


MODULES = {_module(path): path for path in FILES}


@functools.cache
def _imports(path: Path) -> list[tuple[str, int, str]]:
    """(module imported, line, when). When: "at import", "in a call", or "for types" under TYPE_CHECKING. The order of packages holds for
    these too: only type checkers run them, but readers do."""
    found: list[tuple[str, int, str]] = []

    def visit(node: ast.AST, late: str) -> None:
        if isinstance(node, ast.Import):
            found.extend((alias.name, node.lineno, late) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}:{node.lineno}: relative import"
            for alias in node.names:
                whole = f"{node.module}.{alias.name}"
                found.append((whole if whole in MODULES else str(node.module), node.lineno, late))
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)):
            late = "in a call"
        if isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING":
            for child in node.body:
                visit(child, "for types")
            for child in node.orelse:
                visit(child, late)
            return
        for child in ast.iter_child_nodes(node):
            visit(child, late)

    visit(ast.parse(path.read_text(encoding="utf-8")), "at import")
    return found


def test_imports():
    problems = [problem for path in FILES for problem in _problems(path)]
    assert not problems, "\n".join(problems)


def _problems(path: Path) -> list[str]:
    module = _module(path)
    part = _part(module)
    may = ALLOWED.get(part, set()) | MODULE_ALLOWED.get(module, set())
    problems = []
    for target, line, late in _imports(path):
        where = f"{path.relative_to(ROOT)}:{line} imports {target}"
        root = target.split(".")[0]
        if root == "spirograd":
            wanted = _part(target)
            if part not in TOP and wanted != part and wanted not in may:
                problems.append(f"{where}: `{module}` may import {', '.join(sorted(may)) or 'nothing'}")
            if late == "in a call" and (part, target) not in LATE:
                problems.append(f"{where} inside of a function")
        elif root in THIRD_PARTY and part not in THIRD_PARTY[root]:
            problems.append(f"{where}: only {', '.join(sorted(THIRD_PARTY[root])) or 'no package'} may")
    return problems


def test_every_part_is_placed():
    parts = {_part(module) for module in MODULES}
    assert parts <= set(ALLOWED) | TOP


def test_no_cycles():
    """Among modules, at import time: what only type checkers import can close no cycle."""
    graph = {
        module: {t for t, _, when in _imports(path) if t in MODULES and when == "at import"} - {module} for module, path in MODULES.items()
    }
    # Importing a module runs the package's __init__ too; only those that import something can take part in a cycle.
    done: set[str] = set()

    def visit(module: str, trail: tuple[str, ...]) -> None:
        if module in trail:
            pytest.fail("import cycle: " + " -> ".join((*trail[trail.index(module) :], module)))
        if module not in done:
            for target in sorted(graph[module]):
                visit(target, (*trail, module))
            done.add(module)

    for module in sorted(graph):
        visit(module, ())


def test_interpreter_imports_no_compiler():
    """What runs without llvmlite and without Vulkan: importing spirograd loads neither, nor what many programs do not use."""
    import subprocess
    import sys

    late = (
        "llvmlite",
        "vulkan",
        "wgpu",
        "torch",
        "jax",
        "matplotlib",
        *(f"spirograd.{m}" for m in ("compiler", "transforms", "autodiff", "derivatives", "ad", "interop", "tools", "ui")),
    )
    code = f"import sys, spirograd; print([m for m in {late} if m in sys.modules], 'ad' in dir(spirograd), spirograd.ad.Tape.__name__)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=True, cwd=ROOT)
    assert done.stdout.strip() == "[] True Tape"
