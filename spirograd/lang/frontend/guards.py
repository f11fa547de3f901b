"""What compiled code takes from outside as constant, and how a launch finds out that it has changed.

A template argument is part of the key of a specialisation; attributes of it that the kernel read are guards. Neither keeps the
object alive: an instance that nobody uses any more takes its arrays with it.
"""

from __future__ import annotations

import dataclasses
import functools
import operator
import types
import weakref
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from spirograd.base.dtypes import DType
from spirograd.lang.data.ndarray import Ndarray
from spirograd.lang.frontend.function import BoundFunc
from spirograd.lang.leaves import AggregateType
from spirograd.lang.matrix import Matrix
from spirograd.lang.struct import Struct

_PLAIN = (bool, int, float, str, bytes, type(None))
_BY_VALUE = (*_PLAIN, DType, AggregateType, np.generic)
# Number of the argument, its attributes that are watched, and for each of them what tells whether it is unchanged.
Guard = tuple[int, Callable[[Any], tuple[Any, ...]], tuple[Callable[[Any], bool], ...]]
_LARGEST_COPY = 4096  # bytes of a NumPy array that is compared by its contents; longer ones by identity


class _Identity:
    """Equal only for the same living object, for types that define equality otherwise."""

    __slots__ = ("number", "ref")

    def __init__(self, value: Any) -> None:
        self.number = id(value)
        kind: Any = type(value)
        self.ref: Callable[[], Any] = weakref.ref(value) if _can_be_weak(kind) else lambda: value

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, _Identity):
            return False
        mine = self.ref()
        return mine is not None and mine is other.ref()

    def __hash__(self) -> int:
        return self.number


@functools.cache
def _can_be_weak(t: Any) -> bool:
    return bool(t.__weakrefoffset__)


@functools.cache
def _compared_by_identity(t: Any) -> bool:
    return _can_be_weak(t) and all(getattr(t, name) is getattr(object, name) for name in ("__eq__", "__hash__"))


def fingerprint(value: Any) -> Hashable:
    """What is equal for two values that mean the same to a kernel: value and type of numbers, contents of containers, else identity."""
    kind: Any = type(value)
    if _compared_by_identity(kind):
        return weakref.ref(value)
    if isinstance(value, _BY_VALUE):
        return (kind, value, str(value)) if isinstance(value, float) else (kind, value)  # str tells 0.0 from -0.0
    if isinstance(value, Matrix):
        return (kind, value.shape, *map(fingerprint, value.entries))
    if isinstance(value, (tuple, list)):
        return (kind, *map(fingerprint, value))
    if isinstance(value, Struct):
        return (kind, *value.entries, *map(fingerprint, value.entries.values()))
    if isinstance(value, dict):
        return (kind, *((fingerprint(k), fingerprint(v)) for k, v in value.items()))
    if isinstance(value, np.ndarray) and value.nbytes <= _LARGEST_COPY and value.dtype.kind in "biuf":
        return (kind, value.shape, value.dtype, value.tobytes())
    if isinstance(value, BoundFunc):  # a new one each time that the method is named
        return (kind, fingerprint(value.func), fingerprint(value.instance))
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return (kind, *(fingerprint(getattr(value, f.name)) for f in dataclasses.fields(value)))
    return _Identity(value)


def is_dead(key: Any) -> bool:
    """Whether a key names an object that is gone: nothing will ever equal it."""
    if isinstance(key, tuple):
        return any(is_dead(part) for part in key)
    if isinstance(key, _Identity):
        return key.ref() is None
    return isinstance(key, weakref.ref) and key() is None


def named_by(key: Any) -> Iterator[Any]:
    """The objects that a key, or a `fingerprint`, tells apart by identity: once one of them is gone, `is_dead`."""
    if isinstance(key, tuple):
        for part in key:
            yield from named_by(part)
    elif isinstance(key, _Identity):
        yield key.ref()
    elif isinstance(key, weakref.ref):
        yield key()


@dataclasses.dataclass(frozen=True, slots=True)
class Path:
    """How to reach an object from the arguments of a kernel: number of the argument, names of attributes."""

    argument: int
    names: tuple[str, ...] = ()

    def then(self, name: str) -> Path:
        return Path(self.argument, (*self.names, name))

    def getter(self) -> Callable[[Sequence[Any]], Any]:
        """A function from arguments to the object; raises AttributeError if it is not there any more."""
        argument = self.argument
        if not self.names:
            return operator.itemgetter(argument)
        follow = operator.attrgetter(".".join(self.names))
        return lambda args: follow(args[argument])


def is_stored(owner: Any, name: str) -> bool:
    """Whether an attribute is data of the instance, rather than a method or something computed."""
    return name in getattr(owner, "__dict__", ()) or isinstance(getattr(type(owner), name, None), types.MemberDescriptorType)


def is_guardable(owner: Any, name: str, value: Any) -> bool:
    """Whether the kernel depends on an attribute of ``owner`` such that a change must be noticed."""
    return isinstance(value, _PLAIN) or (is_stored(owner, name) and not isinstance(value, (types.ModuleType, Ndarray)))


def guards(watched: Mapping[Path, Any]) -> list[Guard]:
    """What finds out at a launch whether attributes still are what they are now: one look per argument, in C as far as it goes."""
    out = []
    for argument in sorted({path.argument for path in watched}):
        names = {".".join(path.names): value for path, value in watched.items() if path.argument == argument}
        follow: Callable[[Any], Any] = operator.attrgetter(*names)
        out.append((argument, follow if len(names) > 1 else _as_tuple(follow), tuple(map(unchanged, names.values()))))
    return out


def _as_tuple(follow: Callable[[Any], Any]) -> Callable[[Any], tuple[Any, ...]]:
    return lambda obj: (follow(obj),)


def unchanged(value: Any) -> Callable[[Any], bool]:
    """A function that tells whether something still is what ``value`` is now."""
    print_, kind = fingerprint(value), type(value)
    if isinstance(print_, weakref.ref):
        ref: Callable[[], Any] = print_
        return lambda now: now is ref()
    if isinstance(value, _BY_VALUE):
        return lambda now: now is value or fingerprint(now) == print_
    if isinstance(value, Matrix):
        shape, entries = value.shape, value.entries

        def same_entries(now: Any) -> bool:
            if type(now) is kind and now.shape == shape and all(map(operator.is_, now.entries, entries)):
                return True  # the very numbers: the usual case, and a quick one
            return fingerprint(now) == print_

        return same_entries
    return lambda now: fingerprint(now) == print_
