"""The memory of a differentiable program: trees of fields and ndarrays, and the memory that a run uses and writes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

from spirograd.ad.entries import Launch, footprint_of
from spirograd.ad.memory_keys import FieldOrArray, Generation, Key, ProgramRecorder, Returned
from spirograd.ad.versions import Saved, Stored, memory_generation, memory_identity
from spirograd.base.errors import SpirogradRuntimeError, SpirogradTypeError, render
from spirograd.base.recorder import Clear
from spirograd.base.records import dataclass
from spirograd.ir import ops
from spirograd.lang import context
from spirograd.lang.data import shadows
from spirograd.lang.data.field import StructField
from spirograd.lang.data.ndarray import Ndarray
from spirograd.lang.data.scalar_field import ScalarField
from spirograd.lang.frontend.kernel import Kernel
from spirograd.lang.frontend.specialization import Specialization
from spirograd.lang.frontend.steps import Packer
from spirograd.lang.scalar import describe


class Tree:
    """Fields and ndarrays in lists, tuples and dicts; a field of structs is a dict of its members. ``leaves``: in the order of the
    containers; ``what``: the tree in messages.

    Raises SpirogradTypeError for other values, and for memory that occurs twice.
    """

    def __init__(self, what: str, tree: object) -> None:
        self.what, self._tree = what, _with_members(tree)
        self.leaves: list[FieldOrArray] = []
        for path, leaf in leaves_of(self._tree, ""):
            if not isinstance(leaf, (ScalarField, Ndarray)):
                problem = f"`{what}{path}` is {describe(leaf)}, which is no field and no ndarray"
                raise SpirogradTypeError(problem, None, "name what `sg.field` and `sg.ndarray` return")
            if any(memory_identity(leaf)[0] == memory_identity(other)[0] for other in self.leaves):
                raise SpirogradTypeError(f"`{what}` has {describe(leaf)} twice (`{what}{path}`)")
            self.leaves.append(leaf)

    def check_gradients(self) -> None:
        """Raise SpirogradRuntimeError for memory without a gradient."""
        for leaf in self.leaves:
            if not leaf.has_grad():
                hint = "declare it with `needs_grad=True`" if leaf.dtype.is_float else "only floats have gradients: name it in `state`"
                raise SpirogradRuntimeError(render(f"`{self.what}`: {describe(leaf)} has no gradient", None, hint))

    def values(self, given: object) -> list[object]:
        """Return the leaves of ``given``, a tree of the same form. Raises SpirogradTypeError if it has another form."""
        found: list[object] = []

        def walk(tree: object, value: object, path: str) -> None:
            if isinstance(tree, Mapping):
                if not isinstance(value, Mapping) or value.keys() != tree.keys():
                    raise SpirogradTypeError(f"`{self.what}{path}` takes a dict with the keys {list(tree)}, got {_form(value)}")
                for name in tree:
                    walk(tree[name], value[name], f"{path}[{name!r}]")
            elif isinstance(tree, (list, tuple)):
                if not isinstance(value, (list, tuple)) or len(value) != len(tree):
                    raise SpirogradTypeError(f"`{self.what}{path}` takes {len(tree)} values, got {_form(value)}")
                for k, (one, other) in enumerate(zip(tree, value)):
                    walk(one, other, f"{path}[{k}]")
            else:
                found.append(value)

        walk(self._tree, given, "")
        return found

    def like(self, values: Sequence[object]) -> object:
        """Return ``values``, one for each leaf, as a tree of this form."""
        return tree_like(self._tree, values)


def _with_members(tree: object) -> object:
    """Return ``tree`` with a dict of its members for each field of structs."""
    if isinstance(tree, StructField):
        return {name: _with_members(member) for name, member in tree.members.items()}
    if isinstance(tree, Mapping):
        return {name: _with_members(one) for name, one in tree.items()}
    if isinstance(tree, (list, tuple)):
        return type(tree)([_with_members(one) for one in tree])
    return tree


def leaves_of(tree: object, path: str) -> Iterator[tuple[str, object]]:
    """Yield what is in lists, tuples and dicts, in order, each with its path."""
    if isinstance(tree, Mapping):
        for name, one in tree.items():
            yield from leaves_of(one, f"{path}[{name!r}]")
    elif isinstance(tree, (list, tuple)):
        for k, one in enumerate(tree):
            yield from leaves_of(one, f"{path}[{k}]")
    else:
        yield path, tree


def tree_like(tree: object, leaves: Iterable[object]) -> object:
    """Return ``leaves`` in lists, tuples and dicts like those of ``tree``."""
    remaining = iter(leaves)

    def build(part: object) -> object:
        if isinstance(part, Mapping):
            return {name: build(one) for name, one in part.items()}
        if isinstance(part, (list, tuple)):
            return type(part)([build(one) for one in part])
        return next(remaining)

    return build(tree)


def _form(value: object) -> str:
    if isinstance(value, Mapping):
        return f"one with the keys {list(value)}"
    return f"{len(value)}" if isinstance(value, (list, tuple)) else describe(value)


@dataclass(slots=True, eq=False)
class Used:
    """A field or ndarray that a run used. ``name``: in messages; ``written``: whether the run wrote to it; ``before``: what it held before,
    None if it is not kept; ``generation``: when it was last written to."""

    name: str
    storage: FieldOrArray
    written: bool = False
    before: Saved | None = None
    generation: Generation = (0, 0, 0)


class RandomRepeater(ProgramRecorder):
    """Has launches draw the random numbers of the launches of another run, which have the numbers ``given``. ``numbers``: of this run.
    See `Recorder`."""

    def __init__(self, given: Sequence[int | None] = ()) -> None:
        self.numbers: list[int | None] = []
        self._given = iter(given)

    def launch(self, kernel: Kernel, specialization: Specialization, packer: Packer, args: Sequence[object]) -> Returned:
        return self._run(Launch(context.session(), kernel, specialization, packer, args))

    def _run(self, launch: Launch) -> Returned:
        launch.number = next(self._given, None)
        returned = launch.run()
        self.numbers.append(launch.number)
        return returned


class MemoryRecorder(RandomRepeater):
    """Does the same, notes the memory that launches use and the host writes, and keeps what it held. ``draws``: whether any launch drew
    random numbers."""

    def __init__(self, given: Sequence[int | None] = ()) -> None:
        super().__init__(given)
        self.used: dict[Key, Used] = {}
        self.draws = False

    def launch(self, kernel: Kernel, specialization: Specialization, packer: Packer, args: Sequence[object]) -> Returned:
        launch = Launch(context.session(), kernel, specialization, packer, args)
        footprint = footprint_of(specialization)
        for accesses, written in ((footprint.used, False), (footprint.written, True)):
            for access in accesses:
                key, storage = launch.memory(access)
                if storage is not None:
                    self._note(key, access.name, storage, written)
        self.draws = self.draws or any(op.code is ops.seed for op in specialization.kernel.walk())
        return self._run(launch)

    def host_write(
        self, memory: FieldOrArray, key: object, clear: Clear, source: FieldOrArray | None, repeat: Callable[[], None] | None
    ) -> None:
        if not shadows.is_shadow(memory):
            identity, storage = memory_identity(memory)
            self._note(identity, getattr(memory, "name", "an ndarray"), storage, True)

    def _note(self, key: Key, name: str, storage: FieldOrArray, written: bool) -> None:
        used = self.used.setdefault(key, Used(name, storage))
        if written and not used.written:
            used.written = True
            used.before = Saved(Stored(name, storage), None)


def generations(used: Mapping[Key, Used]) -> None:
    """Note when memory was last written to."""
    for one in used.values():
        one.generation = memory_generation(one.storage)


def is_changed(used: Used) -> bool:
    """Return whether memory was written to since `generations`."""
    return used.generation != memory_generation(used.storage)
