"""Artifacts as JSON, as the offline cache and modules of `aot` store them. `typed_decoding` reads it.

Numbers, text, None and tuples (as lists) are stored directly. An instance of one of `CLASSES` is an object with its ``class`` and its
fields. Values that JSON lacks are objects with one entry: ``{"dtype": "f32"}``, ``{"bytes": 0}``, the number of a byte string, ``{"float":
"0x1p-1"}``, ``{"list": [...]}``, ``{"set": [...]}``, ``{"dict": [[key, value], ...]}``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from spirograd.base.artifact import (
    AdstackInfo,
    AdstackLoop,
    AdstackSizing,
    ArgBlock,
    CompiledKernel,
    DisjointArray,
    Effects,
    FaultSite,
    PrintSite,
    Slot,
    SpaceLimit,
    TaskInfo,
    Work,
)
from spirograd.base.dtypes import DType
from spirograd.base.loc import Loc
from spirograd.base.records import fields
from spirograd.base.sizes.size_nodes import NODES

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

Classes = Mapping[str, type["DataclassInstance"]]
_ADSTACKS = (AdstackInfo, AdstackLoop, AdstackSizing)
_TASKS = (TaskInfo, Work, FaultSite, PrintSite, SpaceLimit)
_ARTIFACT = (CompiledKernel, Slot, ArgBlock, *_ADSTACKS, *_TASKS, DisjointArray, Effects, Loc)
CLASSES: Classes = {c.__name__: c for c in (*_ARTIFACT, *NODES)}
# `run` is code. `stages` are part of an artifact only if the caller of the compiler asked for them; then they are stored.
NOT_STORED = frozenset({"run"})


def encoded(value: object, blobs: list[bytes], classes: Classes = CLASSES) -> object:
    """Return ``value`` as JSON; its byte strings are appended to ``blobs``. Raises TypeError for instances of other classes."""
    if value is None or isinstance(value, (bool, int, str)):
        return value
    if isinstance(value, float):
        return {"float": value.hex()}
    if isinstance(value, (bytes, bytearray)):
        blobs.append(bytes(value))
        return {"bytes": len(blobs) - 1}
    if isinstance(value, DType):
        return {"dtype": value.name}
    if isinstance(value, tuple):
        return [encoded(v, blobs, classes) for v in value]
    if isinstance(value, list):
        return {"list": [encoded(v, blobs, classes) for v in value]}
    if isinstance(value, frozenset):
        return {"set": [encoded(v, blobs, classes) for v in sorted(value)]}
    if isinstance(value, dict):
        return {"dict": [[encoded(k, blobs, classes), encoded(v, blobs, classes)] for k, v in value.items()]}
    name = type(value).__name__
    cls = classes.get(name)
    if cls is None or cls is not type(value):
        raise TypeError(f"a {name} cannot be stored")
    kept = [f.name for f in fields(cls) if f.name not in NOT_STORED]
    return {"class": name, **{field: encoded(getattr(value, field), blobs, classes) for field in kept}}
