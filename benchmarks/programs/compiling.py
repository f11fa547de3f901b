"""The first call of a kernel: tracing, compiling, linking. Each measurement compiles a new one."""

import importlib.util
import itertools
import tempfile

import spirograd as sg

x = sg.field(sg.f32, 1024)
_numbers = itertools.count()
_LINES = ("    a = a * 1.5 + b", "    b = sg.sqrt(a * a + {k}.0)", "    if a > b: a = a - b", "    x[i + {k}] = a + b")


_HEAD = f"""import {sg.__name__} as sg

def make(x):
    @sg.kernel
    def generated():
        for i in range(1000):
            a = x[i]
            b = 1.0
"""


def _source(lines):
    body = [f"        {_LINES[k % 4].format(k=k % 7)}\n" for k in range(lines)]
    return _HEAD + "".join(body) + "    return generated\n"


def compile_lines(lines):
    """Return a function that compiles a new kernel with the given number of lines."""
    path = f"{tempfile.mkdtemp()}/generated{next(_numbers)}.py"
    with open(path, "w") as out:
        out.write(_source(lines))
    spec = importlib.util.spec_from_file_location(f"generated_{lines}", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return lambda: module.make(x)()


CASES = {f"compile {n} lines": (compile_lines(n), 1) for n in (20, 100, 1000)}
