"""Errors in the modules of the family carry the family's words, which programs search for."""

import linecache
import re
import textwrap

import numpy as np
import pytest

import spirograd as sg
from spirograd.compat import quadrants as qd
from spirograd.compat import taichi as ti

# Programs that fail, and the text that Taichi 1.7.4 fails with; `{ti}` and `{Taichi}` are the names of the library.
PROGRAMS = [
    ("@ti.kernel\ndef k() -> ti.i32: pass\nk()", "Kernel has a return type but does not have a return statement"),
    (
        "@ti.kernel\ndef k(): return 1\nk()",
        "A kernel with a return value must be annotated with a return type, e.g. def func() -> {ti}.f32",
    ),
    ("@ti.kernel\ndef k(a): pass\nk(1)", "{Taichi} kernels parameters must be type annotated"),
    (
        "@ti.kernel\ndef g(): pass\n@ti.kernel\ndef k(): g()\nk()",
        "Kernels cannot call other kernels. I.e., nested kernels are not allowed.",
    ),
    ("x = ti.field(ti.i32, 3)\n@ti.kernel\ndef k(): x.to_numpy()\nk()", "to_numpy cannot be called in {Taichi}-scope"),
    ("@ti.func\ndef f(): return 1\nf()", "{Taichi} functions cannot be called from Python-scope."),
    ("class A:\n    @ti.kernel\n    def k(self): pass\nA().k()", "Please decorate class A with @{ti}.data_oriented"),
    ("@ti.kernel\ndef k(a: ti.i32):\n    a = 2\nk(1)", 'Kernel argument "a" is immutable in the kernel.'),
    ("@ti.kernel\ndef k():\n    for i in range(3): break\nk()", "Cannot break in the outermost loop"),
    ("@ti.kernel\ndef k():\n    for i in range(3): pass\n    else: pass\nk()", "'else' clause for 'for' not supported in {Taichi} kernels"),
    ("@ti.kernel\ndef k():\n    while 0: pass\n    else: pass\nk()", "'else' clause for 'while' not supported in {Taichi} kernels"),
    ("@ti.kernel\ndef k():\n    try: pass\n    except: pass\nk()", 'Unsupported node "Try"'),
    ("@ti.kernel\ndef k():\n    a = 1\n    del a\nk()", 'Unsupported node "Delete"'),
    ("@ti.kernel\ndef k():\n    f = lambda x: x\nk()", 'Unsupported node "Lambda"'),
    ("@ti.kernel\ndef k():\n    def f(): pass\nk()", "Function definition is not allowed in '{ti}.kernel'."),
    ("@ti.kernel\ndef k(a: ti.i32): print(a is a)\nk(1)", 'Operator "is" in {Taichi} scope is not supported.'),
    ("@ti.kernel\ndef k(a: ti.i32): print(a in (1, 2))\nk(1)", '"In" is only supported inside `{ti}.static`.'),
    ("@ti.kernel\ndef k():\n    a, b = ti.Vector([1, 2, 3])\nk()", "The number of targets is not equal to value length"),
    (
        "x = ti.field(ti.i32, (3, 3))\n@ti.kernel\ndef k():\n    for i in x: pass\nk()",
        'variable dimensionality (1 != 2). Maybe you wanted to use "for I in {ti}.grouped(x)" to group all indices into a single vector I?',
    ),
    (
        "@ti.kernel\ndef k():\n    for i, j, l in ti.ndrange(3, 4): pass\nk()",
        "Please check if the number of arguments of {ti}.ndrange() is equal to the number of the loop variables.",
    ),
    (
        "@ti.kernel\ndef k():\n    for i in 3: pass\nk()",
        "Only {Taichi} fields (via template) or dense arrays (via types.ndarray) are supported.",
    ),
    (
        "@ti.kernel\ndef k(n: ti.i32):\n    if ti.static(n > 1): pass\nk(3)",
        "Input to {ti}.static must be compile-time constants or global pointers",
    ),
    ("@ti.kernel\ndef k(): print(undefined)\nk()", 'Name "undefined" is not defined'),
    ("x = ti.field(ti.i32, (3, 3))\n@ti.kernel\ndef k(): x[0] = 1\nk()", "Field with dim 2 accessed with indices of dim 1"),
    ("@ti.kernel\ndef k():\n    v = ti.Vector([1, 2])\n    print(v[0, 0])\nk()", "Expected 1 indices, got 2."),
    ("ti.Matrix([[1, 2], [3, 4]]) @ ti.Matrix([[1, 2, 3]])", "dimension mismatch between (2, 2) and (1, 3) for matrix multiplication"),
    ("@ti.kernel\ndef k(a: ti.f32): print(ti.Vector([a, a]) + ti.Vector([a, a, a]))\nk(1)", "unsupported operand type(s)"),
    ("ti.Vector([1, 2]).transpose()", "`transpose()` cannot apply to a vector."),
    ("@ti.kernel\ndef k(a: ti.f32): print(ti.Matrix([[a, a]]).inverse())\nk(1)", "expected a square matrix, got shape (1, 2)"),
    ("@ti.kernel\ndef k():\n    v = ti.Vector([1, 2])\n    print(v.z)\nk()", "vec2 only has attributes=('x', 'y'), got=('z',)"),
    ("ti.Vector(3)", "An Matrix/Vector can only be initialized with an array-like object"),
    ("@ti.kernel\ndef k(a: ti.f32): print(~a)\nk(1)", "'bit_not' takes integral inputs only, however 'f32' is provided"),
    ("@ti.kernel\ndef k(): ti.atomic_add(1, 2)\nk()", "cannot use a non-writable target as the first operand of 'atomic_add'"),
    ("@ti.kernel\ndef k(): print(ti.cast(1, 'a'))\nk()", "Invalid data type a"),
    ("@ti.kernel\ndef k(a: ti.i32): pass\nk(1, 2)", "Too many arguments."),
    ("@ti.kernel\ndef k(a: ti.i32): pass\nk(b=1)", "Unexpected argument 'b'."),
    ("@ti.kernel\ndef k(a: ti.i32): pass\nk('a')", "cannot be converted into required type i32"),
    (
        "@ti.kernel\ndef k(a: ti.types.ndarray(dtype=ti.f32)): pass\nk(ti.ndarray(ti.i32, 3))",
        "Expect element type f32 for argument a, but get i32",
    ),
    (
        "@ti.kernel\ndef k(a: ti.types.ndarray(ndim=1)): pass\nk(ti.ndarray(ti.i32, (3, 3)))",
        "Invalid value for argument a - required ndim=1, but 2d ndarray",
    ),
    (
        "@ti.kernel\ndef k(a: ti.types.ndarray(ndim=2)): pass\nk(np.ones(3))",
        "required array has ndim=2, array with 1 dimensions is provided",
    ),
    ("@ti.kernel\ndef k(a: ti.types.ndarray()): pass\nk([1, 2])", "Invalid type for argument a"),
    ("x = ti.field(ti.i32)\n@ti.kernel\ndef k(): x[0] = 1\nk()", "These field(s) are not placed"),
    ("x = ti.field(ti.i32)\nti.root.dense(ti.i, 3).place(x)\nti.root.dense(ti.i, 3).place(x)", "This variable has been placed."),
    ("ti.field(ti.i32, (3, 0))", "Every dimension of a {Taichi} field should be positive, got 0 in demension 1."),
    ("ti.field(ti.i32, (3, 3), order='ik')", "Invalid axis k"),
    ("ti.field(ti.i32, (3, 3), order='ii')", "The axes in order must be different"),
    ("ti.field(ti.i32, (3, 3), order='i')", "The dimensionality of shape and order must be the same (2 != 1)"),
    ("ti.field(ti.i32, 3, offset=(1, 2))", "The dimensionality of shape and offset must be the same (1 != 2)"),
    ("ti.field(ti.i32, offset=(1, 2))", "shape cannot be None when offset is set"),
    ("ti.field(ti.i32, (), needs_grad=True)", "i32 is not supported for field with `needs_grad=True` or `needs_dual=True`."),
    ("ti.field(ti.i32, 3).from_numpy(np.zeros(4, np.int32))", "{ti}.field shape (3,) does not match the numpy array shape (4,)"),
    ("ti.ndarray(ti.i32, 3).from_numpy(np.zeros(4, np.int32))", "Mismatch shape: (3,) expected, but (4,) provided"),
    ("ti.field(ti.i32, 3).copy_from(ti.field(ti.i32, 4))", "{ti}.field shape (3,) does not match the source field shape (4,)"),
    ("ti.ad.Tape(ti.field(ti.f32, 3, needs_grad=True)).__enter__()", "The loss of `Tape` must be a 0-D field, i.e. scalar"),
    ("ti.ad.Tape(ti.field(ti.f32, ())).__enter__()", "Gradients of loss are not allocated, please use {ti}.field(..., needs_grad=True)"),
    ("ti.ad.Tape(ti.ndarray(ti.f32, ())).__enter__()", "Gradients of loss are not allocated, please set needs_grad=True for all ndarrays"),
    ("ti.init(arch=ti.cpu, nonsense=1)", "Unrecognized keyword argument(s) for {ti}.init: nonsense"),
]
MEMBERS = {"Taichi": (ti, "ti"), "Quadrants": (qd, "qd")}


def failure(library, program):
    """Return the error of a program that calls the library `ti`."""
    file = f"<program {hash(program)}>"
    linecache.cache[file] = (len(program), None, program.splitlines(keepends=True), file)
    with pytest.raises(Exception) as caught:
        exec(compile(program, file, "exec"), {"ti": library, "np": np, "__name__": "program"})
    return caught.value


@pytest.mark.archs("cpu")  # the front end and Python decide
@pytest.mark.parametrize("name", MEMBERS)
@pytest.mark.parametrize(("program", "words"), PROGRAMS, ids=[words[:40] for _, words in PROGRAMS])
def test_errors_have_the_words_of_the_family(arch, program, words, name):
    library, alias = MEMBERS[name]
    library.init(arch=arch)
    text = str(failure(library, textwrap.dedent(program)))
    assert words.replace("{ti}", alias).replace("{Taichi}", name) in text
    assert text.count(f"in {name}: ") == 1


@pytest.mark.archs("cpu")
def test_unknown_options_are_errors_of_keys(arch):
    for library in (ti, qd):
        with pytest.raises(KeyError, match="Unrecognized keyword argument"):
            library.init(arch=arch, nonsense=1)
    with pytest.raises(sg.SpirogradOptionError) as caught:
        sg.init(arch=arch, debugg=True)
    assert str(caught.value).startswith("`init` has no option `debugg`; did you mean `debug`")
    assert isinstance(caught.value, sg.SpirogradRuntimeError)


def test_failed_checks_have_the_words_of_the_family(arch):
    ti.init(arch=arch, debug=True)
    x = ti.field(ti.i32, (3, 3))

    @ti.kernel
    def store(i: ti.i32, n: ti.i32):
        x[i, 0] = 2**n

    with pytest.raises(ti.TaichiAssertionError, match=r"Accessing field .* with indices \(5, 0\)"):
        store(5, 1)
        ti.sync()
    with pytest.raises(ti.TaichiAssertionError, match=re.escape("Negative exponent in pow(int, int) is not allowed.")):
        store(0, -1)
        ti.sync()


def test_sync_in_a_kernel_warns_that_it_is_no_barrier(arch, caplog):
    ti.init(arch=arch)
    x = ti.field(ti.i32, 4)

    @ti.func
    def add(i):
        x[i] += i
        ti.sync()

    @ti.kernel
    def store():
        ti.sync()
        for i in x:
            add(i)

    with caplog.at_level("WARNING", "spirograd"):
        store()
        store()
    ti.sync()
    assert x.to_numpy().tolist() == [0, 2, 4, 6]
    texts = [record.message for record in caplog.records]
    assert [text.partition(":")[0] for text in texts] == ["`sync` in a kernel is no barrier"] * 2
    assert all("test_wording.py" in text for text in texts)


def test_arrays_that_do_not_fit_are_errors_of_values_and_types(arch):
    ti.init(arch=arch)

    @ti.kernel
    def take(x: ti.types.ndarray(dtype=ti.f32, ndim=1)):
        pass

    for kind in (ValueError, TypeError, ti.TaichiRuntimeTypeError):
        with pytest.raises(kind, match="required ndim=1"):
            take(ti.ndarray(ti.f32, (2, 2)))


def test_other_sessions_keep_their_own_words(arch):
    ti.init(arch=arch)
    sg.init(arch=arch)
    assert "Taichi" not in str(failure(sg, "ti.Vector(3)"))
