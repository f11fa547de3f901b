"""The report of a tape on the memory that it saved: copies and bytes, by field or array."""

from __future__ import annotations

from spirograd.base.records import dataclass
from spirograd.base.wording import counted


@dataclass(frozen=True)
class MemoryReport:
    """What a tape saved: by name of field or array, the number of copies and their bytes. Printable."""

    launches: int
    items: dict[str, tuple[int, int]]

    @property
    def total(self) -> int:
        """Bytes of all copies."""
        return sum(nbytes for _, nbytes in self.items.values())

    @property
    def nbytes(self) -> dict[str, int]:
        """Bytes by name."""
        return {name: nbytes for name, (_, nbytes) in self.items.items()}

    def __str__(self) -> str:
        lines = [f"tape of {counted(self.launches, 'launch', 'launches')}: {counted(self.total, 'byte')} saved"]
        width = max((len(name) for name in self.items), default=0)
        for name, (copies, nbytes) in sorted(self.items.items(), key=lambda item: (-item[1][1], item[0])):
            lines.append(f"  {name:<{width}}  {nbytes:>12,} bytes in {counted(copies, 'copy', 'copies')}")
        return "\n".join(lines)
