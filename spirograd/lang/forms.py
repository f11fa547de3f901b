"""Names that the front end treats specially. Outside of kernels most of them raise an error."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any, NoReturn

from spirograd.base.errors import SpirogradCallError, SpirogradRuntimeError
from spirograd.lang import plain_python
from spirograd.lang.arithmetic import Binary, as_dtype
from spirograd.lang.indexing import location
from spirograd.lang.matrix import Matrix
from spirograd.lang.scalar import Scalar, Value, describe, is_scalar, type_error


def _only_in_kernels(name: str) -> NoReturn:
    if plain_python.state.running:
        plain_python.refuse(name)
    raise SpirogradRuntimeError(
        f"`{name}` has a meaning only inside kernels and functions: call it in one decorated with `@sg.kernel` or `@sg.func`"
    )


def static(*args: object) -> Any:
    """Evaluate while compiling: ``if static(x):`` compiles one branch, ``for i in static(range(3)):`` unrolls. In Python: the identity."""
    return args[0] if len(args) == 1 else args


def static_assert(condition: object, message: str = "") -> None:
    """Raise SpirogradCompilationError with ``message`` if a condition is false while compiling. In Python: AssertionError."""
    if not condition:
        raise AssertionError(message or "static assertion failed")


def static_print(*args: object, sep: str = " ", end: str = "\n") -> None:
    """Print while compiling; ``sep``, ``end`` and other arguments are as for Python's ``print``."""
    print(*args, sep=sep, end=end)


def loop_config(
    *,
    serialize: bool = False,
    block_dim: int | None = None,
    parallelize: int | None = None,
    name: str | None = None,
    block_dim_adaptive: bool = True,
    bit_vectorize: bool = False,
) -> None:
    """Set options of the loop that follows: ``serialize`` runs it in order, ``block_dim`` is its workgroup size in invocations, ``name``
    names its task in dumps. Three options of the Taichi family that only tune it are accepted, without effect: ``parallelize`` (its
    threads, of which `init(cpu_max_num_threads=...)` sets the number), ``block_dim_adaptive`` and ``bit_vectorize``.
    """
    if not plain_python.state.running:
        _only_in_kernels("loop_config")


# Options of `loop_config` in the family.
LOOP_OPTIONS = ("serialize", "block_dim", "parallelize", "name", "block_dim_adaptive", "bit_vectorize")


def random(dtype: object = float) -> Any:
    """Return a random number: floats uniform in [0, 1), integers over their whole range.

    It is reproducible: it depends on `random_seed`, the number of the launch, the iteration of the parallel loop and the number of the
    draw.
    """
    return plain_python.drawn(as_dtype(dtype)) if plain_python.state.running else _only_in_kernels("random")


def randn(dtype: object = float) -> Any:
    """Return a normally distributed random number, of mean 0 and variance 1."""
    return as_dtype(dtype)(plain_python.generator().gauss(0.0, 1.0)) if plain_python.state.running else _only_in_kernels("randn")


def activate(node: object, index: object) -> None:
    """Activate a cell of a sparse node, and the cells around it. ``index``: in the index space of the node. Only in kernels."""
    _only_in_kernels("activate")


def no_activate(*nodes: object) -> None:
    """Prevent writes of the kernel from activating cells of sparse ``nodes``. Only in kernels, for the whole kernel.

    Writes to inactive cells have no effect, and atomic operations there return 0. `activate` and `append` still activate.
    """
    _only_in_kernels("no_activate")


def deactivate(node: object, index: object) -> None:
    """Deactivate a cell of a `pointer` or `bitmasked` node, or empty a list of a `dynamic` node. Its values are 0 afterwards. Only in
    kernels.

    ``index``: in the index space of the node; for a list, the index of the cell around it.
    """
    _only_in_kernels("deactivate")


def is_active(node: object, index: object) -> Any:
    """Return whether a cell of a node, and the cells around it, are active. ``index``: in the index space of the node. Only in kernels."""
    _only_in_kernels("is_active")


def append(node: object, index: object, value: object) -> Any:
    """Add an entry to a list of a `dynamic` node, and return its number. ``index``: of the cell around the list. ``value``: a struct if the
    node has several fields. ``x[i].append(value)`` is the same for one field. Only in kernels."""
    _only_in_kernels("append")


def length(node: object, index: object) -> Any:
    """Return the number of entries of a list of a `dynamic` node. Only in kernels.

    ``index``: the index of the cell around the list. ``x[i].length()`` is the same.
    """
    _only_in_kernels("length")


def _atomic(kind: str, doc: str) -> Binary:
    def run(x: object, y: object) -> object:
        return plain_python.atomic(kind, x, y) if plain_python.state.running else _only_in_kernels(f"atomic_{kind}")

    run.__name__ = run.__qualname__ = f"atomic_{kind}"
    run.__doc__ = doc
    return run


atomic_add = _atomic(
    "add", "Add y to x, and return the old value. ``x``: an element of memory or a variable. Only in kernels, like all atomic operations."
)
atomic_sub = _atomic("sub", "Subtract y from x, and return the old value.")
atomic_mul = _atomic("mul", "Multiply x by y, and return the old value.")
atomic_min = _atomic("min", "Set x to the smaller of x and y, and return the old value.")
atomic_max = _atomic("max", "Set x to the larger of x and y, and return the old value.")
atomic_and = _atomic("and", "Set x to ``x & y``, and return the old value.")
atomic_or = _atomic("or", "Set x to ``x | y``, and return the old value.")
atomic_xor = _atomic("xor", "Set x to ``x ^ y``, and return the old value.")
atomic_exchange = _atomic("exchange", "Set x to y, and return the old value.")


def atomic_cas(x: object, expected: object, desired: object) -> Any:
    """Set x to ``desired`` if x equals ``expected`` bit by bit, and return the old value."""
    return plain_python.compare_and_swap(x, expected, desired) if plain_python.state.running else _only_in_kernels("atomic_cas")


def volatile_load(target: object) -> Any:
    """Return ``target``, an element of a field or array, as it is in memory now, for loops that wait until another thread has written
    it."""
    return target if plain_python.state.running else _only_in_kernels("volatile_load")


def get_addr(memory: object, index: object) -> Any:
    """Return the address of an element of a field or an array, in the memory of the device, as u64; for a vector, of its first component.

    ``memory``: the field or array, or the node of a field, ``x.snode``. ``index``: an integer, or one for each axis. Only in kernels.
    Raises SpirogradUnsupportedError on wgpu, which has no addresses.
    """
    _only_in_kernels("get_addr")


def environment() -> int:
    """Return the number of the environment, from 0, in a kernel that uses fields of a batch."""
    _only_in_kernels("sg.batch.index")


ATOMICS: dict[object, str] = {
    atomic_add: "add",
    atomic_sub: "sub",
    atomic_mul: "mul",
    atomic_min: "min",
    atomic_max: "max",
    atomic_and: "and",
    atomic_or: "or",
    atomic_xor: "xor",
    atomic_exchange: "exchange",
}


class ndrange:
    """The index space of nested loops: each argument an extent, or a pair (begin, end). Iterates row-major in Python scope.

    ``axes``: the order of the loops, outermost first, as numbers of arguments; by default 0, 1, 2, ...
    """

    __sg_traceable__ = True

    def __init__(self, *ranges: object, axes: tuple[int, ...] | None = None) -> None:
        if not ranges:
            raise type_error("ndrange needs at least one extent", "as in `sg.ndrange(8, (1, 4))`")
        self.bounds: list[tuple[Scalar, Scalar]] = []
        for r in ranges:
            pair = (
                (0, r) if is_scalar(r) else tuple(r.entries if isinstance(r, Matrix) else r) if isinstance(r, (tuple, list, Matrix)) else ()
            )
            if len(pair) != 2 or not all(is_scalar(x) for x in pair):
                raise type_error(f"ndrange takes extents and pairs (begin, end), not {describe(r)}")
            self.bounds.append((pair[0], pair[1]))
        self.axes = tuple(axes) if axes is not None else tuple(range(len(ranges)))
        if sorted(self.axes) != list(range(len(ranges))):
            raise SpirogradCallError(f"axes of ndrange must be a permutation of 0 to {len(ranges) - 1}, got {self.axes}", location())

    def __iter__(self) -> Iterator[Any]:
        if any(isinstance(x, Value) for pair in self.bounds for x in pair):
            raise type_error("the bounds of a static ndrange must be known while compiling", "omit `sg.static` to loop at run time")
        order = [range(int(self.bounds[axis][0]), int(self.bounds[axis][1])) for axis in self.axes]
        for position in itertools.product(*order):
            out = [0] * len(position)
            for axis, value in zip(self.axes, position):
                out[axis] = value
            yield out[0] if plain_python.state.running and len(out) == 1 else tuple(out)

    @property
    def shape(self) -> tuple[Any, ...]:
        """Extents of the axes."""
        return tuple(end - begin for begin, end in self.bounds)


class grouped:
    """Loop over the indices of a field, an array or an `ndrange` as vectors."""

    __sg_traceable__ = True

    def __init__(self, space: object) -> None:
        self.space = space

    def __iter__(self) -> Iterator[Any]:
        if isinstance(self.space, ndrange):
            return (Matrix([position] if isinstance(position, int) else list(position)) for position in self.space)
        shape = getattr(self.space, "shape", None)
        if shape is None:
            raise type_error(f"grouped takes a field, an array or an ndrange, not {describe(self.space)}")
        origin = getattr(self.space, "origin", None) or [0] * len(shape)
        return (Matrix(list(position)) for position in itertools.product(*[range(low, low + n) for n, low in zip(shape, origin)]))
