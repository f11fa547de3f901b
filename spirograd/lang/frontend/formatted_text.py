"""Text with holes for run-time values: f-strings, and the `print` and `assert` that show them."""

from __future__ import annotations

import ast
import re
import string
from collections.abc import Mapping, Sequence

from spirograd.base.artifact import FAULT_MAX_OPERANDS, PrintSite
from spirograd.base.dtypes import VOID, DType, f64, i64, u1
from spirograd.base.wording import counted
from spirograd.ir import ops as ir
from spirograd.lang import scalar
from spirograd.lang.frontend.runtime_values import is_runtime, leaves
from spirograd.lang.frontend.tracer import Handler, Tracer
from spirograd.lang.matrix import Matrix
from spirograd.lang.scalar import Value, describe, type_error
from spirograd.lang.struct import Struct

# Parts of a text: literal strings, and values, or numbers of operands, with their format specs.
Shown = str | tuple[object, str]
_Numbered = str | tuple[int, str]


class FormattedText:
    """An f-string. Only `print` and `assert` can use one with run-time values."""

    def __init__(self, parts: list[Shown]) -> None:
        self.parts = parts

    def __add__(self, other: object) -> FormattedText:
        return FormattedText([*self.parts, *text_parts(other)]) if isinstance(other, (str, FormattedText)) else NotImplemented

    def __radd__(self, other: object) -> FormattedText:
        return FormattedText([other, *self.parts]) if isinstance(other, str) else NotImplemented


def _formatted(t: Tracer, node: ast.JoinedStr) -> str | FormattedText:
    parts: list[Shown] = []
    for part in node.values:
        if isinstance(part, ast.Constant):
            parts.append(str(part.value))
            continue
        assert isinstance(part, ast.FormattedValue)
        spec = t.expression(part.format_spec) if part.format_spec is not None else ""
        if not isinstance(spec, str):
            raise t.syntax_error("a format specification must be known while compiling", node, "write it out, as in `{x:.3f}`")
        value = t.expression(part.value)
        if t.captures.reads is not None:
            t.captures.reads.shown(value)
        t.at(node)  # parts have source locations of their own from Python 3.12 on only
        parts += _shown(value, spec, part.conversion == ord("r"))
    texts = [part for part in parts if isinstance(part, str)]
    return "".join(texts) if len(texts) == len(parts) else FormattedText(parts)


def formatted(text: str, args: Sequence[object], kwargs: Mapping[str, object]) -> FormattedText:
    """Return ``text.format(*args, **kwargs)`` with values that are known at run time only."""
    formatter, parts, number = string.Formatter(), list[Shown](), 0
    try:
        fields = list(formatter.parse(text))
    except ValueError as error:
        raise type_error(f"`format`: {error}") from None
    for literal, name, spec, conversion in fields:
        parts.append(literal)
        if name is None:
            continue
        if not name or name[0] in ".[":
            name, number = f"{number}{name}", number + 1
        if spec and "{" in spec:
            raise type_error("a format specification must be known while compiling", "write it out, as in `{:.3f}`")
        try:
            value, _ = formatter.get_field(name, args, kwargs)
        except (LookupError, AttributeError):
            raise type_error(f"`format`: there is no argument for `{{{name}}}`") from None
        parts += _shown(value, spec or "", conversion == "r")
    return FormattedText(parts)


# A conversion of `%`: a name, flags, a width, a precision, a letter.
_CONVERSION = re.compile(r"%(?:\((?P<name>[^)]*)\))?(?P<flags>[-+ #0]*)(?P<width>\d*)(?P<precision>\.\d*)?[hlL]?(?P<letter>.?)", re.DOTALL)
_LETTERS = {**{letter: letter for letter in "feEgGFxXo"}, **dict.fromkeys("diu", "d"), **dict.fromkeys("sra", "")}


def percent_formatted(text: str, values: object) -> FormattedText:
    """Return ``text % values`` with values that are known at run time only. Raises SpirogradTypeError for conversions that `%` lacks."""
    remaining = list(values) if isinstance(values, tuple) else [values]
    parts, end = list[Shown](), 0
    for found in _CONVERSION.finditer(text):
        parts.append(text[end : found.start()])
        end = found.end()
        if found["letter"] == "%":
            parts.append("%")
            continue
        if found["name"] is not None and isinstance(values, Mapping) and found["name"] in values:
            value = values[found["name"]]
        elif found["name"] is None and remaining:
            value = remaining.pop(0)
        else:
            raise type_error(f"`%`: there is no value for `{found[0]}`")
        parts += _converted(value, found)
    if remaining and not isinstance(values, Mapping):
        raise type_error(f"`%`: {counted(len(remaining), 'value')} too many for {text!r}")
    return FormattedText([*parts, text[end:]])


def _converted(value: object, conversion: re.Match[str]) -> list[Shown]:
    """Return the parts that show ``value`` as a conversion of `%` says."""
    letter, flags, precision = conversion["letter"], conversion["flags"], conversion["precision"] or ""
    if letter not in _LETTERS or (precision and letter not in "feEgGF"):
        raise type_error(f"`%`: the conversion `{conversion[0]}` is not supported in kernels", "write `%d`, `%f`, `%.3f` or `%s`")
    if _LETTERS[letter] == "d" and is_runtime(value):
        value = scalar.cast(value, i64) if scalar.is_scalar(value) and scalar.dtype_of(value).is_float else value
    elif not is_runtime(value):
        return [conversion[0].replace(f"({conversion['name']})", "") % (value,)]
    sign = next((flag for flag in "+ " if flag in flags), "")
    align = "<" if "-" in flags else ">" if letter in "sra" and conversion["width"] else ""
    zeros = "0" if "0" in flags and not align else ""
    return _shown(value, f"{align}{sign}{'#' * ('#' in flags)}{zeros}{conversion['width']}{precision}{_LETTERS[letter]}", False)


def _shown(value: object, spec: str, quoted: bool) -> list[Shown]:
    """Return the parts that show a value."""
    if isinstance(value, FormattedText) and not spec:
        return value.parts
    if not is_runtime(value) and not (_is_formatted(value) and not spec and not quoted):
        return [_format(repr(value) if quoted else value, spec, describe(value))]
    for sample in {float if v.dtype.is_float else int for v in leaves(value)}:
        _format(sample(0), spec, describe(value))
    return [(value, spec)]


def _format(value: object, spec: str, what: str) -> str:
    try:
        return format(value, spec)
    except (TypeError, ValueError):
        raise type_error(f"the format {spec!r} does not fit {what}") from None


def text_parts(value: object) -> list[Shown]:
    """Return ``value`` as literal strings and (value, format spec) pairs."""
    if isinstance(value, FormattedText):
        return value.parts
    return [(value, "") if is_runtime(value) or _is_formatted(value) else str(value)]


def _is_formatted(value: object) -> bool:
    """Return whether the options say how ``value``, known while compiling, is printed."""
    return scalar.trace_of().options.prints_fixed and (isinstance(value, (Matrix, Struct)) or scalar.is_number(value))


def _fixed(dtype: DType) -> str:
    """Return the format of the Taichi family for numbers of a type."""
    return "d" if dtype is u1 else "" if not dtype.is_float else ".12f" if dtype is f64 else ".6f"


def _holes(value: object, spec: str, operands: list[Value]) -> list[_Numbered]:
    """Return the parts that show a run-time value, with each of its scalars appended to ``operands``."""
    if isinstance(value, Struct):
        out: list[_Numbered] = ["{"]
        for k, (name, member) in enumerate(value.entries.items()):
            out += [f"{', ' if k else ''}{name}: ", *_holes(member, spec, operands)]
        return [*out, "}"]
    if isinstance(value, Matrix):
        rows = [value[i] for i in range(value.n)]
        out = ["["]
        for k, row in enumerate(rows):
            out += [", "] if k else []
            out += _holes(row, spec, operands)
        return [*out, "]"]
    operands.append(scalar.as_value(value))
    return [(len(operands) - 1, spec)]


def _numbered(parts: Sequence[Shown]) -> tuple[list[_Numbered], list[Value]]:
    """Return the parts with numbers for values, and these values."""
    operands: list[Value] = []
    merged: list[_Numbered] = []
    for shown in parts:
        for part in [shown] if isinstance(shown, str) else _holes(*shown, operands):
            last = merged[-1] if merged else None
            if isinstance(part, str) and isinstance(last, str):
                merged[-1] = last + part
            else:
                merged.append(part)
    return merged, operands


def emit_print(parts: Sequence[Shown]) -> None:
    """Print the parts of a text."""
    merged, operands = _numbered(parts)
    if scalar.trace_of().options.prints_fixed:
        merged = [part if isinstance(part, str) else (part[0], part[1] or _fixed(operands[part[0]].dtype)) for part in merged]
    b = scalar.builder()
    site = PrintSite(tuple(merged), tuple(v.dtype for v in operands), b.loc)
    b.emit(ir.print_, *[v.op for v in operands], attr=site, type=VOID)


def emit_assert(condition: Value, parts: Sequence[Shown]) -> None:
    """Fail with a message of the parts of a text unless ``condition`` holds."""
    merged, operands = _numbered([part if isinstance(part, str) or is_runtime(part[0]) else str(part[0]) for part in parts])
    operands = operands[:FAULT_MAX_OPERANDS]
    message = ""
    for part in merged:
        if isinstance(part, str):
            message += part.replace("{", "{{").replace("}", "}}")
        else:
            index, spec = part
            message += "..." if index >= len(operands) else f"{{{index}:{spec}}}" if spec else f"{{{index}}}"
    scalar.emit_check("assert", condition, message, operands)


HANDLERS: dict[type[ast.AST], Handler] = {ast.JoinedStr: _formatted}
