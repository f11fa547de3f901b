"""Programs that print from kernels and check themselves: prints of all kinds, assertions that fail, exceptions of the family's names."""

import contextlib
import io

import spirograd.compat.taichi as ti

ti.init(arch=ti.cpu, debug=True)
x = ti.field(ti.f32, shape=4)


@ti.kernel
def checked(limit: ti.f32):
    for i in x:
        x[i] = i
        assert x[i] < limit, "too large: {}"


@ti.kernel
def undefined() -> ti.i32:
    return nowhere  # noqa: F821


@ti.kernel
def wrong_type():
    v = ti.Vector([1, 2, 3])
    w = ti.Vector([1, 2])
    x[0] = (v + w).sum()


@ti.kernel
def bad_syntax():
    with open("f"):
        pass


def raised(call, *kinds):
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        try:
            call()
            ti.sync()
        except kinds:
            return True
        except Exception as error:
            return f"{type(error).__name__}: {error}"
    return False


checked(10.0)
RESULT = {
    "assert": raised(lambda: checked(2.0), AssertionError),
    "name": raised(undefined, ti.TaichiCompilationError),
    "type": raised(wrong_type, ti.TaichiCompilationError),
    "syntax": raised(bad_syntax, ti.TaichiSyntaxError),
    "argument": raised(lambda: checked("a"), ti.TaichiRuntimeTypeError),
    "alive": x[3],
}
EXPECTED = {"assert": True, "name": True, "type": True, "syntax": True, "argument": True, "alive": 3.0}
