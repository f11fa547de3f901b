"""What a way of breaking a module is: see `mutation_kinds`."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from random import Random

from spirograd.spirvgen.grammar import ENUMERANTS
from validation.mutation_parts import Instruction, Parts, Site

Mutate = Callable[[Parts, Random], str]
BOTH = ("vulkan", "wgpu")


@dataclass(frozen=True, slots=True)
class Kind:
    """``mutate`` changes one thing at random and says what, or says "" where it cannot. ``targets``: where the result is wrong. What naga
    gets wrong may be right elsewhere."""

    name: str
    mutate: Mutate
    targets: tuple[str, ...] = BOTH


def noting(kinds: list[Kind]) -> Callable[..., Callable[[Mutate], Mutate]]:
    """A decorator ``kind(name, *targets)`` for functions that are kinds; they go to ``kinds``."""

    def kind(name: str, *targets: str) -> Callable[[Mutate], Mutate]:
        def decorate(mutate: Mutate) -> Mutate:
            kinds.append(Kind(name, mutate, targets or BOTH))
            return mutate

        return decorate

    return kind


def pick(random: Random, of: Iterable[int]) -> int:
    """One of them, -1 if there is none."""
    found = sorted(of)
    return random.choice(found) if found else -1


def pick_site(random: Random, of: Iterable[Site]) -> Site | None:
    """One of them, None if there is none."""
    found = list(of)
    return random.choice(found) if found else None


def describe(found: Instruction) -> str:
    """Enough to recognise an instruction by."""
    tables = {"Capability": "Capability", "Decorate": "Decoration", "MemberDecorate": "Decoration", "ExecutionMode": "ExecutionMode"}
    table = tables.get(found.name)
    if table is None:
        return f"Op{found.name}"
    value = found.words[{"Capability": 0, "MemberDecorate": 2}.get(found.name, 1)]
    return f"Op{found.name} " + next(name for name, number in ENUMERANTS[table].items() if number == value)
