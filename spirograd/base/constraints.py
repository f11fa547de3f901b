"""Constraints on the values of a record, written as annotations: ``index: Index``. To type checkers an `Index` is an int. Records that are
read from files are checked against their constraints (`runtime.typed_decoding`)."""

from __future__ import annotations

from typing import Annotated

from spirograd.base.records import dataclass


@dataclass(frozen=True, slots=True)
class Within:
    """Integers from ``low`` to ``high``."""

    low: int
    high: int

    def problem(self, value: int) -> str:
        """What is wrong with ``value``; "" if nothing is."""
        return "" if self.low <= value <= self.high else f"is {_shown(value)}, expected {self.low} to {self.high}"


@dataclass(frozen=True, slots=True)
class OneOf:
    """One of these strings."""

    names: frozenset[str]

    def problem(self, value: str) -> str:
        """What is wrong with ``value``; "" if nothing is."""
        return "" if value in self.names else f"is {_shown(value)}, expected one of {', '.join(sorted(self.names))}"


def one_of(*names: str) -> OneOf:
    return OneOf(frozenset(names))


def _shown(value: object) -> str:
    text = repr(value) if not isinstance(value, int) or abs(value) < 1 << 128 else f"an integer of {value.bit_length()} bits"
    return text if len(text) <= 80 else f"{text[:77]}..."


# The index of an argument, a tree or a loop in a list.
Index = Annotated[int, Within(0, 0x7FFFFFFF)]
Axis = Annotated[int, Within(0, 63)]
# A count, or a size in bytes.
Count = Annotated[int, Within(0, 1 << 64)]
NBytes = Annotated[int, Within(0, 1 << 62)]
Role = Annotated[str, one_of("primal", "grad", "dual", "grad_dual")]
