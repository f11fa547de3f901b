"""Pseudocode of an instruction -> a function of NumPy arrays, an element for each lane (or, of scalar instructions, for each wave).

Registers come as unsigned integers of the operand's size, and results go back as such; conditions of the program become masks, so that
each lane takes its own way. Loops have constant bounds and are unrolled.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from validation.rdna3 import arithmetic
from validation.rdna3.arithmetic import DTYPES, Array
from validation.rdna3.pseudocode import Node, NotPseudocode, parse

Type = tuple[str, int]
_PY: Type = ("py", 0)
_BOOL: Type = ("u", 1)
_F64: Type = ("f", 64)
_FLOATS = {"INF": np.inf, "NAN": np.nan, "PI": np.pi, "MAX_FLOAT_F32": float(np.finfo(np.float32).max)}
_FLOATS |= {f"{name}_F{bits}": value for name, value in (("UNDERFLOW", 0.0), ("OVERFLOW", np.inf)) for bits in (32, 64)}
_FACTS = {"WAVE32": True, "WAVE64": False, "WAVE_MODE.IEEE": True}
# name -> (function of `arithmetic` or NumPy, type of the result: None for that of the first operand)
_FUNCTIONS: dict[str, tuple[Any, Type | None]] = {
    "fma": (arithmetic.fma, None), "abs": (np.abs, None), "floor": (np.floor, None), "trunc": (np.trunc, None), "sqrt": (np.sqrt, None),
    "fract": (arithmetic.fract, None), "log2": (arithmetic.log2, None), "mantissa": (arithmetic.mantissa, None),
    "cvtToQuietNAN": (arithmetic.quiet, None), "ldexp": (arithmetic.ldexp, None), "exponent": (arithmetic.exponent, ("i", 32)),
    "isNAN": (np.isnan, _BOOL), "isSignalNAN": (arithmetic.is_signalling, _BOOL), "isQuietNAN": (arithmetic.is_quiet, _BOOL),
    "isEven": (arithmetic.is_even, _BOOL), "sign": (arithmetic.sign, _BOOL), "bf16_to_f32": (arithmetic.bf16_to_f32, ("f", 32)),
    "signext_from_bit": (arithmetic.extend_from, None),
}  # fmt: skip

_OF_NUMBERS = ("isNAN", "isSignalNAN", "isQuietNAN", "isEven")


@dataclass(frozen=True, slots=True)
class Function:
    """``run(*inputs)`` gives a tuple of the outputs. Names ending in "@lane" are masks over lanes; "SCC" is a condition."""

    run: Callable[..., tuple[Array, ...]]
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    source: str = ""


def translate(text: str, widths: Mapping[str, int], call: Callable[[str], Callable[..., Array]]) -> Function:
    """The function of ``text``. ``widths``: the bits of each register (S0, D0 ...). ``call``: finds instructions used as functions.

    Raises NotPseudocode.
    """
    return _Translator(widths, call).function(parse(text))


def _storage(t: Type) -> Type:
    """The smallest type with an array that holds ``t``."""
    if t in DTYPES:
        return t
    if t[1] > 64 or t[0] == "f":
        raise NotPseudocode(f"numbers of {t[1]} bits")
    return t[0], next(size for size in (8, 16, 32, 64) if size >= t[1])


class _Translator:
    def __init__(self, widths: Mapping[str, int], call: Callable[[str], Callable[..., Array]]) -> None:
        self._widths = widths
        self._call = call
        self._lines: list[str] = []
        self._names: dict[str, Any] = {"np": np}
        self._types: dict[str, Type] = {}  # of what is defined
        self._arrays: dict[str, int] = {}
        self._lambdas: dict[str, Any] = {}
        self._constants: dict[str, Any] = {}  # loop variables and parameters of lambdas
        self._masks: list[str] = []
        self._live: list[str] = []
        self._inputs: list[str] = []
        self._outputs: list[str] = []
        self._count = 0

    def function(self, statements: list[Node]) -> Function:
        self._block(statements)
        names = ", ".join(_python(name) for name in self._inputs)
        results = "".join(f"{_python(name)}, " for name in self._outputs)
        source = "\n".join([f"def run({names}):", *[f"    {line}" for line in self._lines], f"    return ({results})"])
        exec(source, self._names)
        return Function(self._names["run"], tuple(self._inputs), tuple(self._outputs), source)

    # --- names ---

    def _fresh(self, value: str) -> str:
        self._count += 1
        name = f"x{self._count}"
        self._lines.append(f"{name} = {value}")
        return name

    def _global(self, value: Any) -> str:
        name = f"k{len(self._names)}"
        self._names[name] = value
        return name

    def _constant(self, value: Any, t: Type) -> str:
        storage = _storage(t)
        if storage[0] != "f" and storage != _BOOL:
            value = int(value) & (1 << storage[1]) - 1
            return self._global(np.array([value], DTYPES["u", storage[1]]).view(DTYPES[storage]))
        return self._global(np.array([value], DTYPES[storage]))

    def _register(self, name: str) -> Type:
        """Define ``name`` as an input, if it is not known yet."""
        if name not in self._types:
            if not isinstance(name, str):
                raise NotPseudocode("a part of a part")
            if name == "SCC" or name.endswith("@lane"):
                self._types[name] = _BOOL
            elif name == "laneId":
                self._types[name] = ("u", 32)
            elif name in self._widths:
                self._types[name] = ("u", self._widths[name])
            else:
                raise NotPseudocode(f"the name {name}")
            self._inputs.append(name)
        return self._types[name]

    # --- statements ---

    def _block(self, statements: list[Node]) -> None:
        for statement in statements:
            getattr(self, f"_do_{statement[0]}")(*statement[1:])

    def _do_do(self, call: Node) -> None:
        if call[1] not in ("nop", "s_nop"):
            raise NotPseudocode(f"a call of {call[1]}")

    def _do_declare(self, name: str, t: Type, length: int | None) -> None:
        if name in self._widths or name == "S":
            return
        if length is not None:
            self._arrays[name] = length
        for k in range(length or 1):
            part = name if length is None else f"{name}_{k}"
            self._types[part] = t
            self._lines.append(f"{_python(part)} = {self._constant(0, t)}")

    def _do_lambda(self, name: str, names: list[str], value: Node) -> None:
        self._lambdas[name] = (names, value)

    def _do_if(self, branches: list[tuple[Node, list[Node]]], otherwise: list[Node]) -> None:
        opened = 0
        for condition, body in branches:
            code, t = self._value(condition)
            if t == _PY:
                if code:
                    self._block(body)
                    otherwise = []
                    break
                continue
            yes = self._fresh(self._as((code, t), _BOOL))
            self._under(yes, body)
            self._masks.append(self._fresh(f"~{yes}"))
            opened += 1
        self._block(otherwise)
        del self._masks[len(self._masks) - opened :]

    def _under(self, mask: str, body: list[Node]) -> None:
        self._masks.append(mask)
        self._block(body)
        self._masks.pop()

    def _do_for(self, name: str, first: Node, last: Node, body: list[Node]) -> None:
        bounds = [self._value(bound) for bound in (first, last)]
        begin, end = (self._constant_value(code, t) for code, t in bounds)
        self._live.append("")
        for k in range(begin, end + 1):
            self._constants[name] = (k, _PY)
            self._block(body)
        self._live.pop()
        del self._constants[name]

    def _constant_value(self, code: Any, t: Type) -> int:
        if t != _PY and code not in self._names:
            raise NotPseudocode("a number that is not constant")
        return int(code if t == _PY else self._names[code][0])

    def _do_break(self) -> None:
        mask = self._mask()
        if mask is None:
            raise NotPseudocode("a break without a condition")
        live = f"{self._live[-1]} & " if self._live[-1] else ""
        self._live[-1] = self._fresh(f"{live}~({mask})")

    def _mask(self) -> str | None:
        parts = [*self._masks, *[live for live in self._live if live]]
        return " & ".join(parts) if parts else None

    def _do_set(self, target: Node, value: Node) -> None:
        if target[0] == "join":
            raise NotPseudocode("an assignment to several registers")
        self._assign(target, self._value(value))

    def _assign(self, target: Node, value: tuple[Any, Type]) -> None:
        """Give ``value`` to a name, to a view of it, to some of its bits, or to the bit of each lane."""
        kind = target[0]
        if kind == "name":
            self._store(target[1], value)
        elif kind == "view" and target[1][0] in ("slice", "part"):
            self._insert(target[1], self._as(value, target[2]), target[2])
        elif kind == "view":
            inner = target[1]
            if inner[0] == "name" or (inner[0] == "index" and inner[1] == ("name", "MEM")):
                name = "MEM" if inner[0] == "index" else inner[1]
                self._store(name, (self._as(value, target[2]), target[2]))
            else:
                raise NotPseudocode("an assignment to such a view")
        elif kind in ("slice", "part"):
            self._insert(target, *value)
        elif kind == "index":
            self._set_index(target, value)
        else:
            raise NotPseudocode(f"an assignment to {kind}")

    def _set_index(self, target: Node, value: tuple[Any, Type]) -> None:
        base, index = target[1], target[2]
        name = base[1][1] if base[0] == "view" else base[1]
        if index == ("name", "laneId"):
            self._store(f"{name}@lane", (self._as(value, _BOOL), _BOOL))
        elif name in self._arrays:
            code, t = self._value(index)
            self._store(f"{name}_{self._constant_value(code, t)}", value)
        else:
            t = self._types.get(name) or self._register(name)
            word = _storage(("u", t[1]))
            at = self._as(self._value(index), word)
            one = self._constant(1, word)
            bit = self._as((self._as(value, _BOOL), _BOOL), word)
            old = self._as((_python(name), t), word)
            self._store(name, (f"(({old} & ~({one} << {at})) | ({bit} << {at}))", word))

    def _insert(self, target: Node, code: Any, t: Type) -> None:
        """Bits ``target[2]`` to ``target[3]`` of a register or a variable."""
        base = target[1]
        name = base[1][1] if base[0] == "view" else base[1]
        if target[0] == "part":
            low = self._number(target[2])
            high = low + self._number(target[3]) - 1
        else:
            high, low = self._number(target[2]), self._number(target[3])
        known = self._types.get(name)
        if known is None and name not in self._widths:
            known = self._types[name] = ("u", 32)
            self._lines.append(f"{_python(name)} = {self._constant(0, known)}")
        known = known or self._register(name)
        word = _storage(("u", known[1]))
        field = (1 << high - low + 1) - 1
        new = f"({self._as(self._bits((code, t)), word)} & {self._constant(field, word)}) << {self._constant(low, word)}"
        kept = f"{self._as((_python(name), known), word)} & {self._constant(~(field << low), word)}"
        self._store(name, (f"(({kept}) | ({new}))", word))

    def _number(self, node: Node) -> int:
        return self._constant_value(*self._value(node))

    def _store(self, name: str, value: tuple[Any, Type]) -> None:
        """Assign where the current mask says so."""
        code, t = value
        register = name in self._widths
        if register:
            t = _storage(("u", self._widths[name]))
            code = self._as(self._bits(value), t)
        elif name == "SCC" or name.endswith("@lane"):
            code, t = self._as(value, _BOOL), _BOOL
        else:
            known = self._types.get(name)
            if t == _PY:
                t = known or ("i", 32)
                code = self._as(value, t)
            elif known is not None and self._mask() is not None:
                code, t = self._as(value, known), known
        mask = self._mask()
        if mask is not None:
            if name not in self._types and not (register or t == _BOOL):
                self._lines.append(f"{_python(name)} = {self._constant(0, t)}")
                self._types[name] = t
            elif name not in self._types:
                self._register(name)
            code = f"np.where({mask}, {code}, {_python(name)})"
        self._lines.append(f"{_python(name)} = {code}")
        self._types[name] = t
        if (register or name == "SCC" or name.endswith("@lane")) and name not in self._outputs:
            self._outputs.append(name)

    def _bits(self, value: tuple[Any, Type]) -> tuple[Any, Type]:
        t = value[1]
        if t == _PY or t[0] == "u":
            return value
        return (self._as(value, ("u", t[1])), ("u", t[1])) if t[0] == "i" else (self._view(value, ("u", t[1])), ("u", t[1]))

    # --- values ---

    def _as(self, value: tuple[Any, Type], to: Type) -> str:
        """``value`` converted: numbers to numbers (integers keep their low bits)."""
        code, t = value
        if t == _PY:
            return self._constant(code, to)
        here, there = _storage(t), _storage(to)
        if there == _BOOL:
            return code if here == _BOOL else f"({code} != 0)"
        if here != there:
            if here[0] != "f" and there[0] != "f" and here[1] == there[1]:
                code = f"{code}.view({self._dtype(there)})"
            else:
                code = f"{code}.astype({self._dtype(there)})"
        if to[1] != there[1] and to[1] < here[1]:
            code = self._narrow(code, to)
        return str(code)

    def _narrow(self, code: str, to: Type) -> str:
        """The low bits of a value, in a type that has more."""
        storage = _storage(to)
        spare = self._constant(storage[1] - to[1], storage)
        return f"(({code} << {spare}) >> {spare})"

    def _dtype(self, t: Type) -> str:
        return f"np.{DTYPES[t].__name__}"

    def _view(self, value: tuple[Any, Type], to: Type) -> str:
        """The low bits of ``value`` taken for a ``to``."""
        code, t = value
        if t == to:
            return str(code)
        if t == _PY:
            return self._global(np.array([int(code) & (1 << to[1]) - 1], DTYPES["u", to[1]]).view(DTYPES[to]))
        if t[0] == "f":
            code, t = f"{code}.view({self._dtype(('u', t[1]))})", ("u", t[1])
        if to[0] != "f":
            return self._as((code, t), to)
        code = self._as((code, t), ("u", to[1]))
        return f"{code}.view({self._dtype(to)})"

    def _value(self, node: Node) -> tuple[Any, Type]:
        return getattr(self, f"_get_{node[0]}")(*node[1:])

    def _get_number(self, value: Any, t: Type | None) -> tuple[Any, Type]:
        if t is None:
            return value, _PY
        return self._constant(value, t), t

    def _get_name(self, name: str) -> tuple[Any, Type]:
        if name in self._constants:
            return self._constants[name]
        if name in _FACTS:
            return _FACTS[name], _PY
        if name in _FLOATS:
            return self._constant(_FLOATS[name], _F64), _F64
        t = self._types.get(name) or self._register(name)
        return _python(name), t

    def _get_view(self, base: Node, to: Type) -> tuple[Any, Type]:
        if base[0] == "name" and base[1] in _FLOATS:
            return self._constant(_FLOATS[base[1]], to), to
        return self._view(self._value(base), to), to

    def _get_index(self, base: Node, index: Node) -> tuple[Any, Type]:
        name = base[1][1] if base[0] == "view" and base[1][0] == "name" else base[1]
        if name == "MEM":
            return _python("MEM"), self._register("MEM")
        if index == ("name", "laneId"):
            self._register(f"{name}@lane")
            return _python(f"{name}@lane"), _BOOL
        if name == "S" or name in self._arrays:
            code, t = self._value(index)
            return self._get_name(f"{name}{'' if name == 'S' else '_'}{self._constant_value(code, t)}")
        code, t = self._value(base)
        if t == _PY:
            raise NotPseudocode("a bit of a constant")
        word = _storage(("u", t[1]))
        at = self._as(self._value(index), word)
        return f"(({self._as((code, t), word)} >> {at}) & {self._constant(1, word)} != 0)", _BOOL

    def _get_slice(self, base: Node, high: Node, low: Node) -> tuple[Any, Type]:
        bottom = self._number(low)
        return self._field(base, bottom, self._number(high) - bottom + 1)

    def _get_part(self, base: Node, low: Node, width: Node) -> tuple[Any, Type]:
        return self._field(base, self._number(low), self._number(width))

    def _field(self, base: Node, low: int, width: int) -> tuple[Any, Type]:
        code, t = self._value(base)
        if width < 1:
            raise NotPseudocode("bits in reverse order")
        word = _storage(("u", max(t[1], 32)))
        code = self._as(self._bits((code, t)), word)
        if low:
            code = f"({code} >> {self._constant(low, word)})"
        if low + width < t[1]:
            code = f"({code} & {self._constant((1 << width) - 1, word)})"
        return code, word

    def _get_cast(self, to: Type, value: Node) -> tuple[Any, Type]:
        code, t = self._value(value)
        if to[1] > 64:
            raise NotPseudocode("numbers of more than 64 bits")
        if to[0] == "f" and t[0] != "f":
            return self._view((code, t), to), to
        if t[0] == "f" and to[0] != "f":
            return self._view((code, t), to), to
        return self._as((code, t), to), to

    def _get_join(self, items: list[Node]) -> tuple[Any, Type]:
        parts = [self._value(item) for item in items]
        total = sum(t[1] for _, t in parts)
        if any(t == _PY for _, t in parts) or total not in (16, 32, 64):
            raise NotPseudocode("a concatenation of unknown size")
        word: Type = ("u", total)
        codes, above = [], total
        for part in parts:
            above -= part[1][1]
            bits = self._as(self._bits(part), word)
            codes.append(f"({bits} << {self._constant(above, word)})")
        return f"({' | '.join(codes)})", word

    def _get_unary(self, sign: str, operand: Node) -> tuple[Any, Type]:
        code, t = self._value(operand)
        if t == _PY:
            return {"-": -code, "~": ~int(code), "!": not code}[sign], _PY
        if sign == "!":
            return f"~{self._as((code, t), _BOOL)}", _BOOL
        if sign == "-" and t[0] == "f":
            return f"(-{code})", t
        if sign == "-":
            return f"({self._constant(0, t)} - {code})", t
        return f"(~{code})", t

    def _get_choose(self, condition: Node, yes: Node, no: Node) -> tuple[Any, Type]:
        test, t = self._value(condition)
        if t == _PY:
            return self._value(yes if test else no)
        left, right, common = self._together(self._value(yes), self._value(no))
        return f"np.where({self._as((test, t), _BOOL)}, {left}, {right})", common

    def _together(self, a: tuple[Any, Type], b: tuple[Any, Type]) -> tuple[str, str, Type]:
        """Both operands as values of one type."""
        if a[1] == _PY and b[1] == _PY:
            common: Type = ("i", 32)
        elif a[1] == _PY or b[1] == _PY:
            common = b[1] if a[1] == _PY else a[1]
        elif (a[1][0] == "f") != (b[1][0] == "f"):
            raise NotPseudocode("an operation of an integer and a float")
        else:
            bits = max(a[1][1], b[1][1])
            kinds = {t[0] for t in (a[1], b[1]) if t[1] == bits}
            common = ("f" if "f" in kinds else "u" if "u" in kinds else "i", bits)
        return self._as(a, common), self._as(b, common), common

    def _get_binary(self, sign: str, first: Node, second: Node) -> tuple[Any, Type]:
        if sign == "**" or (sign == "*" and second[0] == "binary" and second[1] == "**"):
            return self._power(sign, first, second)
        a, b = self._value(first), self._value(second)
        if a[1] == _PY and b[1] == _PY:
            operators: dict[str, Callable[[Any, Any], Any]] = {
                "+": lambda x, y: x + y, "-": lambda x, y: x - y, "*": lambda x, y: x * y, "<<": lambda x, y: x << y,
                "&": lambda x, y: x & y, "==": lambda x, y: x == y,
            }  # fmt: skip
            return operators[sign](a[0], b[0]), _PY
        if sign in ("&&", "||"):
            return f"({self._as(a, _BOOL)} {sign[0]} {self._as(b, _BOOL)})", _BOOL
        if sign in ("<<", ">>"):
            t = ("i", 32) if a[1] == _PY else a[1]
            left = self._as(a, t)
            return f"({left} {sign} {self._as(b, _storage(t))})", t
        left, right, t = self._together(a, b)
        if sign in ("==", "!=", "<", ">", "<=", ">="):
            return f"({left} {sign} {right})", _BOOL
        if t == _BOOL and sign in ("+", "-", "*"):
            t = ("i", 32)
            left, right = (self._as((code, _BOOL), t) for code in (left, right))
        return f"({left} {sign} {right})", t

    def _power(self, sign: str, first: Node, second: Node) -> tuple[Any, Type]:
        """``x * 2.0 ** n`` is one operation, which rounds once."""
        base, power = (first, second) if sign == "**" else (second[2], second[3])
        if base[0] != "number" or base[1] != 2.0:
            raise NotPseudocode("a power of another base than 2")
        value: tuple[Any, Type] = self._value(base) if sign == "**" else self._value(first)
        scale = 0 if sign == "*" else -1  # 2.0 ** n is ldexp(2.0, n - 1)
        code, t = self._value(power)
        exponent = self._as((code + scale, t), ("i", 32)) if t == _PY else f"({self._as((code, t), ('i', 32))} + {scale})"
        return f"{self._global(arithmetic.ldexp)}({value[0]}, {exponent})", value[1]

    # --- calls ---

    def _get_call(self, name: str, arguments: list[Node]) -> tuple[Any, Type]:
        if name in self._lambdas:
            names, body = self._lambdas[name]
            saved = dict(self._constants)
            values = [self._value(argument) for argument in arguments]
            self._constants |= dict(zip(names, [(code if t == _PY else self._fresh(code), t) for code, t in values]))
            result = self._value(body)
            self._constants = saved
            return result
        if name in _OF_NUMBERS and arguments[0][0] == "cast":
            arguments = [arguments[0][2]]  # converting a signalling NaN would make it quiet
        special = self._special(name, arguments)
        if special is not None:
            return special
        values = [self._value(argument) for argument in arguments]
        if name.startswith("v_"):
            return self._instruction(name, values)
        if name in _FUNCTIONS:
            function, result = _FUNCTIONS[name]
            t = values[0][1]
            codes = [self._as(v, ("i", 32)) if v[1] == _PY else str(v[0]) for v in values]
            return f"{self._global(function)}({', '.join(codes)})", result or t
        return self._conversion(name, values[0])

    def _special(self, name: str, arguments: list[Node]) -> tuple[Any, Type] | None:
        if name == "signext":
            code, t = self._value(arguments[0])
            return self._as((code, t), ("i", 64)), ("i", 64)
        if name == "pow":
            code, t = self._value(arguments[1])
            return f"{self._global(arithmetic.exp2)}({code})", t
        if name in ("sin", "cos"):
            inner = arguments[0]
            if inner[0] != "binary" or inner[1] != "*":
                raise NotPseudocode(f"{name} of anything but turns")
            code, t = self._value(inner[2])
            function = arithmetic.sin_turns if name == "sin" else arithmetic.cos_turns
            return f"{self._global(function)}({code})", t
        return None

    def _instruction(self, name: str, values: list[tuple[Any, Type]]) -> tuple[Any, Type]:
        found = re.search(r"_([uif])(\d+)", name)
        assert found is not None
        t = (found[1], int(found[2]))
        codes = [self._as(self._bits(v), ("u", 32 if v[1] == _PY else v[1][1])) for v in values]
        return self._view((f"{self._global(self._call(name.upper()))}({', '.join(codes)})", ("u", t[1])), t), t

    def _conversion(self, name: str, value: tuple[Any, Type]) -> tuple[Any, Type]:
        found = re.fullmatch(r"([uif])(\d+)_to_(?:([uif])(\d+)|(snorm|unorm))", name)
        if found is None:
            raise NotPseudocode(f"the function {name}")
        source: Type = (found[1], int(found[2]))
        code = self._as(value, source)
        if found[5]:
            t: Type = ("i" if found[5] == "snorm" else "u", 16)
            return f"{self._global(arithmetic.normalised)}({code}, {self._dtype(t)})", t
        t = (found[3], int(found[4]))
        if source[0] == "f" and t[0] != "f":
            return f"{self._global(arithmetic.to_integer)}({code}, {self._dtype(t)})", t
        if source[0] != "f" and t[0] != "f" and t[1] < source[1]:
            return f"{self._global(arithmetic.saturate)}({code}, {self._dtype(t)})", t
        return f"{code}.astype({self._dtype(t)})", t


def _python(name: str) -> str:
    return "r_" + name.replace("@", "_")
