"""The ways in which `mutations` breaks modules."""

from __future__ import annotations

from validation import mutation_meaning, mutation_structure
from validation.mutation_kind import Kind

KINDS: list[Kind] = [*mutation_structure.KINDS, *mutation_meaning.KINDS]
