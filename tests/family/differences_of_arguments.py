"""Differences in the arguments of kernels and functions: rows of `differences.DIFFERENCES`."""

from __future__ import annotations

from family.difference import Difference

ARGUMENTS = (
    Difference(
        "default values of arguments of kernels and functions, keyword-only ones, `*args` and `**kwargs` of functions",
        "errors",
        "allowed",
        """
@ti.kernel
def k(a: ti.i32 = 3) -> ti.i32:
    return a
seen = k()
""",
        ("SyntaxError", "3"),
    ),
    Difference(
        "`*` and `**` in calls inside of kernels",
        "`*` in the last place only",
        "anywhere",
        """
@ti.func
def f(a, b):
    return a * 10 + b
@ti.kernel
def k() -> ti.i32:
    t = {'a': 1, 'b': 2}
    return f(**t)
seen = k()
""",
        ("CompilationError", "12"),
    ),
    Difference(
        "missing, additional or misnamed arguments",
        "a syntax error",
        "`SpirogradCallError`, which is a `TypeError`, too",
        """
@ti.kernel
def k(a: ti.i32):
    pass
k()
""",
        ("SyntaxError", "CallError"),
    ),
    Difference(
        "an integer argument that its type cannot hold",
        "wraps around",
        "an error",
        """
@ti.kernel
def k(a: ti.i32) -> ti.i32:
    return a
seen = k(2**40)
""",
        ("0", "RuntimeTypeError"),
    ),
    Difference(
        "a vector of 3 for an argument that is a vector of 2",
        "its first two entries",
        "an error",
        """
@ti.kernel
def k(a: ti.types.vector(2, ti.f32)) -> ti.f32:
    return a[0]
seen = k(ti.Vector([1.0, 2.0, 3.0]))
""",
        ("1.0", "RuntimeTypeError"),
    ),
    Difference(
        "a function that is annotated with a vector of integers and gets or returns floats",
        "keeps them floats",
        "converts them",
        """
@ti.func
def f() -> ti.types.vector(2, ti.i32):
    return ti.Vector([1.5, 2.75])
@ti.kernel
def k() -> ti.f32:
    return f()[1]
seen = k()
""",
        ("2.75", "2.0"),
    ),
    Difference(
        "an annotation of a function's argument that is no type",
        "an error",
        "ignored, for functions; an error for kernels",
        """
@ti.func
def f(a: list):
    return a
@ti.kernel
def k() -> ti.i32:
    return f(2)
seen = k()
""",
        ("SyntaxError", "2"),
    ),
    Difference(
        "a `real_func` with an annotated result that ends without `return`",
        "the result is undefined",
        "0, with a warning; an error in debug mode",
    ),
    Difference(
        "the types of a `real_func`'s arguments and result",
        "must be annotated",
        "may be annotated",
        """
@ti.real_func
def f(n):
    return n + 1
@ti.kernel
def k() -> ti.i32:
    return f(2)
seen = k()
""",
        ("SyntaxError", "3"),
    ),
    Difference(
        "`ref` arguments of a function that is no `real_func`",
        "passed by value",
        "an error",
        """
@ti.func
def f(a: ti.ref(ti.i32)):
    a = 5
@ti.kernel
def k() -> ti.i32:
    b = 1
    f(b)
    return b
seen = k()
""",
        ("1", "TypeError"),
    ),
    Difference(
        "one variable for two arguments that are taken by reference, of which one is changed",
        "both name the variable",
        "an error: pass a copy",
        """
@ti.real_func
def f(a: ti.ref(ti.i32), b: ti.ref(ti.i32)):
    a = a + 1
    b = b * 10
@ti.kernel
def k() -> ti.i32:
    s = 1
    f(s, s)
    return s
seen = k()
""",
        ("20", "TypeError"),
    ),
)
