"""Saved states of a program: each process writes its block of each field to a NumPy file, and any number of processes can read them.

A state is a folder with ``state.json``, which describes it, and a folder ``<number>`` with the files. A new state is written beside the
last one; then ``state.json`` is replaced atomically, and only then is the last state removed. A program or machine that stops at any time
therefore leaves a complete state.
"""

from __future__ import annotations

import contextlib
import errno
import functools
import itertools
import json
import os
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TypedDict, TypeGuard

import numpy as np

from spirograd.ad.memory_keys import FieldOrArray
from spirograd.base.errors import (
    SpirogradDamagedError,
    SpirogradError,
    SpirogradRuntimeError,
    SpirogradTypeError,
    SpirogradValueError,
    render,
)
from spirograd.distributed import memory_numbers, world
from spirograd.distributed.partition import Partition
from spirograd.distributed.regions import Region
from spirograd.lang.data.ndarray import Ndarray
from spirograd.lang.data.numpy_transfer import Array
from spirograd.lang.data.scalar_field import ScalarField
from spirograd.runtime.typed_decoding import Damage, loads

_FORMAT = 1


class Kind(TypedDict):
    """The types of a memory's elements."""

    dtype: str
    element_shape: list[int]


class State(TypedDict):
    """The contents of ``state.json``."""

    format: int
    number: int
    shape: Sequence[int]
    halo: Sequence[int]
    periodic: Sequence[bool]
    blocks: Sequence[Region]
    memories: dict[str, Kind]
    replicated: dict[str, Kind]
    values: dict[str, object]


# Errors of file systems that cannot flush folders, and of folders that this user may write to and not read.
_CANNOT_FLUSH = (errno.EINVAL, errno.ENOTSUP, errno.EOPNOTSUPP, errno.EACCES)


def save(
    folder: str | os.PathLike[str],
    partition: Partition,
    memories: Mapping[str, FieldOrArray],
    replicated: Mapping[str, FieldOrArray] | None = None,
    values: Mapping[str, object] | None = None,
) -> None:
    """Write a state to ``folder``, which all processes share, and replace the one that is there.

    ``memories``: fields and ndarrays of ``partition``, by name, of which each process writes its block. ``replicated``: fields and ndarrays
    of which all processes have copies; process 0 writes them. ``values``: JSON values, such as the number of the step, which are the same
    on all processes. Gradients are not saved. Raises SpirogradRuntimeError on all processes, and keeps the last state, if one cannot write;
    SpirogradValueError if they pass different folders or memory.
    """
    path = Path(folder)
    mine = world.together("`save`", lambda: _next_number(path, memories, replicated or {}, partition))
    _compare("`save`", path, partition, memories, replicated or {}, None)
    number = max(world.gathered("`save`", mine))  # a network file system may show the previous state to some
    target = path / str(number)
    world.together("`save`", lambda: _write_blocks(target, partition, memories))
    manifest: State = {
        "format": _FORMAT,
        "number": number,
        "shape": partition.shape,
        "halo": partition.halo,
        "periodic": partition.periodic,
        "blocks": [_stored(partition, rank) for rank in range(world.size())],
        "memories": {name: _kind(memory) for name, memory in memories.items()},
        "replicated": {name: _kind(memory) for name, memory in (replicated or {}).items()},
        "values": dict(values or {}),
    }
    world.together("`save`", lambda: _commit(path, target, manifest, replicated or {}) if world.rank() == 0 else None)


def load(
    folder: str | os.PathLike[str],
    partition: Partition,
    memories: Mapping[str, FieldOrArray],
    replicated: Mapping[str, FieldOrArray] | None = None,
) -> dict[str, object]:
    """Read the state that `save` wrote to ``folder``, on any number of processes: set ``memories`` and ``replicated``, which have the names
    that they had there, and return ``values``.

    Halos inside of the domain are those of the owners, halos outside of it as they were saved. Raises SpirogradRuntimeError on all
    processes if there is no state, SpirogradValueError if a name is missing there, or if a domain, a type or a halo at an end of the
    domain is another one, or if processes pass other folders or other memory.
    """
    path = Path(folder)
    manifest = world.together("`load`", lambda: _read(path, partition, memories, replicated or {}))
    _compare("`load`", path, partition, memories, replicated or {}, manifest["number"])
    for name, memory in memories.items():
        memory.from_numpy(world.together("`load`", functools.partial(_gathered, path, manifest, partition, name, memory)))
    for name, memory in (replicated or {}).items():
        memory.from_numpy(world.together("`load`", functools.partial(_loaded, path / str(manifest["number"]) / f"{name}.npy", memory)))
    return manifest["values"]


def _compare(
    what: str,
    path: Path,
    partition: Partition,
    memories: Mapping[str, FieldOrArray],
    replicated: Mapping[str, FieldOrArray],
    number: int | None,
) -> None:
    """Raise on all processes if they call with different folders, memory or states."""
    named = [
        (f"{group}.{name}", memory)
        for group, group_memories in (("memories", memories), ("replicated", replicated))
        for name, memory in group_memories.items()
    ]
    named.sort(key=lambda one: one[0])

    def described() -> str:
        kinds = ", ".join(
            f"{name}: {_kind(memory)['dtype']}{_kind(memory)['element_shape'] or ''}, {memory_numbers.described(memory)}"
            for name, memory in named
        )
        return f"{path}{'' if number is None else f', number {number}'}, with {kinds or 'no memory'}, of {partition._described()}"

    world.alike(what, described, f"the state of {what}")
    memory_numbers.used(*(memory for _, memory in named))


# --- writing -------------------------------------------------------------------------------------------------------------------


def _next_number(path: Path, memories: Mapping[str, FieldOrArray], replicated: Mapping[str, FieldOrArray], partition: Partition) -> int:
    """Check the arguments, and return the number of the new state."""
    for name in (*memories, *replicated):
        if not isinstance(name, str) or not name.isidentifier():
            raise SpirogradValueError(f"a name in a saved state is one of a Python variable, not {name!r}")
    if set(memories) & set(replicated):
        raise SpirogradValueError(f"`{min(set(memories) & set(replicated))}` is both in `memories` and in `replicated`")
    for memory in memories.values():
        partition.check(memory)
    for memory in replicated.values():
        _kind(memory)
    manifest = path / "state.json"
    if not manifest.exists():
        return 0
    return _manifest(path)["number"] + 1


def _kind(memory: object) -> Kind:
    if not isinstance(memory, (ScalarField, Ndarray)):
        raise SpirogradTypeError(f"a saved state has fields and ndarrays, not {type(memory).__name__}")
    return {"dtype": str(memory.dtype), "element_shape": list(memory.element_shape)}


def _stored(partition: Partition, rank: int) -> Region:
    """Return the region that a process writes: its block, and the halo next to it outside of the domain."""
    outer = [0 if around else h for h, around in zip(partition.halo, partition.periodic)]
    return Region(
        (first - h * (first == 0), end + h * (end == n)) for (first, end), h, n in zip(partition.block_of(rank), outer, partition.shape)
    )


def _write_blocks(target: Path, partition: Partition, memories: Mapping[str, FieldOrArray]) -> None:
    region = _stored(partition, world.rank())
    with _disk():
        new = [folder for folder in (target, *target.parents) if not folder.exists()]
        target.mkdir(parents=True, exist_ok=True)
        for name, memory in memories.items():
            _write(_block_file(target, name, world.rank()), memory.to_numpy()[region.slices_from(partition.origin)])
        for folder in (target, *(folder.parent for folder in new)):
            _flush(folder)


def _block_file(target: Path, name: str, rank: int) -> Path:
    return target / f"{name}-{rank}.npy"


def _commit(path: Path, target: Path, manifest: State, replicated: Mapping[str, FieldOrArray]) -> None:
    with _disk():
        for name, memory in replicated.items():
            _write(target / f"{name}.npy", memory.to_numpy())
        for name, rank in itertools.product(manifest["memories"], range(world.size())):
            if not _block_file(target, name, rank).exists():
                problem = f"process {rank} wrote `{name}` to another place than {target}"
                raise SpirogradRuntimeError(render(problem, None, "a state is saved to a folder that all processes share"))
        for folder in (target, path):
            _flush(folder)
        draft = path / "state.json.new"
        with draft.open("w") as file:
            json.dump(manifest, file, indent=1)
            file.flush()
            os.fsync(file.fileno())
        draft.replace(path / "state.json")
        _flush(path)
        for old in path.iterdir():
            if old.is_dir() and old.name.isdecimal() and old.name != target.name:
                shutil.rmtree(old)


def _write(path: Path, array: Array) -> None:
    """Write a file and flush it to the disk, so that a power failure leaves a complete state."""
    with path.open("wb") as file:
        np.save(file, array)
        file.flush()
        os.fsync(file.fileno())


def _flush(folder: Path) -> None:
    """Flush the names in a folder to the disk, if the file system supports it."""
    if os.name != "posix":
        return
    try:
        opened = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(opened)
        finally:
            os.close(opened)
    except OSError as error:
        if error.errno not in _CANNOT_FLUSH:
            raise


@contextlib.contextmanager
def _disk() -> Iterator[None]:
    """Convert errors of the file system, and of values that are not JSON, to errors of spirograd."""
    try:
        yield
    except SpirogradError:
        raise
    except (OSError, TypeError, ValueError) as error:
        raise SpirogradRuntimeError(f"a state cannot be written or read: {error}") from None


# --- reading -------------------------------------------------------------------------------------------------------------------


def _read(path: Path, partition: Partition, memories: Mapping[str, FieldOrArray], replicated: Mapping[str, FieldOrArray]) -> State:
    """Check ``state.json``, and return its contents."""
    with _disk():
        if not (path / "state.json").exists():
            raise SpirogradRuntimeError(render(f"there is no saved state in {path}", None, "`sg.distributed.save` writes one"))
    state = _manifest(path)
    outer = [0 if around else h for h, around in zip(partition.halo, partition.periodic)]
    theirs = [0 if around else h for h, around in zip(state["halo"], state["periodic"])]
    for what, mine, saved in (
        ("domain has the shape", list(partition.shape), state["shape"]),
        ("domain has `periodic`", list(partition.periodic), state["periodic"]),
        ("halo at the ends of the domain is", outer, theirs),
    ):
        if mine != saved:
            raise SpirogradValueError(f"the {what} {saved} in the state in {path}, and {mine} in this partition")
    for kind, saved_kinds, wanted in (("memories", state["memories"], memories), ("replicated", state["replicated"], replicated)):
        for name, memory in wanted.items():
            if name not in saved_kinds:
                raise SpirogradValueError(
                    f"the state in {path} has no `{name}` among its {kind}; it has {', '.join(saved_kinds) or 'none'}"
                )
            if saved_kinds[name] != _kind(memory):
                raise SpirogradValueError(f"`{name}` in the state in {path} is {saved_kinds[name]}, and here {_kind(memory)}")
    for memory in memories.values():
        partition.check(memory)
    return state


def _manifest(path: Path) -> State:
    """Return the contents of ``state.json``. Raises SpirogradDamagedError unless all values have the types and lengths that `save`
    writes."""
    file = path / "state.json"
    with _disk():
        data = file.read_bytes()
    try:
        state: State = loads(data, nan=True)  # `values` may have some
        if not isinstance(state, dict) or type(state.get("format")) is not int:
            raise Damage("is missing", "format")
        if state["format"] != _FORMAT:
            raise SpirogradRuntimeError(f"the state in {path} has format {state['format']}, and this version reads {_FORMAT}")
        for name, is_right in _FIELDS.items():
            if not is_right(state.get(name)):
                raise Damage("is missing, or not what `save` writes", name)
        axes = len(state["shape"])
        axed = {"halo": state["halo"], "periodic": state["periodic"]} | {f"blocks[{k}]": block for k, block in enumerate(state["blocks"])}
        for name, value in axed.items():
            if len(value) != axes:
                raise Damage(f"has {len(value)} axes, and the domain {axes}", name)
    except Damage as damage:
        raise SpirogradDamagedError(str(file), damage.problem, damage.field) from None
    return state


def _is_number(value: object) -> TypeGuard[int]:
    return isinstance(value, int) and not isinstance(value, bool) and -_LARGEST <= value <= _LARGEST


def _list_of(is_right: Callable[[object], bool]) -> Callable[[object], bool]:
    return lambda value: isinstance(value, list) and all(is_right(one) for one in value)


def _is_range(value: object) -> bool:
    return isinstance(value, list) and _list_of(_is_number)(value) and len(value) == 2 and value[0] <= value[1]


def _are_memories(value: object) -> bool:
    """Return whether a value maps names to types and shapes of elements."""
    return isinstance(value, dict) and all(
        name.isidentifier()
        and isinstance(kind, dict)
        and kind.keys() == {"dtype", "element_shape"}
        and isinstance(kind["dtype"], str)
        and _list_of(_is_number)(kind["element_shape"])
        for name, kind in value.items()
    )


_LARGEST = 1 << 62
_FIELDS: dict[str, Callable[[object], bool]] = {
    "number": lambda value: _is_number(value) and value >= 0,
    "shape": _list_of(_is_number),
    "halo": _list_of(_is_number),
    "periodic": _list_of(lambda value: isinstance(value, bool)),
    "blocks": _list_of(_list_of(_is_range)),
    "memories": _are_memories,
    "replicated": _are_memories,
    "values": lambda value: isinstance(value, dict),
}


def _loaded(path: Path, memory: FieldOrArray) -> Array:
    return _array(path, memory.to_numpy())


def _array(path: Path, like: Array, shape: tuple[int, ...] | None = None) -> Array:
    """Return the array in a file, of the type of ``like`` and of its shape or ``shape``. It is memory-mapped, so a header cannot make it
    allocate more memory than the file has; arrays of objects, which Python would unpickle, are rejected."""
    wanted = like.shape if shape is None else shape
    try:
        contents = np.lib.format.open_memmap(path, mode="r")
    except (ValueError, EOFError, TypeError, OverflowError) as error:
        raise SpirogradDamagedError(str(path), f"it is no array: {error}") from None
    except OSError as error:
        raise SpirogradRuntimeError(f"a state cannot be written or read: {error}") from None
    if contents.dtype != like.dtype or contents.shape != wanted:
        raise SpirogradDamagedError(str(path), f"it is {contents.dtype} of shape {contents.shape}, expected {like.dtype} of shape {wanted}")
    return contents


def _gathered(path: Path, manifest: State, partition: Partition, name: str, memory: FieldOrArray) -> Array:
    """Return the contents of a memory on this process, including its halo, from the files that contain them. In a periodic domain, the halo
    at one end has the cells of the other."""
    local = memory.to_numpy()
    wanted = Region((first, first + n) for first, n in zip(partition.origin, partition.local_shape))
    shifts = [(-n, 0, n) if around else (0,) for n, around in zip(partition.shape, partition.periodic)]
    with _disk():
        for number, bounds in enumerate(manifest["blocks"]):
            for shift in itertools.product(*shifts):
                stored = Region((first + s, end + s) for (first, end), s in zip(bounds, shift))
                common = wanted.intersection(stored)
                if common.size:
                    shape = (*(end - first for first, end in bounds), *local.shape[len(partition.shape) :])
                    block = _array(_block_file(path / str(manifest["number"]), name, number), local, shape)
                    local[common.slices_from(partition.origin)] = block[common.slices_from([first for first, _ in stored])]
    return local
