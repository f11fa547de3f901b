"""Addresses of the functions of an ELF object file after linking."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from struct import iter_unpack, unpack_from

from spirograd.base.records import dataclass

_SYMBOL_TABLE, _FUNCTION, _GLOBAL = 2, 2, 1


@dataclass(frozen=True)
class CodeRange:
    """A function at addresses ``begin`` up to ``end``."""

    name: str
    begin: int
    end: int


@dataclass(frozen=True)
class _Symbol:
    name: str
    section: int
    offset: int
    size: int
    is_global: bool


def _functions(data: bytes) -> Iterator[_Symbol]:
    """Yield the functions that a 64-bit little-endian ELF file defines; none if ``data`` is something else."""
    if data[:6] != b"\x7fELF\x02\x01":
        return
    (table,) = unpack_from("<Q", data, 0x28)
    size, count = unpack_from("<HH", data, 0x3A)
    # Type, offset, size and link of each section.
    sections = [unpack_from("<4xI16xQQI", data, table + k * size) for k in range(count)]
    for kind, offset, nbytes, link in sections:
        if kind != _SYMBOL_TABLE:
            continue
        names = sections[link][1]
        for name, info, section, value, length in iter_unpack("<IBxHQQ", data[offset : offset + nbytes]):
            if info & 0xF == _FUNCTION and section:
                start = names + name
                text = data[start : data.index(0, start)].decode()
                yield _Symbol(text, section, value, length, info >> 4 == _GLOBAL)


def exported_functions(data: bytes) -> list[str]:
    """Return the functions of an object file that others can refer to."""
    return [symbol.name for symbol in _functions(data) if symbol.is_global]


def code_ranges(data: bytes, addresses: Mapping[str, int]) -> list[CodeRange]:
    """Return the functions of an object file. ``addresses`` has some of them: the others in the same sections follow."""
    functions = list(_functions(data))
    starts = {s.section: addresses[s.name] - s.offset for s in functions if s.is_global and s.name in addresses}
    return [
        CodeRange(s.name, starts[s.section] + s.offset, starts[s.section] + s.offset + s.size) for s in functions if s.section in starts
    ]
