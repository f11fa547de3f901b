"""The type of the several values that a kernel or a function returns: ``-> (sg.i32, sg.f32)``, ``-> tuple[sg.i32, sg.f32]``."""

from __future__ import annotations

import typing
from collections.abc import Sequence
from typing import TYPE_CHECKING, NoReturn

from spirograd.base.dtypes import DType
from spirograd.base.wording import counted
from spirograd.lang import scalar
from spirograd.lang.leaves import AggregateType, ValueType, as_type, build, host_types, leaf_dtypes, numbers_of
from spirograd.lang.scalar import Scalar

if TYPE_CHECKING:
    from spirograd.lang.data.enums import Layout


class TupleType(AggregateType):
    """The type of tuples with members of these types. It is for results alone: no variable, field or argument has it."""

    __slots__ = ("members",)

    def __init__(self, members: Sequence[ValueType]) -> None:
        self.members = tuple(members)

    def __repr__(self) -> str:
        return f"({', '.join(map(repr, self.members))})"

    def leaf_dtypes(self) -> tuple[DType, ...]:
        return tuple([t for member in self.members for t in leaf_dtypes(member)])

    def host_types(self) -> tuple[type | None, ...]:
        return tuple([kind for member in self.members for kind in host_types(member)])

    def build(self, leaves: Sequence[Scalar]) -> tuple[object, ...]:
        out, at = [], 0
        for member in self.members:
            count = len(leaf_dtypes(member))
            out.append(build(member, leaves[at : at + count]))
            at += count
        return tuple(out)

    def numbers_of(self, value: object) -> list[Scalar]:
        if not isinstance(value, (tuple, list)) or len(value) != len(self.members):
            expected = f"expected {counted(len(self.members), 'value')}, as the annotation {self!r} says"
            raise scalar.type_error(f"{expected}, got {scalar.describe(value)}")
        return [number for member, part in zip(self.members, value) for number in numbers_of(member, part)]

    def converted(self, value: object) -> tuple[object, ...]:
        self.numbers_of(value)  # checks the structure
        assert isinstance(value, (tuple, list))
        return tuple([m.converted(part) if isinstance(m, AggregateType) else m(part) for m, part in zip(self.members, value)])

    def unplaced_field(self, name: str, needs_grad: bool, needs_dual: bool, layout: Layout) -> NoReturn:
        raise scalar.type_error("a field has no tuples as elements", "use a struct: `sg.types.struct(n=sg.i32, x=sg.f32)`")


def result_type(annotation: object) -> object:
    """Return the type of a result from its annotation: of several types the type of a tuple, of a tuple of one type that type; others
    unchanged."""
    if typing.get_origin(annotation) is tuple:
        annotation = typing.get_args(annotation)
    if not isinstance(annotation, (tuple, list)) or not annotation:
        return annotation
    members = [as_type(member) for member in annotation]
    return members[0] if len(members) == 1 else TupleType(members)
