"""Functions on machine words: what their code computes, and what has no translation."""

import ctypes
import importlib.util
import itertools
import sys
import textwrap
import threading

import pytest

from spirograd.base.options import CompileOptions
from spirograd.llvmgen.toolchain import compile_module, host_caps, link
from spirograd.llvmgen.word_functions import functions_of, source, translate

HEAD = """from __future__ import annotations
from spirograd.llvmgen.word_functions import Addresses, Functions, add_atomically, call, copy, f32, f64, i32, i64, stack, u16, u32
"""
RESULTS = {"int": ctypes.c_int64, "bool": ctypes.c_bool, "None": None}
_numbers = itertools.count()


@pytest.fixture
def module(tmp_path, monkeypatch):
    """Makes a module of a text."""

    def make(text):
        name = f"words_{next(_numbers)}"
        path = tmp_path / f"{name}.py"
        path.write_text(HEAD + textwrap.dedent(text))
        spec = importlib.util.spec_from_file_location(name, path)
        made = importlib.util.module_from_spec(spec)
        monkeypatch.setitem(sys.modules, name, made)
        spec.loader.exec_module(made)
        return made

    return make


class Compiled:
    """The public functions of modules, compiled: they take words. ``imports``: addresses by symbol."""

    def __init__(self, *modules, level=0, **imports):
        self.functions = {name: getattr(module, name) for module in modules for name in functions_of(module)}
        symbols = {name: f"t_{name}" for name in self.functions}
        code = compile_module(translate(modules, symbols), host_caps(), CompileOptions(opt_level=level), need=level)
        self.library = link(code.binary, list(symbols.values()), imports)

    def __getattr__(self, name):
        function = self.functions[name]
        kinds = [ctypes.c_int64] * function.__code__.co_argcount
        return ctypes.CFUNCTYPE(RESULTS[function.__annotations__["return"]], *kinds)(self.library.addresses[f"t_{name}"])


@pytest.mark.parametrize("level", [0, 1])
def test_they_compute_what_python_does(module, level):
    """The texts are programs of Python, too, as long as they touch no memory."""
    made = module("""
    LAST = 7

    def gcd(a: int, b: int) -> int:
        x = a
        y = b
        while y != 0:
            rest = x - x // y * y
            x = y
            y = rest
        return x

    def within(x: int, least: int, most: int) -> bool:
        return x >= least and x <= most and not x == 6 or x == LAST

    def kind(n: int) -> int:
        if n < 0:
            return -1
        elif n == 0:
            result = 10
        else:
            result = _half(n) | 64 & n
        return result + 1

    def _half(n: int) -> int:
        '''Half of it.'''
        return n >> 1

    def first_above(n: int, limit: int) -> int:
        for k in range(n):
            if k * k > limit:
                return k
        return -1
    """)
    compiled = Compiled(made, level=level)
    assert list(compiled.functions) == ["gcd", "within", "kind", "first_above"]
    for a, b in ((48, 18), (17, 5), (0, 3)):
        assert compiled.gcd(a, b) == made.gcd(a, b)
    for x in range(-2, 99):
        assert compiled.within(x, 0, 6) == made.within(x, 0, 6)
        assert compiled.kind(x) == made.kind(x)
        assert compiled.first_above(x, 9) == made.first_above(x, 9)


def test_threads_add_to_one_word(module):
    """Each addition returns what the word held, and none is lost."""
    compiled = Compiled(
        module("""
    def tickets(at: int, count: int) -> int:
        sum = 0
        for _ in range(count):
            sum = sum + add_atomically(at, 1)
        return sum
    """)
    )
    word, sums = ctypes.c_int64(0), []
    run, at = compiled.tickets, ctypes.addressof(word)
    threads = [threading.Thread(target=lambda: sums.append(run(at, 20000))) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert word.value == 80000
    assert sum(sums) == 80000 * 79999 // 2, "each number from 0 on was returned once"


def test_memory(module):
    """Numbers in memory are signed, but those of u16 and u32; what is copied has a place of its own."""
    compiled = Compiled(
        module("""
    def signed(at: int) -> int:
        return i32[at]

    def unsigned(at: int) -> int:
        return u32[at] + u16[at + 5]

    def halves(at: int) -> None:
        f32[at] = f64[at + 8]
        i32[at + 4] = i64[at + 8] == 0

    def copied(at: int) -> int:
        other = stack(16)
        copy(other, at, 16)
        i64[other + 8] = i64[other + 8] + 1
        return i64[other + 8] - i64[at + 8]
    """)
    )
    words = (ctypes.c_int64 * 2)(-1, 0)
    at = ctypes.addressof(words)
    assert compiled.signed(at) == -1
    assert compiled.unsigned(at) == 2**32 - 1 + 2**16 - 1
    assert compiled.copied(at) == 1
    ctypes.c_double.from_buffer(words, 8).value = 1.5
    compiled.halves(at)
    assert ctypes.c_float.from_buffer(words).value == 1.5
    assert words[0] >> 32 == 0


def test_functions_of_c(module):
    """Arguments and results are converted as the declarations say; functions of other modules and those at addresses are called alike."""
    first = module("""
    c = Functions(labs="i64 (i64)", f="i32 (i32, ...)", g="double (double)")
    others = Addresses("f")

    def size(n: int) -> int:
        return c.labs(n)
    """)
    second = module(f"""
    from {first.__name__} import c, others, size

    def sum(n: int, at: int) -> int:
        f64[at] = c.g(f64[at])
        return size(-n) + c.f(n) + call(others.f, n)
    """)
    f = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_int)(lambda n: -n)
    g = ctypes.CFUNCTYPE(ctypes.c_double, ctypes.c_double)(lambda x: x / 2)
    addresses = {name: ctypes.cast(function, ctypes.c_void_p).value for name, function in (("f", f), ("g", g))}
    half = ctypes.c_double(3.0)
    compiled = Compiled(first, second, **addresses)
    assert compiled.sum(2**33 + 7, ctypes.addressof(half)) & 0xFFFFFFFF == (7 - 7 - 7) & 0xFFFFFFFF
    assert half.value == 1.5


@pytest.mark.parametrize("line", ["n += 1", "return [n]", "return print(n)", "assert n"])
def test_what_has_no_translation(module, line):
    made = module(f"def f(n: int) -> int:\n    {line}\n    return n\n")
    with pytest.raises(SyntaxError, match=r"line 4: .* have no `"):
        translate([made], {})


def test_the_source_is_all_that_code_depends_on(module):
    one, other = (module(f"def f() -> int:\n    return {k}\n") for k in range(2))
    assert source([one]) != source([other]) == source([other])
    assert "class _Translator" in source([one])
