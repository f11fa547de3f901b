"""A SPIR-V module taken apart, so that it can be put together wrongly: see `mutations`."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from spirograd.spirvgen.disasm import instructions
from spirograd.spirvgen.grammar import ENUMERANTS, INSTRUCTIONS, MASKS, OPCODES, PARAMETERS

NAMES = {number: name for name, number in OPCODES.items()}
STORAGE = ENUMERANTS["StorageClass"]
DECORATION = ENUMERANTS["Decoration"]
TERMINATORS = ("Branch", "BranchConditional", "Return", "Unreachable")
_BOUND = 3


@dataclass(slots=True)
class Instruction:
    """``name`` is without Op; ``words`` are the operands, the result among them."""

    name: str
    words: list[int]

    @property
    def kinds(self) -> list[str]:
        """The kind of operand that each word belongs to, as the grammar calls it."""
        found: list[str] = []
        for kind in INSTRUCTIONS[self.name][1].split():
            while len(found) < len(self.words):
                found += self._kinds_at(kind.rstrip("?*"), len(found))
                if not kind.endswith("*"):
                    break
        return found[: len(self.words)]

    def _kinds_at(self, kind: str, at: int) -> list[str]:
        """The kinds of the words of one operand, and of those that its value asks for."""
        if kind == "LiteralContextDependentNumber":
            return [kind] * (len(self.words) - at)
        if kind == "LiteralString":
            data = struct.pack(f"<{len(self.words) - at}I", *self.words[at:])
            return [kind] * (data.find(b"\0") // 4 + 1)
        parameters, value = PARAMETERS.get(kind, {}), self.words[at]
        wanted = [parameters[bit] for bit in parameters if value & bit] if kind in MASKS else [parameters.get(value, "")]
        found = [kind]
        for more in " ".join(wanted).split():
            found += self._kinds_at(more.rstrip("?*"), at + len(found)) if at + len(found) < len(self.words) else []
        return found

    @property
    def result_at(self) -> int:
        """Where among the words the result is; -1 if there is none."""
        places = INSTRUCTIONS[self.name][1].split()[:2]
        return places.index("IdResult") if "IdResult" in places else -1

    @property
    def result(self) -> int:
        """The id that it defines, 0 if none."""
        at = self.result_at
        return self.words[at] if 0 <= at < len(self.words) else 0

    @property
    def type(self) -> int:
        """The id of the type of its result, 0 if it has none."""
        return self.words[0] if INSTRUCTIONS[self.name][1].startswith("IdResultType") else 0


class Site(NamedTuple):
    """Word ``at`` of the instruction at ``place``."""

    place: int
    at: int


@dataclass(slots=True)
class Parts:
    """A module: words of the header, instructions. ``counts``: false word counts, by instruction. ``lost``: bytes cut off at the end."""

    header: list[int]
    code: list[Instruction]
    counts: dict[int, int] = field(default_factory=dict)
    lost: int = 0

    @classmethod
    def of(cls, module: bytes) -> Parts:
        found = [Instruction(NAMES[opcode], list(words)) for opcode, words in instructions(module)]
        return cls(list(struct.unpack_from("<5I", module)), found)

    def to_bytes(self) -> bytes:
        words = list(self.header)
        for k, found in enumerate(self.code):
            count = self.counts.get(k, len(found.words) + 1)
            words += [(count & 0xFFFF) << 16 | OPCODES[found.name], *found.words]
        data = struct.pack(f"<{len(words)}I", *words)
        return data[: len(data) - self.lost]

    # --- ids -------------------------------------------------------------------------------------------------------------

    @property
    def bound(self) -> int:
        return self.header[_BOUND]

    def new_id(self) -> int:
        self.header[_BOUND] += 1
        return self.header[_BOUND] - 1

    def definitions(self) -> dict[int, Instruction]:
        return {found.result: found for found in self.code if found.result}

    def indices(self, *names: str) -> list[int]:
        """Where the instructions with these names are; of all, where no name is given."""
        return [k for k, found in enumerate(self.code) if not names or found.name in names]

    def uses(self) -> Iterator[Site]:
        """Every word that refers to an id: types of results included, results not."""
        for k, found in enumerate(self.code):
            for at, kind in enumerate(found.kinds):
                if kind in ("IdRef", "IdResultType", "IdScope", "IdMemorySemantics", "PairIdRefIdRef"):
                    yield Site(k, at)

    def shape(self, number: int, known: dict[int, Instruction]) -> tuple[object, ...]:
        """What kind of thing an id is; of values the type, integers of both signs alike."""
        found = known.get(number)
        if found is None:
            return ("nothing",)
        if found.name.startswith("Type"):
            return ("type", found.name)
        if not found.type or found.name == "Function":
            return (found.name,)
        return ("value", *self.type_shape(found.type, known))

    def type_shape(self, number: int, known: dict[int, Instruction]) -> tuple[object, ...]:
        """Pointers into all storage classes are alike, too: one may load from any."""
        found = known[number]
        if found.name in ("TypeInt", "TypeFloat"):
            return (found.name, found.words[1])
        if found.name == "TypeVector":
            return (found.name, found.words[2], *self.type_shape(found.words[1], known))
        if found.name == "TypePointer":
            return (found.name, *self.type_shape(found.words[2], known))
        return (found.name,) if found.name in ("TypeBool", "TypeVoid") else (found.name, number)

    def blocks(self) -> list[range]:
        """The indices of the instructions of each block, label and terminator included."""
        starts = self.indices("Label")
        return [range(k, next(n for n in range(k, len(self.code)) if self.code[n].name in TERMINATORS) + 1) for k in starts]
