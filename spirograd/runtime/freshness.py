"""Validity of cached results: whether facts computed for one launch, from its arguments and memory, hold for another one.

Generations of memory decide; memory is not read.
"""

from __future__ import annotations

import ast
import struct
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from spirograd.base.arguments import ALLOCATION_NAMES, Arguments
from spirograd.base.artifact import CompiledKernel, part_name
from spirograd.base.sizes import python_expressions as x
from spirograd.base.sizes.python_expressions import Expression
from spirograd.base.sizes.size_nodes import Arg, Extent, Size, leaves

if TYPE_CHECKING:
    from spirograd.base.protocols import Allocation, Place, Scalar

Key = tuple[object, ...]


class Freshness:
    """The inputs of the results of ``compiled`` and of the values of ``sizes``, whether or not an execution reads them.

    ``sizes`` may contain None, which depends on nothing. Array arguments that ``compiled`` write contain their results, which do not count
    as inputs.
    """

    def __init__(self, compiled: Sequence[CompiledKernel], sizes: Sequence[Size | None]) -> None:
        inputs = _Inputs()
        for kernel in compiled:
            inputs.add_kernel(kernel)
        for size in sizes:
            inputs.add_size(size)
        self._inputs = inputs
        self._key = _build(inputs)

    @property
    def scalars(self) -> set[int]:
        """The numbers of scalar arguments that the results depend on."""
        return {*self._inputs.floats, *self._inputs.scalars}

    def generations(self, arguments: Arguments) -> list[tuple[dict[str, int], str]]:
        """Return the generations that the results depend on, each with its part, for launches with these arrays, where `key` is not
        None."""
        owners = [(getattr(arguments.arrays[k], name), "") for k, role in self._inputs.arrays for name in ALLOCATION_NAMES[role]]
        owners += [(arguments.trees[tree], part) for tree, parts in self._inputs.fields.items() for part in ("", *parts)]
        return [(owner.generations, part) for owner, part in owners]

    def key(self, arguments: Arguments, drawn: int | None = None) -> Key | None:
        """Return a key for these arguments: launches of one `Freshness` with equal keys have equal results.

        Returns None if that is unknown: an input may be written by other code (arrays of NumPy and torch that are used in place, memory
        that was handed out: `Allocation.shared`), or random numbers would be new ones. Take the key before the results are computed, so
        that later writes change the next key. Its length depends on the expressions, not on the data.
        """
        try:
            return self._key(arguments.scalars, arguments.arrays, arguments.trees, drawn)
        except (struct.error, TypeError, OverflowError):  # A scalar that is not a number: the launch raises a better error.
            return None


class _Inputs:
    """The inputs that are read. Dictionaries keep them in order, each once."""

    def __init__(self) -> None:
        self.floats: dict[int, None] = {}  # Numbers of scalar arguments.
        self.scalars: dict[int, None] = {}
        self.extents: dict[tuple[int, int], None] = {}  # Array argument, axis.
        self.fields: dict[int, dict[str, None]] = {}  # Tree -> parts.
        self.arrays: dict[tuple[int, str], None] = {}  # Array argument, role.
        self.draws = False

    def add_kernel(self, kernel: CompiledKernel) -> None:
        written = kernel.effects.all_written()
        results = {index for kind, index, _ in written if kind == "array"}
        for slot in kernel.args.slots:
            if slot.kind == "scalar":
                is_float = slot.dtype is not None and slot.dtype.is_float
                (self.floats if is_float else self.scalars)[slot.index] = None
            elif slot.kind == "shape" and slot.index not in results:  # Their extents are for checks of bounds.
                self.extents[slot.index, slot.axis] = None
            elif slot.kind == "seed":
                self.draws = True
        for kind, index, part in kernel.effects.all_read():
            if kind == "tree":
                self.fields.setdefault(index, {})[part] = None
            elif (kind, index, part) not in written:
                self.arrays[index, part] = None

    def add_size(self, size: Size | None) -> None:
        for leaf in () if size is None else leaves(size):
            if isinstance(leaf, Arg):
                self.scalars[leaf.number] = None
            elif isinstance(leaf, Extent):
                self.extents[leaf.array, leaf.axis] = None
            elif leaf.kind == "tree":
                self.fields.setdefault(leaf.number, {})[part_name(leaf.key, "primal")] = None
            else:
                self.arrays[leaf.number, "primal"] = None

    @property
    def is_vague(self) -> bool:
        """Whether the parts that are read are unknown."""
        return any("" in parts for parts in self.fields.values()) or any(role == "" for _, role in self.arrays)


def _build(inputs: _Inputs) -> Callable[[Sequence[Scalar], Sequence[Place | None], Mapping[int, Allocation], int | None], Key | None]:
    """Return a function (scalars, arrays, trees, drawn) -> key, built as one Python expression like `packing.build_packer`."""
    if inputs.is_vague:
        return lambda s, a, t, drawn: None
    names: dict[str, object] = {"pack": struct.Struct(f"<{len(inputs.floats)}d").pack}
    drawn = x.name("drawn")
    unseen: list[Expression] = [x.compare(drawn, ast.Is(), x.NONE)] if inputs.draws else []
    values: list[Expression] = [drawn] if inputs.draws else []
    if inputs.floats:  # As bytes: 0.0 equals -0.0, and NaN does not equal itself.
        values.append(x.call("pack", *[x.argument(k) for k in inputs.floats]))
    values += [x.argument(k) for k in inputs.scalars if k not in inputs.floats]
    # Arrays whose reads may depend on all extents, because nothing is read outside of the memory.
    wholes = {index for index, _ in inputs.arrays}
    values += [x.extent(k, axis) for k, axis in inputs.extents if k not in wholes]
    values += [x.attribute(x.item(x.name("a"), x.number(k)), "shape") for k in sorted(wholes)]
    for n, (k, role) in enumerate(inputs.arrays):
        (attribute,) = ALLOCATION_NAMES[role]
        memory = x.name(f"m{n}")
        taken = x.assigned(f"m{n}", x.attribute(x.item(x.name("a"), x.number(k)), attribute))
        unseen += [x.compare(taken, ast.Is(), x.NONE), x.attribute(memory, "shared")]
        values += [x.attribute(memory, "number"), x.item(x.attribute(memory, "generations"), x.text(""))]
    for n, (tree, parts) in enumerate(inputs.fields.items()):
        names[f"parts{n}"] = frozenset(("", *parts))
        memory = x.name(f"f{n}")
        shared = x.attribute(x.assigned(f"f{n}", x.item(x.name("t"), x.number(tree))), "shared")
        unseen.append(x.both(shared, x.negated(x.call_method(x.attribute(memory, "shared"), "isdisjoint", x.name(f"parts{n}")))))
        generations = x.assigned(f"g{n}", x.attribute(memory, "generations"))
        values += [x.attribute(memory, "number"), x.item(generations, x.text(""))]
        values += [x.call_method(x.name(f"g{n}"), "get", x.text(part), x.number(0)) for part in parts]
    key = x.sequence(values)
    return x.function(("s", "a", "t", "drawn"), x.choice(x.either(*unseen), x.NONE, key) if unseen else key, names)
