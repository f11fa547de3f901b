"""Fingerprints: equal for two objects that mean the same to a kernel, which takes them as constants.

They are the keys of specialisations. A fingerprint keeps no object alive that it tells apart by identity: an instance that is no longer
used takes its arrays with it.
"""

from __future__ import annotations

import dataclasses
import functools
import types
import weakref
from collections.abc import Callable, Hashable, Iterator

import numpy as np

from spirograd.base.dtypes import DType
from spirograd.lang.frontend.func import BoundFunc
from spirograd.lang.leaves import AggregateType
from spirograd.lang.matrix import Matrix
from spirograd.lang.struct import Struct

PLAIN = (bool, int, float, str, bytes, type(None))
BY_VALUE = (*PLAIN, DType, AggregateType, np.generic)
_LARGEST_COPY = 4096  # bytes of a NumPy array that is compared by its contents; longer ones by identity


class Identity:
    """Equal only for the same living object, for types that define equality otherwise."""

    __slots__ = ("number", "ref")

    def __init__(self, value: object) -> None:
        self.number = id(value)
        kind: type = type(value)
        self.ref: Callable[[], object] = weakref.ref(value) if _can_be_weak(kind) else lambda: value

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Identity):
            return False
        mine = self.ref()
        return mine is not None and mine is other.ref()

    def __hash__(self) -> int:
        return self.number


@functools.cache
def _can_be_weak(t: type) -> bool:
    return bool(t.__weakrefoffset__)


@functools.cache
def compared_by_identity(t: type) -> bool:
    """Return whether instances of ``t`` are told apart by identity, and weak references to them stand for them."""
    return _can_be_weak(t) and all(getattr(t, name) is getattr(object, name) for name in ("__eq__", "__hash__"))


def fingerprint(value: object) -> Hashable:
    """Return what is equal for two values that mean the same to a kernel: value and type of numbers, contents of containers, else
    identity."""
    kind: type = type(value)
    if compared_by_identity(kind):
        return weakref.ref(value)
    if isinstance(value, BY_VALUE):
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
    if isinstance(value, types.MethodType):  # likewise
        return (kind, fingerprint(value.__func__), fingerprint(value.__self__))
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return (kind, *(fingerprint(getattr(value, f.name)) for f in dataclasses.fields(value)))
    return Identity(value)


def is_dead(key: object) -> bool:
    """Return whether a key names an object that is gone: nothing will ever equal it."""
    if isinstance(key, tuple):
        return any(is_dead(part) for part in key)
    if isinstance(key, Identity):
        return key.ref() is None
    return isinstance(key, weakref.ref) and key() is None


def named_by(key: object) -> Iterator[object]:
    """Return the objects that a key, or a `fingerprint`, tells apart by identity: once one of them is gone, `is_dead`."""
    if isinstance(key, tuple):
        for part in key:
            yield from named_by(part)
    elif isinstance(key, Identity):
        yield key.ref()
    elif isinstance(key, weakref.ref):
        yield key()
