"""Traces in the offline cache: a second process traces nothing, and notices whatever has changed."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import needs
import pytest

# Prints the kernels that are traced, and what a kernel computes beside what NumPy computes.
PROGRAM = """
import sys
import numpy as np
import spirograd as sg
from spirograd.lang.frontend import kernel_tracing
import helper

traced, inner = [], kernel_tracing._trace
def count(source, *args):
    traced.append(source.name)
    return inner(source, *args)
kernel_tracing._trace = count

sg.init(arch=sg.cpu)
N = 8
x, y = sg.field(sg.f32, N, needs_grad=True), sg.field(sg.f32, N, needs_grad=True)
a, b = sg.ndarray(sg.f32, N), sg.ndarray(sg.f32, N)
a.fill(0.5)
b.fill(0.25)
FACTOR = 2.0
ITEMS = [1.0, 2.0]
TABLE = {"one": 4.0}

class Part:
    def __init__(self, weight):
        self.weight = weight

@sg.data_oriented
class Solver:
    SHIFT = 3.0

    def __init__(self, scale):
        self.scale = scale
        self.parts = [Part(0.5), Part(1.5)]

    @property
    def twice(self):
        return self.scale * 2

    @sg.func
    def weighed(self, v):
        w: sg.f32 = v * self.scale
        return w + self.SHIFT

    @sg.kernel
    def step(self, t: sg.template(), k: sg.i32) -> sg.f32:
        total = 0.0
        for i in t:
            s = self.weighed(x[i]) * FACTOR + self.twice + TABLE["one"] + helper.shifted(x[i])
            for part in sg.static(self.parts):
                s += part.weight
            for j in sg.static(range(len(ITEMS))):
                s += ITEMS[j] * j
            if sg.static(hasattr(self, "extra")):
                s += 100.0
            t[i] += s + a[i] + b[i] * k
            total += s
        return total

def make(c):
    @sg.kernel
    def scaled():
        for i in y:
            y[i] *= c
    return scaled

solver = Solver(1.5)
x.from_numpy(np.arange(N, dtype=np.float32))
result = solver.step(y, 3)
make(2.0)()
make(0.5)()

xs = np.arange(N, dtype=np.float64)
w = np.trunc(xs * solver.scale) if INTEGER else xs * solver.scale
s = (w + Solver.SHIFT) * FACTOR + solver.twice + TABLE["one"] + helper.expected(xs) + sum(p.weight for p in solver.parts)
s += sum(j * item for j, item in enumerate(ITEMS)) + (100.0 if hasattr(solver, "extra") else 0.0)
np.testing.assert_allclose(y.to_numpy(), s + a.to_numpy() + b.to_numpy() * 3, rtol=1e-5)
assert abs(result - s.sum()) < 1e-3
"""
END = "print(*traced)\n"
HELPER = """
import spirograd as sg
OFFSET = 0.125

@sg.func
def inner(v):
    return v * 3.0

@sg.func
def shifted(v):
    return inner(v) + OFFSET

def expected(x):
    return x * 3.0 + OFFSET
"""
ALL = "step scaled scaled"
EDITS = {
    "nothing": ((), ""),
    "a comment elsewhere": (("    # nothing here", "program"), ""),
    "a global": (("FACTOR = 2.0", "FACTOR = 2.5"), "step"),
    "the type of a global": (("FACTOR = 2.0", "FACTOR = 2"), "step"),
    "an entry": (("ITEMS = [1.0, 2.0]", "ITEMS = [1.0, 2.5]"), "step"),
    "the number of entries": (("ITEMS = [1.0, 2.0]", "ITEMS = [1.0, 2.0, 3.0]"), "step"),
    "an item": (('"one": 4.0', '"one": 4.5'), "step"),
    "an attribute": (("Solver(1.5)", "Solver(1.25)"), "step"),
    "an attribute of a class": (("SHIFT = 3.0", "SHIFT = 3.5"), "step"),
    "an attribute that was missing": (("self.scale = scale", "self.scale = scale; self.extra = 1"), "step"),
    "an object of a list": (("Part(0.5)", "Part(0.75)"), "step"),
    "what a property computes": (("self.scale * 2", "self.scale * 4"), "step"),
    "a type that no bytecode has": (("w: sg.f32", "w: sg.i32"), "step"),
    "a function of another module": (("v * 3.0", "v * 3.5", "x * 3.0", "x * 3.5"), "step"),
    "a global of another module": (("OFFSET = 0.125", "OFFSET = 0.5"), "step"),
    "two arrays that are one": (("b.fill(0.25)", "b = a"), "step"),
    "a closure": (("make(0.5)", "make(0.25)", "make(2.0)", "make(4.0)"), "scaled scaled"),
    "the layout": (("N = 8", "N = 16"), ALL),
}


def run(folder: Path, program: str = PROGRAM + END, helper: str = HELPER, cached: bool = True) -> str:
    """What ``program`` prints, in a process of its own."""
    integer = "w: sg.i32" in program
    (folder / "program.py").write_text(program.replace("INTEGER", str(integer)))
    (folder / "helper.py").write_text(helper)
    environment = {**os.environ, "SG_CACHE_DIR": str(folder / "cache"), "SG_OFFLINE_CACHE": str(int(cached))}
    environment["PYTHONDONTWRITEBYTECODE"] = "1"  # sources are edited within a second
    done = subprocess.run([sys.executable, "program.py"], cwd=folder, capture_output=True, text=True, timeout=200, env=environment)
    assert done.returncode == 0, done.stderr
    assert not done.stderr, done.stderr
    return done.stdout.strip()


@pytest.fixture(scope="module")
def warm(tmp_path_factory: pytest.TempPathFactory) -> Path:
    needs.need("cpu")
    folder = tmp_path_factory.mktemp("warm")
    assert run(folder) == ALL
    return folder


@pytest.mark.parametrize("edit", EDITS)
def test_edits(warm: Path, edit: str) -> None:
    texts, traced = EDITS[edit]
    program, helper = PROGRAM + END, HELPER
    if edit == "a comment elsewhere":
        program += "# the end\n"
    else:
        for old, new in zip(texts[::2], texts[1::2]):
            assert old in program + helper
            program, helper = program.replace(old, new), helper.replace(old, new)
    assert run(warm, program, helper) == traced
    assert run(warm, program, helper) == ""  # both are kept now


def test_what_is_asked_of_a_kernel_from_the_cache(tmp_path: Path) -> None:
    needs.need("cpu")
    end = """
@sg.kernel
def square():
    for i in x:
        y[i] += x[i] * x[i] * FACTOR

square()
y.grad.fill(1.0)
square.grad()
np.testing.assert_allclose(x.grad.to_numpy(), 2 * xs * FACTOR, rtol=1e-6)
print(square.ir(), square.explain(), list(square.stages()))
"""
    first = run(tmp_path, PROGRAM + end + END)
    assert first.endswith(f"{ALL} square") and "mul" in first and "square" in first
    assert run(tmp_path, PROGRAM + end + END) == first.removesuffix(f"{ALL} square").strip()


REFUSED = {
    "Python runs `computed` while compiling": "sg.static(computed())",
    "it reads a Sized, which may behave in any way": "sized.n",
    "Python runs `counted` while compiling": "2 + sg.static(counted(1))",
    "it compares objects whose class says how": "3 if sg.static(compared == 3) else 4",
}


@pytest.mark.parametrize("reason", REFUSED)
def test_what_cannot_be_recorded(tmp_path: Path, reason: str) -> None:
    """A kernel that depends on it is traced in each process, and says why."""
    needs.need("cpu")
    program = f"""
import spirograd as sg
sg.init(arch=sg.cpu)
x, FACTOR = sg.field(sg.f32, 4), 4

log = []

def computed():
    return 3 + len(log)

def counted(step, counts=[0]):
    counts[0] += step
    return counts[0]

class Sized:
    n = 3
    def __len__(self):
        return 0

class Compared:
    def __eq__(self, other):
        return other == 3

sized, compared = Sized(), Compared()

@sg.kernel
def fill():
    for i in x:
        x[i] = {REFUSED[reason]}

fill()
assert x[3] == 3.0
print(fill.explain())
"""
    for _ in range(2):
        assert f"Each process traces the kernel, even if the offline cache has it: {reason}." in run(tmp_path, program)


# Expressions that run methods or functions of the program, whose results follow `SCALE`, though every value they name has the same text.
HIDDEN = [
    "cosine(0.0)", "root(4.0)", "kept(4.0)", "scaled(3)", "memory.table[5]", "remembers(5)", "Mode.A + 3", "max(Mode.A, 0)",
    "sum([Mode.A, Mode.A])", "int(str(Named.A))", "int('{}'.format(Named.A))", "int(f'{Named.A}')", "int('%s' % Named.A)",
    "int(f'{shown}')", "int('%s' % shown)", "int('%s' % (shown,))", "isinstance(3, Any)",
    "isinstance(3, Registered)", "1 << shifted", "ident(1 << 20_000) >> 19_999",
]  # fmt: skip


def test_results_of_methods_and_of_wrapped_functions(tmp_path: Path) -> None:
    """A later process computes them anew, or traces the kernel."""
    needs.need("cpu")
    kernels = "".join(f"""
@sg.kernel
def kernel_{k}() -> sg.f32:
    return sg.cast(sg.static({text}), sg.f32)
assert kernel_{k}() == {text}, {text!r}
""" for k, text in enumerate(HIDDEN))  # fmt: skip
    program = f"""
import abc, enum, functools, math
import numpy as np
import spirograd as sg
SCALE = 1
TABLE = [SCALE]

def multiplied(function):
    @functools.wraps(function)
    def product(*args):
        return TABLE[0] * (2.0 if function is sg.sqrt else function(*args))
    return product

cosine, root = multiplied(math.cos), multiplied(sg.sqrt)
kept = functools.lru_cache(root)
scaled = np.frompyfunc(lambda v: v * SCALE, 1, 1)

def memory(): ...
memory.table = {{5: SCALE}}

def remembers(v):
    remembers.calls.append(v)
    return SCALE
remembers.calls = []

def ident(v):
    return v

class Mode(enum.IntEnum):
    A = 1
    def __add__(self, other):
        return TABLE[0]
    __radd__ = __add__
    def __gt__(self, other):
        return TABLE[0] > 1

class Named(enum.Enum):
    A = 1
    def __str__(self):
        return str(TABLE[0])
    def __format__(self, spec):
        return str(TABLE[0])

class Shown:
    def __str__(self):
        return str(TABLE[0])

class Shifted:
    def __rlshift__(self, other):
        return TABLE[0]

class Registered(abc.ABC): ...
if SCALE > 1: Registered.register(int)

class Any(abc.ABC):
    @classmethod
    def __subclasshook__(cls, other):
        return SCALE > 1

shown, shifted = Shown(), Shifted()
sg.init(arch=sg.cpu)
{kernels}
@sg.kernel
def in_place() -> sg.f32:
    text = "%s"
    text %= shown
    return sg.cast(sg.static(int(text)), sg.f32)
assert in_place() == SCALE
assert len(remembers.calls) == 2, "once in the kernel, once outside"
"""
    for scale in (1, 1, 2):
        run(tmp_path, program.replace("SCALE = 1", f"SCALE = {scale}"))


def test_calls_of_functions_without_effects_are_repeated(tmp_path: Path) -> None:
    """Results are compared, not the source of the functions."""
    needs.need("cpu")
    program = """
import math
import spirograd as sg
from spirograd.lang.frontend import kernel_tracing
trace = kernel_tracing._trace
kernel_tracing._trace = lambda source, *args: (print("traced"), trace(source, *args))[1]
sg.init(arch=sg.cpu)
x, FIRST, SCALE = sg.field(sg.f32, 4), 2, 1.5

def half(v):
    return v // 2

def sizes(first, last=9, *, step=2):
    found = []
    while first < last:
        found.append(first)
        first *= step
    return (*found, half(last) + math.floor(SCALE), *[k + step for k in range(FIRST)])

@sg.kernel
def fill():
    for i in x:
        for size in sg.static(sizes(FIRST, step=FIRST.bit_length())):
            x[i] += size
        x[i] += sg.static(len(sizes(FIRST, step=FIRST.bit_length())))

fill()
print(x[3])
"""
    assert run(tmp_path, program) == "traced\n30.0"
    assert run(tmp_path, program) == "30.0"
    for old, new, value in (
        ("SCALE = sg.field(sg.f32, 4), 2, 1.5", "SCALE = sg.field(sg.f32, 4), 2, 2.5", 31.0),
        ("v // 2", "v // 3", 29.0),
    ):
        assert run(tmp_path, program.replace(old, new)) == f"traced\n{value}"
    assert run(tmp_path, program.replace("found = []", "found = list()")) == "30.0"


def test_enumerations_that_only_say_how_they_are_shown(tmp_path: Path) -> None:
    """Numbers of such an enumeration do not depend on its methods; texts do, see the test of results of methods."""
    program = """
import enum
import spirograd as sg
from spirograd.lang.frontend import kernel_tracing
trace = kernel_tracing._trace
kernel_tracing._trace = lambda source, *args: (print("traced"), trace(source, *args))[1]

class Mode(enum.IntEnum):
    A = 1
    def __repr__(self):
        return "<A>"
    def __format__(self, spec):
        return "<A>"

sg.init(arch=sg.cpu)

@sg.kernel
def chosen() -> sg.i32:
    out = 2 + Mode.A
    if sg.static(Mode.A == 1):
        out += 10
    return out

print(chosen())
"""
    assert run(tmp_path, program) == "traced\n13"
    assert run(tmp_path, program) == "13"
    assert run(tmp_path, program.replace("A = 1", "A = 3")) == "traced\n5"


def test_tiles(tmp_path: Path) -> None:
    """Types of tiles are known by their size."""
    needs.need("cpu")
    program = """
import spirograd as sg
from spirograd.lang.frontend import kernel_tracing
trace = kernel_tracing._trace
kernel_tracing._trace = lambda source, *args: (print("traced"), trace(source, *args))[1]
sg.init(arch=sg.cpu)
x, TILE = sg.field(sg.f32, (16, 16)), sg.simt.Tile16x16

@sg.kernel
def fill():
    sg.loop_config(block_dim=16)
    for i in range(16):
        tile = TILE.eye(sg.f32)
        tile.add_product_(TILE.eye(), TILE.eye())
        x[0:16, 0:16] = tile

fill()
print(x[3, 3], x[3, 4])
"""
    assert run(tmp_path, program).splitlines()[-2:] == ["traced", "2.0 0.0"]
    assert run(tmp_path, program) == "2.0 0.0"


def test_damaged_entries_count_as_missing(tmp_path: Path) -> None:
    needs.need("cpu")
    assert run(tmp_path) == ALL
    for file in (tmp_path / "cache").rglob("*.sgt"):
        file.write_bytes(file.read_bytes()[:-1] + b"?")
    assert run(tmp_path) == ALL
    assert run(tmp_path) == ""


def test_a_missing_kernel_is_compiled_from_its_stored_ir(tmp_path: Path) -> None:
    needs.need("cpu")
    assert run(tmp_path) == ALL
    for file in (tmp_path / "cache").rglob("*.sgk"):
        file.unlink()
    assert run(tmp_path) == ""


def test_a_global_that_changes_later_is_reported(tmp_path: Path) -> None:
    """What is compared at launches is compared after a warm start too."""
    needs.need("cpu")
    program = """
import logging
import spirograd as sg
sg.init(arch=sg.cpu)
said = []
logging.getLogger("spirograd").addHandler(type("Kept", (logging.Handler,), {"emit": lambda self, record: said.append(record)})())
x, FACTOR = sg.field(sg.f32, 4), 2.0

@sg.kernel
def fill():
    for i in x:
        x[i] = FACTOR

fill()
FACTOR = 3.0
fill()
logging.lastResort = None
print(x[3], len(said), "is now 3.0" in said[0].getMessage(), "x[i] = FACTOR" in said[0].getMessage())
"""
    program = program.replace("said = []", "said = []; logging.getLogger('spirograd').propagate = False")
    for _ in range(2):
        assert run(tmp_path, program) == "2.0 1 True True"


def test_gradients_of_a_recalled_kernel_name_variables(tmp_path: Path) -> None:
    needs.need("cpu")
    program = """
import spirograd as sg
sg.init(arch=sg.cpu)
x, y = (sg.field(sg.f32, 8, needs_grad=True) for _ in range(2))

@sg.kernel
def run(k: sg.i32):
    for i in x:
        v = x[i]
        for _ in range(k):
            v = sg.sin(v)
        y[i] = v

run(3)
run.grad(3)
print(run.grad.explain(3))
"""
    first, again = (run(tmp_path, program) for _ in range(2))
    assert "`v`, a loop-carried f32, of the loop at" in first and again == first


def test_warnings_of_a_trace_are_given_by_each_process(tmp_path: Path) -> None:
    needs.need("cpu")
    program = """
import logging
import sys
import spirograd as sg
logging.basicConfig(stream=sys.stdout, format="%(message)s")
sg.init(arch=sg.cpu)

@sg.real_func
def sign(n: sg.i32) -> sg.i32:
    if n > 0:
        return 1

@sg.kernel
def run(n: sg.i32) -> sg.i32:
    a = 0
    a += 0.5
    return sign(n) + a

print(run(1))
"""
    for _ in range(2):
        printed = run(tmp_path, program)
        assert "`sign` may end without `return`" in printed and "takes" in printed, printed


def test_attributes_are_followed_after_a_warm_start(tmp_path: Path) -> None:
    """An object is first reached through a list, by which launches do not follow it, and then from the argument, by which they do."""
    needs.need("cpu")
    program = """
import spirograd as sg
sg.init(arch=sg.cpu)

class Part:
    def __init__(self):
        self.factor, self.table = 2.0, sg.ndarray(sg.f32, 2)
        self.table.fill(10.0)

@sg.data_oriented
class World:
    def __init__(self):
        self.parts = [Part()]
        self.main = self.parts[0]

    @sg.kernel
    def total(self) -> sg.f32:
        s = 0.0
        for part in sg.static(self.parts):
            s += part.factor + part.table[0] * 0
        return s + self.main.table[1] + self.main.factor * 100

world = World()
found = [world.total()]
world.main.table = sg.ndarray(sg.f32, 3)
found.append(world.total())
world.main.factor = 3.0
found.append(world.total())
print(*found)
"""
    for _ in range(2):
        assert run(tmp_path, program) == "212.0 202.0 303.0"


# --- texts of values ---------------------------------------------------------------------------------------------------------


def test_fields_that_get_their_layout_by_the_kernel(tmp_path: Path) -> None:
    needs.need("cpu")
    program = """
import spirograd as sg
from spirograd.lang.frontend import kernel_tracing
traced, inner = [], kernel_tracing._trace
kernel_tracing._trace = lambda source, *args: (traced.append(source.name), inner(source, *args))[1]
sg.init(arch=sg.cpu)
x = sg.field(sg.f32, 8)

@sg.kernel
def fill():
    for i in x:
        x[i] = 3.0

fill()
assert x[7] == 3.0
print(*traced)
"""
    assert run(tmp_path, program) == "fill"
    assert run(tmp_path, program) == ""
