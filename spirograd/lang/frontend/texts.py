"""The text of a function: the lines of its file, or what was typed at a prompt, given as `python -c`, or read from the standard input.

The text is taken when the function is decorated: later its file may have changed, and a prompt may have gone on. Files are trusted, as
`inspect` trusts them. Where Python keeps no text (all typed code is called `<stdin>`, all of `exec` `<string>`), a text that may be the
right one is compiled, and taken only if the same function comes out: equal byte code, names, constants and lines.
"""

from __future__ import annotations

import inspect
import linecache
import os
import stat
import sys
import tokenize
import types
from collections.abc import Callable, Iterator

from spirograd.base.records import dataclass

_FUTURES = annotations.compiler_flag  # the one that changes functions
_SHARED_NAMES = ("<stdin>", "<string>", "<console>")  # that Python gives to texts of which there are many
_BLOCKS = ("@", "def ", "class ")  # begin statements that show where they end; others that define a function are the last one typed
_LONGEST = 500  # lines of a statement that is typed in
_LARGEST = 1 << 24  # bytes of a program that is read from the standard input
_named: dict[str, str] = {}  # of texts that were found, so that the functions of one share it


@dataclass(frozen=True, slots=True)
class Text:
    """The lines of what a function was compiled from, whose numbers are those of its code. ``file``: a name that `linecache` knows."""

    file: str
    lines: list[str]


def text_of(function: Callable[..., object]) -> Text | None:
    """Return the text that ``function`` comes from, or None if it cannot be had."""
    code = getattr(function, "__code__", None)
    if code is None:
        return None
    name = code.co_filename
    if name not in _SHARED_NAMES:
        linecache.checkcache(name)
        lines = linecache.getlines(name, function.__globals__)
        if lines:
            return Text(name, lines)
        lines = _kept(function)
        if lines:
            return _entered(name, lines)
    return _found(code) if name.startswith("<") else None


def _entered(name: str, lines: list[str]) -> Text:
    """Return a text whose lines messages can show."""
    linecache.cache[name] = (sum(map(len, lines)), None, lines, name)
    return Text(name, lines)


def block_of(lines: list[str]) -> list[str]:
    """Return the function or class that begins with the first of ``lines``; all of them where no end is found."""
    try:
        return inspect.getblock(lines)
    except (SyntaxError, tokenize.TokenError):
        return lines


def likely_block_of(lines: list[str]) -> list[str]:
    """Return the lines up to the first that is indented no more than the function that begins with the first of ``lines``.

    If these parse, they are what `block_of` finds, which splits them into tokens in 20 times the time: a string or an expression that goes
    on at the margin does not parse without its end. Decorators are taken with the function.
    """
    margin = len(lines[0]) - len(lines[0].lstrip())
    begun = False
    for k, line in enumerate(lines):
        text = line.lstrip()
        if begun and len(line) - len(text) <= margin and text and text[0] not in "#)":  # a comment, the end of the parameters
            return lines[:k]
        begun = begun or text.startswith("def ")
    return lines


def _kept(function: Callable[..., object]) -> list[str]:
    """Return the lines that Python keeps with the code itself: prompts of Python 3.13 and newer."""
    try:
        return inspect.findsource(function)[0]
    except (OSError, TypeError):
        return []


def _found(code: types.CodeType) -> Text | None:
    """Return the text among those at hand that compiles to ``code``, under a name of its own, so that messages can show its lines."""
    for text in _candidates(code):
        if any(_same(other, code) for other in _codes(text, code)):
            name = _named.setdefault(text, f"<{code.co_filename[1:].partition('>')[0]} {len(_named) + 1}>")
            return _entered(name, text.splitlines(keepends=True))
    return None


def _same(a: types.CodeType, b: types.CodeType) -> bool:
    return a == b and list(a.co_lines()) == list(b.co_lines())  # before Python 3.11 `==` leaves lines out


def _candidates(code: types.CodeType) -> Iterator[str]:
    if code.co_filename == "<string>":
        yield from _command()
        return
    yield from _program()
    typed = _typed()
    for first in range(len(typed) - 1, max(-1, len(typed) - _LONGEST), -1):
        if not typed[first][:1].isspace():  # a statement begins at the margin
            lines = [f"{line}\n" for line in typed[first:]]
            yield "".join(block_of(lines) if lines[0].startswith(_BLOCKS) else lines)


def _command() -> Iterator[str]:
    """Return what follows `-c` on the command line of Python."""
    for argument, after in zip(sys.orig_argv, [*sys.orig_argv[1:], ""]):
        flags, letter, rest = argument.partition("c")
        if letter and flags.startswith("-"):
            yield rest or after


def _program() -> Iterator[str]:
    """Return what `python < program.py` reads: a file that can be read again. Of a pipe nothing is left."""
    try:
        status = os.fstat(0)
        if stat.S_ISREG(status.st_mode) and status.st_size <= _LARGEST:
            with open(0, "rb", closefd=False) as file:
                yield os.pread(file.fileno(), status.st_size, 0).decode()
    except (OSError, ValueError, AttributeError):  # closed, not in UTF-8, or a system without pread
        return


def _typed() -> list[str]:
    """Return the last lines that were typed at the prompt. A statement that runs is the last of them."""
    readline = sys.modules.get("readline")
    if readline is None:
        return []
    length = readline.get_current_history_length()
    entries = (readline.get_history_item(k + 1) or "" for k in range(max(0, length - _LONGEST), length))
    return [line for entry in entries for line in entry.splitlines()]


def _codes(text: str, like: types.CodeType) -> Iterator[types.CodeType]:
    """Return all code objects of a text, compiled as ``like`` was."""
    try:
        module = compile(text, like.co_filename, "exec", flags=like.co_flags & _FUTURES, dont_inherit=True)
    except (SyntaxError, ValueError):
        return
    pending = [module]
    while pending:
        for constant in pending.pop().co_consts:
            if isinstance(constant, types.CodeType):
                yield constant
                pending.append(constant)
