"""Where spirograd and the Taichi family differ: the table of docs/how-to/migrate.md, with a program for each row.

A program is written as a user of the family writes it (``ti`` is the family's module). It leaves what it finds in ``seen``, and its outcome
is the repr of that, or the name of the exception without the family's prefix. `tools/differences.py` writes the page; `test_differences.py`
runs the programs on spirograd, and on a release of the family where there is one.
"""

from __future__ import annotations

from family.difference import Difference
from family.differences_of_arguments import ARGUMENTS

DIFFERENCES = (
    Difference(
        "a cast to an integer that cannot hold the value",
        "depends on the processor",
        "saturates; NaN gives 0; also of values that Python writes",
    ),
    Difference(
        "an index out of range, from Python",
        "reads or writes other memory; an `AssertionError` in debug mode",
        "`SpirogradBoundsError`, which is an `IndexError` and an `AssertionError`",
        """
x = ti.field(ti.i32, shape=3)
x[5]
seen = 'read'
""",
        ("'read'", "BoundsError"),
    ),
    Difference(
        "an index out of range in a kernel, without checks",
        "reads or writes other memory, or padding",
        "the same; on the CPU, [each allocation has some space around it](debug-a-kernel.md#turn-on-checks)",
    ),
    Difference(
        "bounds checks, `assert` and overflow checks on Vulkan",
        "none",
        "as on the CPU, with line and values",
    ),
    Difference(
        "`check_out_of_bound=True` without `debug=True`",
        "no check",
        "bounds are checked",
        """
x = ti.field(ti.i32, shape=3)
@ti.kernel
def k(i: ti.i32):
    x[i] = 1
k(5)
ti.sync()
seen = 'stored'
""",
        ("'stored'", "AssertionError"),
        {"check_out_of_bound": True},
    ),
    Difference(
        "integer overflow in debug mode",
        "printed, and the kernel goes on",
        'an error; `overflow="warn"` prints it, and is the default in `spirograd.compat`',
    ),
    Difference(
        "a kernel overwrites what a gradient needs",
        "wrong gradients; `validation=True` finds some",
        "the tape saves it; `kernel.grad()` alone raises an error ([gradients](../autodiff.md))",
    ),
    Difference(
        "a field without gradient in the middle of a chain",
        "gradients end there",
        "an error at the line, unless the kernel uses `stop_grad`; a warning in `spirograd.compat`",
    ),
    Difference(
        "a missing back end",
        "falls back to the CPU",
        "an error; `enable_fallback=True` uses the CPU, and is the default in `spirograd.compat`",
    ),
    Difference(
        "torch's work on memory of a field (`to_torch(copy=False)`, DLPack) on CUDA",
        "in turn with kernels, on the driver's default stream",
        "the program orders both ([how](numpy-and-torch.md#look-at-a-field-without-a-copy)); in `spirograd.compat` as in the family",
    ),
    Difference(
        "`(x > 0) - (x < 0)`",
        "arithmetic on single bits: 1 for negative x",
        "-1: truth values count as 0 and 1",
        """
@ti.kernel
def k(x: ti.i32) -> ti.i32:
    return (x > 0) - (x < 0)
seen = k(-5)
""",
        ("1", "-1"),
    ),
    Difference(
        "`a = 3; -a // 2`, computed while compiling",
        "-1",
        "-2, as at run time and in Python",
        """
@ti.kernel
def k() -> ti.i32:
    a = 3
    return -a // 2
seen = k()
""",
        ("-1", "-2"),
    ),
    Difference(
        "`and`, `or` of numbers",
        "the operand that decides; floats are an error",
        "the operand that decides, of floats too",
        """
@ti.kernel
def k(x: ti.f32) -> ti.f32:
    return x and 2.5
seen = k(1.0)
""",
        ("TypeError", "2.5"),
    ),
    Difference(
        "the operand of `and` and `or`, and the branch of `a if c else b`, that is not needed, where it has side effects",
        "both are evaluated at run time: atomics in it take effect, and it draws random numbers",
        "not evaluated, as in Python; `init(short_circuit_operators=False)` evaluates both operands of `and` and `or`",
        """
n = ti.field(ti.i32, shape=())
@ti.func
def draw():
    return ti.atomic_add(n[None], 1)
@ti.kernel
def k(x: ti.i32):
    if x > 5 and draw() >= 0:
        n[None] += 100
    if x < 5 or draw() >= 0:
        n[None] += 10
    n[None] += 0 if x < 5 else draw()
k(1)
seen = n[None]
""",
        ("13", "10"),
    ),
    Difference(
        "the truth of a vector in Python",
        "true whatever it holds",
        "an error: use `.any()` or `.all()`",
        """
seen = bool(ti.Vector([0, 0]))
""",
        ("True", "TypeError"),
    ),
    Difference(
        "`range(5, 0, -1)`, `range(0, 10, 3)`",
        "a step is an error",
        "allowed",
        """
@ti.kernel
def k() -> ti.i32:
    s = 0
    for i in range(0, 10, 3):
        s += i
    return s
seen = k()
""",
        ("SyntaxError", "18"),
    ),
    Difference(
        "a variable that is assigned only in both branches of an `if`",
        "undefined after it",
        "defined after it",
        """
@ti.kernel
def k(n: ti.i32) -> ti.i32:
    if n > 0:
        a = 1
    else:
        a = 2
    return a
seen = k(1)
""",
        ("NameError", "1"),
    ),
    Difference(
        "`v[-1]` of a vector",
        "an error",
        "its last entry",
        """
@ti.kernel
def k() -> ti.i32:
    v = ti.Vector([1, 2])
    return v[-1]
seen = k()
""",
        ("SyntaxError", "2"),
    ),
    *ARGUMENTS,
    Difference(
        "an empty `dense` node",
        "an error",
        "allowed",
    ),
    Difference(
        "`real_func`",
        "a function that is called, on the CPU and CUDA",
        "called where that pays, otherwise inlined like `func` ([details](../language.md#functions-that-are-called))",
    ),
    Difference(
        "statistics of caches and launches on private objects of kernels (`kernel._primal`)",
        "Quadrants has them",
        "an error; `get_runtime().get_num_compiled_functions()` counts, and `spirograd cache` lists what is on disk",
    ),
    Difference(
        "`call_internal`",
        "operations of the family's own compiler",
        "`do_nothing`; others are errors",
    ),
    Difference(
        "a `real_func` that calls itself too often for the stack",
        "the process ends",
        "an error with the line",
    ),
    Difference(
        "`block_local`, `cache_read_only`, `assume_in_range`, `pure`",
        "hints to the compiler",
        "accepted, without effect",
    ),
    Difference(
        "`ti.opengl`, `ti.gles`, `ti.dx11`, `ti.dx12`",
        "back ends",
        "Vulkan, in `spirograd.compat`",
    ),
    Difference(
        "annotations `ti.types.ndarray(...)`, `ti.types.vector(...)`, `ti.template()`",
        "type checkers report the calls",
        (
            "the same; `ti.types.NDArray[ti.f32, 2]`, `ti.types.Vector[3, ti.f32]`, `ti.Template` mean the same, and [type "
            "checkers accept them](../language.md#arguments-and-results)"
        ),
    ),
    Difference(
        "`sym_eig`",
        "the order of the eigenvalues depends on the size",
        "the smallest eigenvalue first",
    ),
    Difference(
        "NumPy arrays that are not contiguous",
        "an error",
        "copied to the device and back",
        """
import numpy as np
@ti.kernel
def k(a: ti.types.ndarray()) -> ti.f32:
    return a[1]
seen = k(np.arange(6, dtype=np.float32)[::2])
""",
        ("ValueError", "2.0"),
    ),
    Difference(
        "`x.fill(v)` in a kernel, of an array",
        "of fields only",
        "also of arrays, in loops, and of fields of structs",
        """
@ti.kernel
def k(a: ti.types.ndarray()):
    a.fill(2)
x = ti.ndarray(ti.i32, 3)
k(x)
seen = x.to_numpy().tolist()
""",
        ("CompilationError", "[2, 2, 2]"),
    ),
    Difference(
        "a plain Python function, lambda or method, called in a kernel with values known at run time",
        "Python runs it on expressions, with a warning: branches and loops in it are those of Python, so that an `if` takes one branch for "
        "all",
        "inlined like a `func`: branches and loops are those of the kernel",
    ),
    Difference(
        "`return` in a branch of a kernel, or in a branch or a loop of a function",
        "an error",
        "allowed, but not in a parallel loop",
        """
@ti.kernel
def k(n: ti.i32) -> ti.i32:
    if n > 0:
        return 5
    return 6
seen = k(1)
""",
        ("SyntaxError", "5"),
    ),
    Difference(
        "kernels that return several values",
        "a list in Taichi, a tuple in Quadrants; truth values are 0 and 1",
        "a tuple; truth values are `False` and `True`",
        """
@ti.kernel
def k(n: ti.i32) -> tuple[bool, ti.i32]:
    return n > 0, n
seen = k(1)
""",
        ("(1, 1)", "(True, 1)"),
    ),
    Difference(
        "`a: float = 1`, or a vector type, as the annotation of a variable",
        "an error: only types such as `ti.f32`",
        "allowed",
        """
@ti.kernel
def k() -> ti.f32:
    a: float = 1
    return a / 4
seen = k()
""",
        ("TypeError", "0.25"),
    ),
    Difference(
        "integer division and remainder by 0",
        "undefined",
        "0; an error in debug mode",
    ),
    Difference(
        "powers of integers with negative exponents known only at run time (`2 ** n` for `n = -1`)",
        "the power with the positive exponent: 2; an error in debug mode",
        'truncated, like a division: 0; an error in debug mode; `negative_powers="ignore_sign"` is the default in `spirograd.compat`',
    ),
    Difference(
        "powers of an integer literal (`2 ** n` for an `n` of type i64)",
        "i32",
        "the type of the exponent, if that is wider",
        """
@ti.kernel
def k(n: ti.i64) -> ti.i64:
    return 2 ** n
seen = k(40)
""",
        ("0", "1099511627776"),
    ),
    Difference(
        "floats as conditions of `select`, `if`, `while`, `assert`",
        "errors",
        "true unless 0",
        """
@ti.kernel
def k(x: ti.f32) -> ti.i32:
    return ti.select(x, 1, 2)
seen = k(0.5)
""",
        ("TypeError", "1"),
    ),
    Difference(
        "`math.step(edge, x)` with a NaN",
        "0",
        "1, because NaN is not below the edge",
    ),
    Difference(
        "subnormal f32 (below 1.2e-38) on the CPU",
        "flushed to 0",
        "kept",
    ),
    Difference(
        "`round`, `floor`, `ceil` of an integer",
        "an error",
        "the integer",
        """
@ti.kernel
def k(n: ti.i32) -> ti.i32:
    return ti.floor(n)
seen = k(3)
""",
        ("TypeError", "3"),
    ),
    Difference(
        "`math.cpow(z, n)` of `z = 0`",
        "0 for every `n`",
        "1 for `n = 0`, infinite for `n < 0`, like `pow`",
    ),
    Difference(
        "`round` of a number halfway between two integers",
        "away from zero; of a constant, to even",
        "away from zero",
    ),
    Difference(
        "random numbers",
        "depend on the back end and the number of threads",
        "the same everywhere for one `random_seed`",
    ),
    Difference(
        "a kernel that reads a `self.number` which changed",
        "keeps the old number",
        "is compiled for the new one",
    ),
    Difference(
        "buffers above 128 MiB on Vulkan",
        "rejected by some drivers",
        "up to what the device allocates",
    ),
    Difference(
        "`copy.deepcopy` and `pickle` of fields",
        "errors",
        "another field with the same elements",
        """
import copy
x = ti.field(ti.i32, shape=2)
x.fill(3)
seen = copy.deepcopy(x).to_numpy().tolist()
""",
        ("TypeError", "[3, 3]"),
    ),
    Difference(
        "`Tensor(x)`, `wrap(x)`, `._unwrap()`",
        "another object, which holds the field or the array",
        "the field or the array itself, which is a `Tensor` from then on",
        """
x = ti.field(ti.i32, shape=2)
t = ti.Tensor(x)
seen = (t is x, isinstance(x, ti.Tensor))
""",
        ("(False, False)", "(True, True)"),
    ),
    Difference(
        "`ndrange` of a generator, as in `ti.ndrange(*(n for n in shape))`",
        "an error",
        "allowed",
        """
@ti.kernel
def k() -> ti.i32:
    s = 0
    for i, j in ti.ndrange(*(n for n in (3, 4))):
        s += 1
    return s
seen = k()
""",
        ("SyntaxError", "12"),
    ),
    Difference(
        "groups of threads (`simt`) on the CPU",
        "refused",
        "[as on GPUs](../simt.md), with subgroups of 32 threads",
    ),
    Difference(
        "threads of a group behind the end of the loop, and barriers",
        "undefined",
        "they do not exist: barriers wait for the others, reductions and scans combine the values of the others",
    ),
    Difference(
        "`simt.block.reduce_add` and `simt.subgroup.reduce_add`, and those of `min`, `max` and others",
        "the result is in thread 0",
        "the result is in all threads",
    ),
    Difference(
        "a value that `simt.subgroup.shuffle_down`, `shuffle_up` or `shuffle_xor` reads of a thread that does not exist",
        "undefined",
        "the thread's own",
    ),
    Difference(
        "`algorithms.parallel_sort`, `algorithms.PrefixSumExecutor`",
        "an odd-even merge sort, which is not stable; prefix sums of i32 on CUDA and Vulkan",
        "a stable radix sort; every type and back end",
    ),
)
