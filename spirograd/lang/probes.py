"""Probes of kernel coverage: kernels store 1 to elements of hidden fields, which say which of their statements ran."""

from __future__ import annotations

from typing import NamedTuple

from spirograd.base.dtypes import i32
from spirograd.lang.data.scalar_field import ScalarField
from spirograd.lang.data.tree import Tree

_FIELD_SIZE = 4096  # elements of one field; there are as many fields as needed


class Probe(NamedTuple):
    """The statement that begins at a line; with ``skipped`` the path on which the `if` there runs nothing."""

    file: str
    line: int
    skipped: bool = False


class Probes:
    """The probes of all kernels of a session."""

    def __init__(self) -> None:
        self._numbers: dict[Probe, int] = {}
        self._fields: list[ScalarField] = []

    def element(self, probe: Probe) -> tuple[ScalarField, int]:
        """Return the field and the index that the probe stores to."""
        number, index = divmod(self._numbers.setdefault(probe, len(self._numbers)), _FIELD_SIZE)
        if number == len(self._fields):
            field = ScalarField.hidden_field(i32, f"coverage{number}")
            field.hidden = True
            Tree().root.dense(0, _FIELD_SIZE).place(field)
            self._fields.append(field)
        return self._fields[number], index

    def hits(self) -> list[Probe]:
        """Return the probes that have stored. Waits for launches, and raises what they report."""
        contents = [field.to_numpy().tolist() if field.has_memory() else [0] * _FIELD_SIZE for field in self._fields]
        return [probe for probe, number in self._numbers.items() if contents[number // _FIELD_SIZE][number % _FIELD_SIZE]]
