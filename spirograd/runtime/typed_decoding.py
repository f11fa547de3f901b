"""Records from JSON, as `encoding` wrote them, each value checked against the annotation of its field.

The check of a class is derived from its annotations when the first instance is read: types, alternatives, lengths of tuples, and the
`base.constraints` in ``Annotated``. A record has exactly the fields of its class. Decoding executes nothing. Data that `encoding` does not
write raises `Damage` with the path of the field, never another exception.
"""

from __future__ import annotations

import inspect
import json
import math
import sys
import types
from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any, TypeVar, Union, cast, get_args, get_origin

from spirograd.base import dtypes
from spirograd.base.constraints import Within
from spirograd.base.dtypes import DType
from spirograd.base.records import fields
from spirograd.runtime.encoding import NOT_STORED, Classes

T = TypeVar("T")
# JSON, byte strings -> a value. Raises Damage.
Decoder = Callable[[Any, Sequence[bytes]], Any]
# Conditions on the instances of classes, each of which raises Damage for an instance of its class.
Checks = Mapping[type, Callable[[Any], None]]
# Integers without limits of their own, such as operands of sizes: the range of 64 bits, signed or not.
_LOWEST, _HIGHEST = -(1 << 63), (1 << 64) - 1


class Damage(Exception):
    """The error in data that was read. ``path``: the names and numbers of the fields that lead there, innermost first."""

    def __init__(self, problem: str, *path: str | int) -> None:
        super().__init__(problem)
        self.problem = problem
        self.path = list(path)

    @property
    def field(self) -> str:
        """Return the path as text: ``kernels[0].compiled.args.size``."""
        parts = [f"[{part}]" if isinstance(part, int) else f".{part}" for part in reversed(self.path)]
        return "".join(parts).removeprefix(".")


def loads(data: bytes, nan: bool = False) -> Any:
    """Return JSON without duplicate names. Raises Damage.

    ``nan``: also accept NaN and infinities, which are numbers to Python and not to JSON.
    """
    try:
        return json.loads(data, object_pairs_hook=_unique, parse_constant=float if nan else _no_number)
    except RecursionError:
        raise Damage("is nested too deeply") from None
    except ValueError as error:
        raise Damage(f"is not JSON: {error}") from None


def _unique(pairs: list[tuple[str, object]]) -> dict[str, object]:
    entries = dict(pairs)
    if len(entries) != len(pairs):
        names = [name for name, _ in pairs]
        raise Damage(f"has `{next(name for name in names if names.count(name) > 1)}` twice")
    return entries


def _no_number(text: str) -> object:
    raise Damage(f"has {text}, which JSON does not have")


class Reader:
    """A reader of records of ``classes``. ``checks``: by class, further conditions on an instance, which raise Damage."""

    def __init__(self, classes: Classes, checks: Checks = types.MappingProxyType({})) -> None:
        self._classes = classes
        self._checks = checks
        self._decoders: dict[object, Decoder] = {}

    def read(self, cls: type[T], plain: object, blobs: Sequence[bytes]) -> T:
        """Return the instance of ``cls`` that ``plain`` describes. Raises Damage."""
        try:
            return cast(T, self.decoder(cls)(plain, blobs))
        except RecursionError:
            raise Damage("is nested too deeply") from None

    def decoder(self, hint: object) -> Decoder:
        """Return the decoder of values of a type."""
        decode = self._decoders.get(hint)
        if decode is None:
            decode = self._decoders[hint] = self._make_decoder(hint)
        return decode

    def _make_decoder(self, hint: Any) -> Decoder:
        if hint in _SCALARS:
            return _SCALARS[hint]
        origin = get_origin(hint)
        if origin is Annotated:
            if hint.__origin__ is int and isinstance(hint.__metadata__[0], Within):
                return _within(hint.__metadata__[0])
            return _constrained(self.decoder(hint.__origin__), [constraint.problem for constraint in hint.__metadata__])
        if origin in (Union, types.UnionType):
            return self._alternatives(hint)
        if origin is tuple:
            inner = get_args(hint)
            if inner[-1] is ... and len(inner) == 2:
                return _sequence(self.decoder(inner[0]))
            return _of_length([self.decoder(one) for one in inner])
        if origin is frozenset:
            return _tagged("set", _set(_sequence(self.decoder(get_args(hint)[0]))))
        if origin is dict:
            return _tagged("dict", _dictionary(_sequence(_of_length([self.decoder(one) for one in get_args(hint)]))))
        if origin is not None and issubclass(origin, Sequence):
            return _tuple_or_list(_sequence(self.decoder(get_args(hint)[0])))
        if self._classes.get(getattr(hint, "__name__", "")) == hint:
            return self._record(hint)
        kinds = [cls for cls in self._classes.values() if isinstance(hint, type) and issubclass(cls, hint)]
        if not kinds:
            raise TypeError(f"records with {hint} cannot be read")
        return self._alternatives(Union[tuple(kinds)])

    def _alternatives(self, hint: object) -> Decoder:
        """Return a decoder that chooses by the shape of the JSON, which differs between the alternatives."""
        options: dict[str, Decoder] = {}
        for option in get_args(hint):
            for shape in self._shapes(option):
                options.setdefault(shape, self.decoder(option) if not isinstance(option, type) else _late(self, option))
        expected = ", ".join(sorted(options))

        def decode(plain: object, blobs: Sequence[bytes]) -> object:
            option = options.get(_shape(plain))
            if option is None:
                raise Damage(f"is {_described(plain)}, expected one of: {expected}")
            return option(plain, blobs)

        return decode

    def _shapes(self, hint: Any) -> list[str]:
        if get_origin(hint) is Annotated:
            return self._shapes(hint.__origin__)
        if get_origin(hint) is tuple:
            return ["list"]
        if hint in _SHAPES:
            return [_SHAPES[hint]]
        return [name for name, cls in self._classes.items() if issubclass(cls, hint)]

    def _record(self, cls: type[Any]) -> Decoder:
        name, check = cls.__name__, self._checks.get(cls)
        members: list[tuple[str, Decoder]] = []

        def prepare() -> None:  # At the first use: classes name each other.
            hints = _hints(cls)
            members.extend([(f.name, self.decoder(hints[f.name])) for f in fields(cls) if f.name not in NOT_STORED])

        def decode(plain: object, blobs: Sequence[bytes]) -> object:
            if type(plain) is not dict or plain.get("class") != name:
                raise Damage(f"is {_described(plain)}, expected a {name}")
            if not members:
                prepare()
            values = {}
            member = ""
            try:
                for member, decoder in members:
                    values[member] = decoder(plain[member], blobs)
            except KeyError:
                raise Damage("is missing", member) from None
            except Damage as damage:
                damage.path.append(member)
                raise
            if len(plain) != len(members) + 1:
                unknown = min(set(plain) - set(values) - {"class"})
                raise Damage("is not a field of it", unknown)
            record = cls(**values)
            if check is not None:
                check(record)
            return record

        return decode


def _hints(cls: type[object]) -> dict[str, object]:
    """Return the annotations of a class of this package as types: `typing.get_type_hints` takes three times as long."""
    hints = {}
    for base in reversed(cls.__mro__[:-1]):
        names = vars(sys.modules[base.__module__])
        for name, text in inspect.get_annotations(base).items():
            hint = names.get(text) or _BUILTINS.get(text)
            hints[name] = eval(text, names) if hint is None else hint
    return hints


_BUILTINS = {"int": int, "str": str, "bool": bool, "float": float, "bytes": bytes}


def _late(reader: Reader, cls: type[object]) -> Decoder:
    """Return the decoder of a class that may contain itself, looked up at the first use."""
    return lambda plain, blobs: reader.decoder(cls)(plain, blobs)


# --- values --------------------------------------------------------------------------------------------------------------


def _described(plain: object) -> str:
    if isinstance(plain, dict) and isinstance(plain.get("class"), str):
        return f"a {plain['class'][:40]}"
    if isinstance(plain, str):
        return f"the text {plain[:40]!r}"
    if isinstance(plain, (dict, list)):
        return "an object" if isinstance(plain, dict) else f"a list of {len(plain)}"
    return "null" if plain is None else "an integer" if type(plain) is int else f"{plain!r:.40}"


def _shape(plain: object) -> str:
    """Return the distinguishing part of alternatives: the type of the JSON, the class of records, the tag of values that JSON lacks."""
    if type(plain) is not dict:
        return _SHAPES.get(type(plain), type(plain).__name__)
    name = plain.get("class")
    return name if isinstance(name, str) else next(iter(plain), "") if len(plain) == 1 else ""


_SHAPES: dict[object, str] = {
    type(None): "null",
    bool: "bool",
    int: "integer",
    str: "text",
    float: "number",
    bytes: "bytes",
    DType: "dtype",
}


def _plain(kind: type, expected: str) -> Decoder:
    def decode(plain: object, blobs: Sequence[bytes]) -> object:
        if type(plain) is not kind:
            raise Damage(f"is {_described(plain)}, expected {expected}")
        return plain

    return decode


def _integer(plain: object, blobs: Sequence[bytes]) -> int:
    if type(plain) is not int:
        raise Damage(f"is {_described(plain)}, expected an integer")
    if not _LOWEST <= plain <= _HIGHEST:
        raise Damage("is an integer of more than 64 bits")
    return plain


def _within(limits: Within) -> Decoder:
    low, high = limits.low, limits.high

    def decode(plain: object, blobs: Sequence[bytes]) -> int:
        if type(plain) is int and low <= plain <= high:
            return plain
        raise Damage(limits.problem(_integer(plain, blobs)))

    return decode


def _tagged(tag: str, content: Decoder) -> Decoder:
    def decode(plain: object, blobs: Sequence[bytes]) -> object:
        if type(plain) is not dict or len(plain) != 1 or tag not in plain:
            raise Damage(f"is {_described(plain)}, expected a {tag}")
        return content(plain[tag], blobs)

    return decode


def _float(content: Any, blobs: Sequence[bytes]) -> float:
    try:
        value = float.fromhex(content)
    except (TypeError, ValueError, OverflowError):
        raise Damage(f"is {_described(content)}, expected a float in hexadecimal digits") from None
    if not math.isfinite(value):
        raise Damage(f"is {value}, expected a finite number")
    return value


def _bytes(content: object, blobs: Sequence[bytes]) -> bytes:
    if type(content) is not int or not 0 <= content < len(blobs):
        raise Damage(f"is {_described(content)}, expected the number of one of {len(blobs)} byte strings")
    return blobs[content]


def _dtype(content: object, blobs: Sequence[bytes]) -> DType:
    dtype = _DTYPES.get(content) if isinstance(content, str) else None
    if dtype is None:
        raise Damage(f"is {_described(content)}, expected the name of a type")
    return dtype


_DTYPES = {t.name: t for t in dtypes.ALL}
_SCALARS: dict[object, Decoder] = {
    int: _integer,
    bool: _plain(bool, "true or false"),
    str: _plain(str, "text"),
    type(None): _plain(type(None), "null"),
    float: _tagged("float", _float),
    bytes: _tagged("bytes", _bytes),
    DType: _tagged("dtype", _dtype),
}


def _constrained(decoder: Decoder, problems: Sequence[Callable[[object], str]]) -> Decoder:
    def decode(plain: object, blobs: Sequence[bytes]) -> object:
        value = decoder(plain, blobs)
        for problem in problems:
            if fault := problem(value):
                raise Damage(fault)
        return value

    return decode


# --- containers ----------------------------------------------------------------------------------------------------------


def _list(plain: object) -> list[object]:
    if type(plain) is not list:
        raise Damage(f"is {_described(plain)}, expected a list")
    return plain


def _sequence(decoder: Decoder) -> Decoder:
    def decode(plain: object, blobs: Sequence[bytes]) -> object:
        if not plain:
            return tuple(_list(plain))
        values: list[object] = []
        try:
            for entry in _list(plain):
                values.append(decoder(entry, blobs))
        except Damage as damage:
            if type(plain) is list:
                damage.path.append(len(values))
            raise
        return tuple(values)

    return decode


def _of_length(decoders: Sequence[Decoder]) -> Decoder:
    def decode(plain: Any, blobs: Sequence[bytes]) -> object:
        if len(_list(plain)) != len(decoders):
            raise Damage(f"is a list of {len(plain)}, expected {len(decoders)}")
        values: list[object] = []
        try:
            for decoder, entry in zip(decoders, plain):
                values.append(decoder(entry, blobs))
        except Damage as damage:
            damage.path.append(len(values))
            raise
        return tuple(values)

    return decode


def _tuple_or_list(decoder: Decoder) -> Decoder:
    as_list = _tagged("list", decoder)
    return lambda plain, blobs: decoder(plain, blobs) if type(plain) is list else list(as_list(plain, blobs))


def _set(decoder: Decoder) -> Decoder:
    def decode(plain: object, blobs: Sequence[bytes]) -> object:
        values = decoder(plain, blobs)
        elements = frozenset(values)
        if len(elements) != len(values):
            raise Damage("has an element twice")
        return elements

    return decode


def _dictionary(decoder: Decoder) -> Decoder:
    def decode(plain: object, blobs: Sequence[bytes]) -> object:
        values = decoder(plain, blobs)
        dictionary = dict(values)
        if len(dictionary) != len(values):
            raise Damage("has a key twice")
        return dictionary

    return decode
