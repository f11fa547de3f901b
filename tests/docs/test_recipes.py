"""The recipes of CONTRIBUTING.md and docs/adding-*.md: files and names in them exist, and following one has the result that it promises.

Recipes for tables are followed in this process, those for files in a copy of the package.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import needs
import pytest
from pages import ROOT

from spirograd import compiler
from spirograd.base.dtypes import f32, i32
from spirograd.base.options import CompileOptions
from spirograd.base.targets import TARGETS, Generator
from spirograd.ir import ops
from spirograd.ir.builder import Builder
from spirograd.ir.nodes import ArrayArg, ArrayRef, Kernel, LoopAttr

OPERATION = ROOT / "docs" / "adding-an-operation.md"
DEVICE = ROOT / "docs" / "adding-a-device.md"
NODE = ROOT / "docs" / "adding-a-node.md"
STORE = ROOT / "docs" / "adding-a-step-store.md"
ROWS = re.findall(r"^\| (an? [^|]+) \| (.+) \|$", (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8"), re.MULTILINE)
_FOLDERS = (ROOT, ROOT / "spirograd")


def _path(span: str) -> Path | None:
    """The file or folder that a span of code names, from the root or from the package; None if it is no path."""
    if "/" not in span and not re.fullmatch(r"\w+\.(py|yml|md)", span):
        return None
    return next((folder / span for folder in _FOLDERS if (folder / span).exists()), ROOT / span)


def _text(path: Path) -> str:
    files = [path] if path.is_file() else sorted(path.rglob("*.py"))
    return "\n".join(file.read_text(encoding="utf-8") for file in files)


def test_recipes_for_all_that_can_be_added() -> None:
    wanted = {"an operation", "a derivative", "a pass", "a target", "a device", "a kind of node of field trees", "a transform of tapes"}
    assert wanted | {"an environment variable", "an option of `init`"} <= {what for what, _ in ROWS}


@pytest.mark.parametrize(("what", "where"), ROWS, ids=[what for what, _ in ROWS])
def test_what_a_recipe_names_exists(what: str, where: str) -> None:
    """Files and folders; and names, in the files of the same recipe or as a class of the package."""
    links = [ROOT / target.split("#")[0] for target in re.findall(r"\]\(([^)]+)\)", where)]
    spans = re.findall(r"`([^`]+)`", where)
    paths = [path for path in map(_path, spans) if path is not None] + links
    assert paths and [path for path in paths if not path.exists()] == []
    text = "\n".join(map(_text, paths))
    names = [span for span in spans if _path(span) is None and span.isidentifier()]
    package = _text(ROOT / "spirograd")
    assert [name for name in names if not re.search(rf"\b{name}\b", text) and f"\nclass {name}" not in package] == []


# --- tables --------------------------------------------------------------------------------------------------------------


def doubled() -> Kernel:
    """``x[i] *= 2`` in a parallel loop."""
    b, x = Builder(), ArrayRef("x", 0, f32, 1)
    b.begin()
    zero, end = b.const(0), b.emit(ops.shape, attr=(0, 0), type=i32)
    (i,) = b.begin(zero.type)
    b.store(x, i, b.emit(ops.mul, b.load(x, i), b.const(2.0, f32)))
    b.for_(zero, end, (), b.end(), attr=LoopAttr(parallel=True))
    return Kernel("doubled", (ArrayArg("x", f32, 1),), b.end())


def test_a_target(monkeypatch: pytest.MonkeyPatch) -> None:
    """A row of `TARGETS` is all that the pipeline must know of a target that has a code generator."""
    from spirograd.llvmgen import toolchain

    monkeypatch.setitem(TARGETS, "toy", replace(TARGETS["cpu"], wide_sums=False))
    made = compiler.compile_kernel(doubled(), replace(toolchain.host_caps(), target_name="toy"), CompileOptions())
    assert made.target_name == "toy" and not made.target.wide_sums and made.binaries


def test_a_target_with_a_code_generator_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """A row of `_GENERATORS`: a function of device IR, the artifact without binaries, and the pipeline."""
    from spirograd.llvmgen import toolchain

    def generate(kernel: Kernel, artifact: Any, run: Any) -> Any:
        return replace(artifact, binaries=(" ".join(sorted({op.code.name for op in kernel.walk()})).encode(),))

    monkeypatch.setitem(compiler._GENERATORS, Generator.LLVM, generate)
    monkeypatch.setitem(TARGETS, "toy", TARGETS["cpu"])
    made = compiler.compile_kernel(doubled(), replace(toolchain.host_caps(), target_name="toy"), CompileOptions())
    assert {b"mul", b"load", b"store"} <= set(made.binaries[0].split())


# --- files ---------------------------------------------------------------------------------------------------------------


@pytest.fixture
def package(tmp_path: Path) -> Path:
    """A copy of the package, with the bytecode of its files, whose times stay: a program that imports it compiles only what was changed.
    Bytecode that another process is just writing has a name that ends in a number."""
    shutil.copytree(ROOT / "spirograd", tmp_path / "spirograd", ignore=shutil.ignore_patterns("*.pyc.*"))
    return tmp_path


def replaced(file: Path, old: str, new: str) -> None:
    """Replace a text that is in a file once."""
    text = file.read_text(encoding="utf-8")
    assert text.count(old) == 1, f"{file.name}: {old!r}"
    file.write_text(text.replace(old, new), encoding="utf-8")


def printed(package: Path, program: str) -> list[str]:
    """The lines that a program prints that imports the copy."""
    file = package / "program.py"
    file.write_text(program, encoding="utf-8")
    done = subprocess.run([sys.executable, str(file)], cwd=package, capture_output=True, text=True, timeout=240, env=_environment(package))
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def _environment(package: Path) -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(package), "SG_OFFLINE_CACHE": "0"}


USING_SINH = """
import numpy as np, spirograd as sg, sys
from spirograd.base.options import CompileOptions
from spirograd.compiler import compile_kernel
from spirograd.dumps import listeners
from spirograd.llvmgen import amdgpu, ptx

assert sg.__file__.startswith(sys.path[0])
compiled = []
listeners.append(compiled.append)
for arch in (sg.interpreter, sg.cpu, sg.vulkan, sg.wgpu):
    if arch not in sg.available_archs():
        continue
    for t in (sg.f32, sg.f64):
        sg.init(arch=arch)
        x = sg.field(t, 8, needs_grad=True)
        y = sg.field(t, 8, needs_grad=True)

        @sg.kernel
        def run():
            for i in x:
                y[i] = sg.sinh(x[i])

        values = np.array([-80, -2, -0.7, -1e-4, 0, 0.3, 1, 5], t.np)
        x.from_numpy(values)
        run()
        y.grad.fill(1)
        run.grad()
        tolerance = 4e-6 if t is sg.f32 else 1e-13
        np.testing.assert_allclose(y.to_numpy(), np.sinh(values.astype(np.float64)), rtol=tolerance)
        np.testing.assert_allclose(x.grad.to_numpy(), np.cosh(values.astype(np.float64)), rtol=tolerance)
        print(arch, t)
for caps in (ptx.capabilities("sm_90"), amdgpu.capabilities("gfx1100")):
    for one in compiled[:4]:  # the kernel and its gradient, of f32 and of f64
        compile_kernel(one.kernel, caps, CompileOptions())
    print(caps.target_name)
print(sg.sinh(0.0), "sinh" in run.ir("kernel"))
"""


def applied(package: Path, page: str) -> None:
    """Apply the blocks ``diff`` of a page to the file that is named before each: lines are added after lines that the file has once."""
    blocks = re.findall(r"`(spirograd/[\w/.]+)`[^\n]*\n+```diff\n(.*?)```", page, re.DOTALL)
    assert len(blocks) == page.count("```diff")
    for file, block in blocks:
        for hunk in re.findall(r"(?:^ .*\n)+(?:^\+.*\n)+", block, re.MULTILINE):
            lines = hunk.splitlines()
            before = "".join(f"{line[1:]}\n" for line in lines if line.startswith(" "))
            replaced(package / file, before, before + "".join(f"{line[1:]}\n" for line in lines if line.startswith("+")))


def test_an_operation(package: Path) -> None:
    """Its page, step by step, with its derivative, on every back end; GPUs as far as compilers go."""
    applied(package, OPERATION.read_text(encoding="utf-8"))
    lines = printed(package, USING_SINH)
    ran = [arch for arch in ("interpreter", "cpu", "vulkan", "wgpu") if needs.missing(arch) is None]
    assert lines == [*[f"{arch} {t}" for arch in ran for t in ("f32", "f64")], "cuda", "amdgpu", "0.0 True"]


USING_TOY = """
import numpy as np, spirograd as sg
from spirograd.commands import doctor
sg.init(arch=sg.toy)
x, loss = sg.field(sg.f32, 5, needs_grad=True), sg.field(sg.f32, (), needs_grad=True)

@sg.kernel
def total():
    for i in x:
        loss[None] += x[i] ** 2

x.from_numpy(np.arange(5, dtype=np.float32))
with sg.ad.Tape(loss):
    total()
print(sg.cfg.arch, loss[None], x.grad.to_numpy().tolist())
print(sg.available_archs()[0], doctor.probe("toy").info.name)
try:
    sg.init(arch="toys")
except sg.SpirogradRuntimeError as error:
    print(str(error).rpartition("; ")[2])
"""


def test_a_device(package: Path) -> None:
    """Its page, with a target: programs run on it, with gradients, and commands know it."""
    page = DEVICE.read_text(encoding="utf-8")
    applied(package, page)
    (module,) = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    (package / "spirograd/runtime/devices/toy.py").write_text(module, encoding="utf-8")
    lines = printed(package, USING_TOY)
    assert lines == ["toy 30.0 [0.0, 2.0, 4.0, 6.0, 8.0]", "toy toy", "did you mean `toy`?"]
    assert needs.CHECKS.keys() >= set(needs.ARCHS), "checks of tests ask the table of devices"


USING_BLOCKED = """
import numpy as np, spirograd as sg
for arch in (sg.interpreter, sg.cpu, sg.vulkan, sg.wgpu):
    if arch not in sg.available_archs():
        continue
    sg.init(arch=arch)
    x, y = sg.field(sg.f32, needs_grad=True), sg.field(sg.f32, (), needs_grad=True)
    node = sg.root.blocked(sg.ij, (64, 64))
    node.place(x, x.grad)

    @sg.kernel
    def write():
        x[3, 5] = 2.0
        x[40, 41] = 3.0

    @sg.kernel
    def total() -> sg.i32:
        count = 0
        for i, j in x:
            count += 1
            y[None] += x[i, j] ** 2
        return count

    @sg.kernel
    def energy():
        for i, j in x:
            y[None] += x[i, j] ** 2

    write()
    count = total()
    y[None] = 0
    with sg.ad.Tape(y):
        energy()
    print(arch, count, y[None], x.grad[3, 5], x.grad[40, 41], x[63, 63], repr(node))
sg.init(arch=sg.interpreter)
try:
    sg.root.blocked(sg.i, 60).place(sg.field(sg.f32))
    sg.field(sg.f32, ())[None]
except sg.SpirogradTypeError as error:
    print(error)
"""


def test_a_node(package: Path) -> None:
    """Its page: a sparse kind of node by two parts of an index, on every back end."""
    applied(package, NODE.read_text(encoding="utf-8"))
    *lines, refusal = printed(package, USING_BLOCKED)
    ran = [arch for arch in ("interpreter", "cpu", "vulkan", "wgpu") if needs.missing(arch) is None]
    assert lines == [f"{arch} 128 13.0 4.0 6.0 0.0 root => blocked [64, 64]" for arch in ran]
    assert refusal == "the extents of a blocked node are multiples of 8, got (60,)"


USING_BOUNDED = """
import spirograd as sg
sg.init(arch=sg.cpu)
x, y = (sg.field(sg.f32, (), needs_grad=True) for _ in range(2))

@sg.kernel
def double():
    x[None] *= 2.0

@sg.kernel
def result():
    y[None] = x[None] ** 2

def slope(steps, most):
    x[None] = 3.0
    with sg.ad.Tape(y, most_steps=most):
        for _ in range(steps):
            double()
        result()
    return x.grad[None]

print(slope(3, 4), slope(3, None))
try:
    slope(4, 4)
except sg.SpirogradRuntimeError as error:
    print(error)
"""


def test_a_transform_of_tapes(package: Path) -> None:
    """Its page: a step store of its own, and the option that selects it."""
    page = STORE.read_text(encoding="utf-8")
    applied(package, page)
    (module,) = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    (package / "spirograd/ad/bounded.py").write_text(module, encoding="utf-8")
    assert printed(package, USING_BOUNDED) == [
        "384.0 384.0",
        "the tape has more steps than `most_steps`: raise it, or end the loop earlier",
    ]


PASS = '''
"""Double by adding: ``x * 2`` becomes ``x + x``."""

from spirograd.ir import ops
from spirograd.ir.nodes import Kernel, Op
from spirograd.ir.rewrite import Rewriter
from spirograd.transforms.pass_context import PassContext


def double_by_adding(kernel: Kernel, ctx: PassContext) -> Kernel:
    return _Double().kernel(kernel)


class _Double(Rewriter):
    def __init__(self) -> None:
        super().__init__()
        self.handlers = {ops.mul: self._mul}

    def _mul(self, op: Op) -> Op:
        a, b = op.args
        if b.code is ops.const and b.attr == 2:
            return self.b.emit(ops.add, self.value(a), self.value(a))
        return self.copy(op)
'''
USING_THE_PASS = """
import spirograd as sg
sg.init(arch=sg.cpu)
x = sg.field(sg.f32, 3)

@sg.kernel
def double():
    for i in x:
        x[i] = x[i] * 2.0

x.fill(4)
double()
print(x.to_numpy().tolist(), " mul(" in double.ir("kernel"), " mul(" in double.ir("offload"), " add(" in double.ir("offload"))
"""


def test_a_pass(package: Path) -> None:
    """A file in a folder of transforms/, and a line in the pipeline."""
    (package / "spirograd/transforms/simplification/double_by_adding.py").write_text(PASS, encoding="utf-8")
    pipeline = package / "spirograd/compiler.py"
    line = '    kernel = run.apply(simplify, kernel, "kernel")\n'
    replaced(pipeline, line, line + '    kernel = run.apply(double_by_adding, kernel, "kernel")\n')
    first = "from spirograd.transforms.simplification.simplify import simplify, simplify_lowered\n"
    replaced(pipeline, first, f"from spirograd.transforms.simplification.double_by_adding import double_by_adding\n{first}")
    assert printed(package, USING_THE_PASS) == ["[8.0, 8.0, 8.0] True False True"]
