"""Finding the source of functions."""

from __future__ import annotations

import ast
import contextlib
import doctest
import importlib.util
import linecache
import os
import re
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest

import spirograd as sg
from spirograd.lang.frontend.source import parsed
from spirograd.lang.frontend.texts import block_of

FIRST = "@sg.kernel\ndef first(n: sg.i32) -> sg.i32:\n    return n + 1\n"
SECOND = "@sg.kernel\ndef second(n: sg.i32) -> sg.i32:\n    return n + 2\n"


def load(path: Path) -> Any:
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


PROGRAM = """\
import spirograd as sg
sg.init(arch="interpreter")
@sg.func
def twice(n):
    return 2 * n

@sg.kernel
def six() -> sg.i32:
    return twice(3)

@sg.data_oriented
class Counter:
    def __init__(self):
        self.n = 4
    @sg.kernel
    def next(self) -> sg.i32:
        return self.n + 1

def adder(n):
    @sg.kernel
    def added() -> sg.i32:
        return n + 1
    return added

print("found", six(), Counter().next(), adder(6)())
@sg.kernel
def misspelt() -> sg.i32:
    three = 3
    return twice(tree)

try:
    misspelt()
except sg.SpirogradNameError as error:
    print(error)

"""
FOUND = "found 6 5 7"
LINE = 29  # of `tree`; typed at a prompt, each statement begins with line 1
RETURN = " | return twice(tree)"


def python(*arguments: str, text: str | None = None, stdin: Any = None) -> str:
    done = subprocess.run([sys.executable, *arguments], capture_output=True, text=True, input=text, stdin=stdin, timeout=120, check=False)
    return done.stdout + done.stderr


def test_command() -> None:
    """`python -c`, in all ways in which the option can be written."""
    for arguments in (["-c", PROGRAM], ["-c" + PROGRAM], ["-W", "ignore", "-Bc", PROGRAM, "-c", "other"]):
        said = python(*arguments)
        assert FOUND in said and f":{LINE} in misspelt" in said and f"{LINE}{RETURN}" in said, said


def test_standard_input(tmp_path: Path) -> None:
    path = tmp_path / "program"
    path.write_text(PROGRAM)
    with path.open() as file:
        said = python(stdin=file)
    assert FOUND in said and f":{LINE} in misspelt" in said and f"{LINE}{RETURN}" in said, said
    said = python(text=PROGRAM)  # a pipe, of which nothing is left
    assert "the source code of kernel `six` is not available: it comes from `<stdin>`" in said and "save it to a file" in said, said


@pytest.mark.skipif(sys.platform == "win32", reason="no pseudo terminals")
@pytest.mark.parametrize("future", ["", "from __future__ import annotations\n"])
def test_prompt(future: str) -> None:
    said = typed(future + PROGRAM)
    assert FOUND in said and ":4 in misspelt" in said and f"4{RETURN}" in said, said


def typed(program: str) -> str:
    """What Python's own prompt prints, line by line, at a terminal that can do little: with newer versions, too, it is the simple one."""
    import pty

    try:
        process, terminal = pty.fork()
    except OSError as error:  # a container without /dev/pts
        pytest.skip(f"missing pseudo terminal: {error}")
    if process == 0:
        os.environ.update(TERM="dumb", PYTHON_BASIC_REPL="1")
        os.execv(sys.executable, [sys.executable, "-q"])
    seen = ""
    for line in ["", *program.split("\n"), "exit()"]:  # a line when the prompt is there
        while not re.search(r"(>>>|\.\.\.) [^\n]*$", seen[-200:]):
            seen += os.read(terminal, 4096).decode()
        seen += "\n"
        os.write(terminal, f"{line}\n".encode())
    with contextlib.suppress(OSError):  # the end of what is there
        while found := os.read(terminal, 4096):
            seen += found.decode()
    os.close(terminal)
    os.waitpid(process, 0)
    return seen.replace("\r", "")


@pytest.mark.archs("interpreter")
def test_texts_that_are_compiled_under_a_name(session: Any) -> None:
    """As IPython, Jupyter and debuggers do."""
    text, names = f"import spirograd as sg\n\n{FIRST}", {}
    linecache.cache["<generated>"] = (len(text), None, text.splitlines(keepends=True), "<generated>")
    exec(compile(text, "<generated>", "exec"), names)
    assert names["first"](1) == 2


@pytest.mark.archs("interpreter")
def test_doctest(session: Any) -> None:
    text = ">>> import spirograd as sg\n>>> @sg.kernel\n... def four() -> sg.i32:\n...     return 4\n>>> four()\n4\n"
    example = doctest.DocTestParser().get_doctest(text, {}, "example", None, None)
    assert doctest.DocTestRunner().run(example) == (0, 3)


@pytest.mark.archs("interpreter")
def test_a_file_may_change_after_its_import(session: Any, tmp_path: Path) -> None:
    """What was imported runs, not what stands there by the first call."""
    path = tmp_path / "moving.py"
    path.write_text("import spirograd as sg\n" + FIRST + SECOND)
    module = load(path)
    path.write_text("import spirograd as sg\n" + FIRST.replace("+ 1", "+ 5") + SECOND)
    os.utime(path, (1, 1))
    linecache.checkcache()
    assert module.first(1) == 2
    assert load(path).first(1) == 6


@pytest.mark.archs("interpreter")
def test_a_file_that_changed_before_the_kernel_was_made_is_noticed(session: Any, tmp_path: Path) -> None:
    path = tmp_path / "moving.py"
    path.write_text("import spirograd as sg\n" + (FIRST + SECOND).replace("@sg.kernel", ""))
    module = load(path)
    path.write_text("import spirograd as sg\n" + SECOND + FIRST)
    with pytest.raises(sg.SpirogradSyntaxError, match="not where it was"):
        sg.kernel(module.first)(1)


TRICKY = '''\
@decorated(
    1,
)
def multi(
    a,
    b,
) -> int:
    text = """
at the margin
    """
# a comment at the margin
    c = (a +
b)

    def inner(x):
        return x
    return inner(c) + \\
1  # more
def next_one():
    pass
'''


@pytest.mark.parametrize("nested", [False, True])
def test_functions_end_where_their_blocks_do(nested: bool) -> None:
    """Also where a line at the margin is part of a string or an expression, or where the function is the last in its file."""
    texts = [FIRST + SECOND, FIRST, "def one(): return 1\ndef two(): return 2\n", TRICKY]
    for text in [textwrap.indent(t, "    ") for t in texts[:3]] if nested else texts:
        lines = text.splitlines(keepends=True)
        head = "if True:\n" if nested else ""
        wanted = ast.dump(ast.parse(head + "".join(block_of(lines))))
        assert ast.dump(parsed(lines, nested)) == wanted
