"""The steps of a launch: the sources of its flat arguments among the arguments of a call, and the checks.

The parameters of a kernel list them once for each specialization. Three interpreters run the list: `packing_function` makes a Python
function of it, `record` has compiled code do the same without Python, and `objects_of` collects the arrays themselves, for tapes.
"""

from __future__ import annotations

import ast
import functools
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from spirograd.base.arguments import Arguments
from spirograd.base.dtypes import DType
from spirograd.base.records import dataclass
from spirograd.base.sizes import python_expressions as x
from spirograd.base.sizes.python_expressions import Expression
from spirograd.base.validity import NotPrepared, StepRecorder
from spirograd.lang.annotations import NdarrayType
from spirograd.lang.data.ndarray import BufferView, Ndarray, array_of
from spirograd.lang.frontend.array_proxy import is_wide
from spirograd.lang.frontend.fingerprints import BY_VALUE, compared_by_identity
from spirograd.lang.frontend.frozen_instances import Facts
from spirograd.lang.frontend.guards import Path, unchanged

if TYPE_CHECKING:
    from spirograd.base.protocols import Allocation, HostTransfers, Place, Scalar
    from spirograd.lang.session_protocol import Session

# Scalars and bindings of flat arguments; each flat argument has one of them.
Flat = tuple[tuple["Scalar", ...], tuple["Place | None", ...]]
# (arguments of a call, session, packer) -> flat arguments
Pack = Callable[[Sequence[object], "Session", "Packer"], Flat]


@dataclass(frozen=True, slots=True, eq=False)
class External:
    """A parameter that takes arrays of other libraries, with elements of ``type``. ``label``: the name of the parameter in errors."""

    type: NdarrayType
    label: str


class ForeignArray(Protocol):
    """An array of another library: of NumPy, of torch, or one in memory of a GPU."""

    @property
    def shape(self) -> tuple[int, ...]: ...

    @property
    def dtype(self) -> object: ...


class Packer(Arguments):
    """The arguments of a launch while they are packed.

    ``transfers``: the transfers of NumPy arrays and torch tensors, None if there are none. ``gradients``: whether the launch works on their
    gradients.
    """

    __slots__ = ("gradients", "session", "transfers")
    session: Session
    transfers: HostTransfers | None
    gradients: bool

    @staticmethod
    def on_trees(session: Session, trees: Mapping[int, Allocation], gradients: bool = False) -> Packer:
        """Return a packer without flat arguments."""
        packer = Packer()
        packer.scalars, packer.arrays, packer.trees = (), (), trees
        packer.session, packer.transfers, packer.gradients = session, None, gradients
        return packer

    def put_scalar(self, value: Scalar) -> None:
        """Append a number."""
        self.scalars = (*self.scalars, value)
        self.arrays = (*self.arrays, None)

    def bind(self, array: Ndarray | ForeignArray, number: int, external: External | None) -> Place:
        """Return the place of flat argument ``number``: an ndarray, or an ``external`` array."""
        if isinstance(array, Ndarray):
            return self.session.bind(array_of(array))
        assert external is not None
        if external.type.needs_grad is False and hasattr(array, "detach"):
            array = array.detach()
        if self.transfers is None:
            self.transfers = self.session.transfers(self.gradients)
        return self.transfers.bind(array, external.type.element_shape_of(array.shape), number, external.label)


class Step:
    """A step of a launch, for the value at ``path``. ``size``: the number of its flat arguments."""

    size = 1

    def __init__(self, path: Path) -> None:
        self.path = path

    @functools.cached_property
    def value(self) -> Callable[[Sequence[object]], object]:
        """A function from arguments to the value. Made when it is asked for: launches do without, and a kernel may have hundreds."""
        return self.path.getter()

    def place(self, names: dict[str, object]) -> Expression:
        """Return the value, as an expression over the arguments ``args`` of a call and ``names``."""
        value = x.item(x.name("args"), x.number(self.path.argument))
        for name in self.path.names:
            value = x.attribute(value, name) if isinstance(name, str) else x.item(value, x.number(name))
        return value

    def flat(self, number: int, names: dict[str, object]) -> tuple[list[Expression], list[Expression]]:
        """Return scalars and places, as expressions over ``args``, ``session``, the packer ``into``, and ``names``. ``number``: the number
        of the first flat argument."""
        raise NotImplementedError

    def objects(self, args: Sequence[object]) -> list[object]:
        """Return the array of each flat argument; None for a number."""
        return [None] * self.size

    def externals(self) -> list[External | None]:
        """Return the arrays of other libraries that each flat argument takes; None if it takes none."""
        return [None] * self.size

    def is_steady(self, args: Sequence[object]) -> bool:
        """Return whether keys and flat arguments of the value stay the same within an epoch, see `validity`."""
        return False

    def record(self, args: Sequence[object], into: StepRecorder) -> None:
        """Record how compiled code checks and packs values like this one. Raises NotPrepared if only Python can do that."""
        raise NotPrepared


class Number(Step):
    """A scalar argument of type ``t``. Numbers of the ``plain`` type that ``t`` can represent are packed as they are, others are
    converted."""

    def __init__(self, path: Path, t: DType, plain: type, convert: Callable[[object], Scalar]) -> None:
        super().__init__(path)
        self._type, self._plain, self._convert = t, plain, convert

    def flat(self, number: int, names: dict[str, object]) -> tuple[list[Expression], list[Expression]]:
        t, v = self._type, x.name(f"v{number}")
        plain, convert = f"plain{number}", f"convert{number}"
        names |= {plain: self._plain, convert: self._convert, "type": type}
        fits = [x.compare(x.call("type", x.assigned(f"v{number}", self.place(names))), ast.Is(), x.name(plain))]
        if not t.is_float:
            fits += [x.compare(x.number(int(t.min)), ast.LtE(), v), x.compare(v, ast.LtE(), x.number(int(t.max)))]
        return [x.choice(x.both(*fits), v, x.call(convert, v))], [x.NONE]

    def is_steady(self, args: Sequence[object]) -> bool:
        return type(self.value(args)) in (int, float, bool)

    def record(self, args: Sequence[object], into: StepRecorder) -> None:
        follow(self.path, args, into)
        into.scalar(self._type, self.value(args))


class Numbers(Step):
    """A vector, matrix or struct, whose numbers are ``numbers``."""

    def __init__(self, path: Path, size: int, numbers: Callable[[object], list[Scalar]]) -> None:
        super().__init__(path)
        self.size = size
        self._numbers = numbers

    def flat(self, number: int, names: dict[str, object]) -> tuple[list[Expression], list[Expression]]:
        names[f"numbers{number}"] = self._numbers
        return [x.starred(x.call(f"numbers{number}", self.place(names)))], [x.NONE] * self.size


class Array(Step):
    """An ndarray, or an ``external`` array. A view gives its array, and the numbers that describe the part."""

    def __init__(self, path: Path, value: object, external: External | None = None) -> None:
        super().__init__(path)
        self._external = external
        self.size = 1 + (len(value._sg_numbers) if isinstance(value, BufferView) else 0)

    def flat(self, number: int, names: dict[str, object]) -> tuple[list[Expression], list[Expression]]:
        v, external, others = x.name(f"v{number}"), f"external{number}", self.size - 1
        names |= {external: self._external, "getattr": getattr}
        its_session = x.call("getattr", x.assigned(f"v{number}", self.place(names)), x.text("_session"), x.NONE)
        bound = x.compare(x.assigned(f"b{number}", x.attribute(v, "_sg_binding")), ast.IsNot(), x.NONE)
        is_ready = x.both(x.compare(its_session, ast.Is(), x.name("session")), bound)
        otherwise = x.call_method(x.name("into"), "bind", v, x.number(number), x.name(external))
        numbers = [x.starred(x.attribute(self.place(names), "_sg_numbers"))] if others else []
        return [x.number(0), *numbers], [x.choice(is_ready, x.name(f"b{number}"), otherwise), *([x.NONE] * others)]

    def objects(self, args: Sequence[object]) -> list[object]:
        value = self.value(args)
        return [array_of(value) if isinstance(value, Ndarray) else value] + [None] * (self.size - 1)

    def externals(self) -> list[External | None]:
        return [self._external] + [None] * (self.size - 1)

    def is_steady(self, args: Sequence[object]) -> bool:
        return isinstance(self.value(args), Ndarray)

    def record(self, args: Sequence[object], into: StepRecorder) -> None:
        value, external = self.value(args), self._external
        if isinstance(value, Ndarray) and not isinstance(value, BufferView):
            follow(self.path, args, into)
            into.array(value)
            return
        of_scalars = external is not None and not external.type.element_shape
        if not isinstance(value, np.ndarray) or type(value) is not np.ndarray or not of_scalars:
            raise NotPrepared
        if not value.size or is_wide(value.shape, ()):
            raise NotPrepared
        follow(self.path, args, into)
        into.host_array(value)


class Captured(Array):
    """An ndarray that the kernel refers to by name."""

    def __init__(self, array: Ndarray) -> None:
        super().__init__(Path(0), array)
        self._array = array

    @functools.cached_property
    def value(self) -> Callable[[Sequence[object]], object]:
        array = self._array
        return lambda args: array

    def place(self, names: dict[str, object]) -> Expression:
        name = f"captured{id(self)}"
        names[name] = self._array
        return x.name(name)

    def record(self, args: Sequence[object], into: StepRecorder) -> None:
        into.unchanged(self.size)


class Constant(Step):
    """A value that is fixed while compiling. It has no flat argument."""

    size = 0

    def flat(self, number: int, names: dict[str, object]) -> tuple[list[Expression], list[Expression]]:
        return [], []

    def is_steady(self, args: Sequence[object]) -> bool:
        value = self.value(args)
        kind: type = type(value)
        return isinstance(value, BY_VALUE) or compared_by_identity(kind)

    def record(self, args: Sequence[object], into: StepRecorder) -> None:
        record_constant(follow(self.path, args, into), into)


class Frozen(Step):
    """An instance of a frozen dataclass, whose flat arguments are computed once.

    ``facts``: looks up the facts about it, see `frozen_instances`. ``steps``: the steps of its members.
    """

    def __init__(self, path: Path, facts: Callable[[object], Facts | None], steps: Sequence[Step]) -> None:
        super().__init__(path)
        self._facts = facts
        self._steps = steps
        self.size = sum(step.size for step in steps)

    def flat(self, number: int, names: dict[str, object]) -> tuple[list[Expression], list[Expression]]:
        pack = functools.cache(lambda: packing_function(self._steps, number))  # other kernels may have packed the instance before
        members = f"members{number}"

        def known_or_packed(value: object, session: Session, into: Packer) -> Flat:
            facts = self._facts(value)
            if facts is None:
                return pack()((value,), session, into)
            if facts.flat is None:
                facts.flat = pack()((value,), session, into)
            return facts.flat

        names[members] = known_or_packed
        taken = x.assigned(f"flat{number}", x.call(members, self.place(names), x.name("session"), x.name("into")))
        return [x.starred(x.item(taken, x.number(0)))], [x.starred(x.item(x.name(f"flat{number}"), x.number(1)))]

    def objects(self, args: Sequence[object]) -> list[object]:
        value = self.value(args)
        facts = self._facts(value)
        if facts is None:
            return objects_of(self._steps, (value,))
        if facts.objects is None:
            facts.objects = objects_of(self._steps, (value,))
        return facts.objects

    def externals(self) -> list[External | None]:
        return [external for step in self._steps for external in step.externals()]

    def is_steady(self, args: Sequence[object]) -> bool:
        value = self.value(args)
        return all(step.is_steady((value,)) for step in self._steps)

    def record(self, args: Sequence[object], into: StepRecorder) -> None:
        facts = self._facts(self.value(args))
        if facts is None or facts.flat is None:
            raise NotPrepared
        into.same(follow(self.path, args, into), mortal=True)
        into.unchanged(self.size)


def packing_function(steps: Sequence[Step], first: int = 0) -> Pack:
    """Return a function that computes the flat arguments of ``steps``, numbered from ``first`` on.

    It is one Python expression: a call runs a single frame without loops.
    """
    names: dict[str, object] = {}
    scalars, arrays = list[Expression](), list[Expression]()
    for step in steps:
        flat = step.flat(first, names)
        scalars += flat[0]
        arrays += flat[1]
        first += step.size
    return x.function(("args", "session", "into"), x.sequence([x.sequence(scalars), x.sequence(arrays)]), names)


def objects_of(steps: Sequence[Step], args: Sequence[object]) -> list[Any]:
    """Return the array of each flat argument, as an object; None for numbers."""
    return [value for step in steps for value in step.objects(args)]


def follow(path: Path, args: Sequence[object], into: StepRecorder) -> object:
    """Record that compiled code reads the value at the end of ``path``, and return the present value."""
    into.argument(path.argument)
    for name in path.names:
        into.member(name) if isinstance(name, str) else into.entry(name)
    return path.getter()(args)


def record_constant(value: object, into: StepRecorder) -> None:
    """Record a check that the current object means the same to a kernel as ``value``: see `fingerprint`. See `Step.record`."""
    kind: type = type(value)
    if compared_by_identity(kind):
        into.same(value, mortal=True)
    elif kind in (int, str, bytes):
        into.equal(value)
    elif isinstance(value, BY_VALUE):
        into.same(value)
    else:
        into.ask(unchanged(value))
