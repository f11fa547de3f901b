"""The linker of code objects: from the object file that LLVM emits for AMD's GPUs to the shared object that the runtime loads.

There is one object file, which refers to nothing outside of itself. Linking therefore lays out its sections in segments, lists its symbols
where loaders look for them, and resolves the few relocations. The formats are those of the ELF specification, and of "User Guide for AMDGPU
Backend" in LLVM's documentation.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from itertools import count
from typing import NamedTuple

from spirograd.base.errors import SpirogradRuntimeError
from spirograd.base.records import dataclass

_HEADER = struct.Struct("<16sHHIQQQIHHHHHH")
_SECTION = struct.Struct("<IIQQQQIIQQ")
_SEGMENT = struct.Struct("<IIQQQQQQ")
_SYMBOL = struct.Struct("<IBBHQQ")
_RELOCATION = struct.Struct("<QQq")
_DYNAMIC = struct.Struct("<QQ")

_AMDGPU, _SHARED_OBJECT = 224, 3  # e_machine, e_type
_PROGBITS, _SYMTAB, _STRTAB, _RELA, _HASH, _DYNAMIC_TYPE, _NOTE, _NOBITS, _DYNSYM = 1, 2, 3, 4, 5, 6, 7, 8, 11  # sh_type
_WRITE, _ALLOC, _EXECUTE, _KEPT_FLAGS = 1, 2, 4, 7  # sh_flags
_LOAD, _DYNAMIC_SEGMENT, _NOTE_SEGMENT, _TABLE = 1, 2, 4, 6  # p_type
_READABLE, _WRITABLE, _EXECUTABLE = 4, 2, 1  # p_flags
_DT_HASH, _DT_STRTAB, _DT_SYMTAB, _DT_STRSZ, _DT_SYMENT = 4, 5, 6, 10, 11
_PAGE = 4096

# The value that a relocation writes, as a function of the addresses of the symbol and of the relocation, by type.
_RELOCATIONS: dict[int, tuple[str, Callable[[int, int], int]]] = {
    4: ("<I", lambda target, place: (target - place) & 0xFFFFFFFF),  # REL32
    5: ("<Q", lambda target, place: (target - place) & (1 << 64) - 1),  # REL64
    10: ("<I", lambda target, place: (target - place) & 0xFFFFFFFF),  # REL32_LO
    11: ("<I", lambda target, place: (target - place) >> 32 & 0xFFFFFFFF),  # REL32_HI
}


class Symbol(NamedTuple):
    """A symbol. ``section``: the number of its section in the object file; ``value``: its offset there."""

    name: str
    info: int
    other: int
    section: int
    value: int
    size: int

    @property
    def exported(self) -> bool:
        """Return whether loaders find the symbol: global or weak, and of default or protected visibility."""
        return bool(self.name) and self.info >> 4 in (1, 2) and self.other & 3 in (0, 3)


@dataclass(slots=True, eq=False)
class Section:
    """A section. ``number``: its number in the object file, or 0 if the linker creates it. ``address`` and ``offset`` are known after its
    placement."""

    name: str
    kind: int
    flags: int
    data: bytearray
    align: int = 8
    number: int = 0
    link: int = 0
    info: int = 0
    entry_size: int = 0
    address: int = 0
    offset: int = 0


@dataclass(slots=True)
class ObjectFile:
    """The contents of an ELF file, relocatable or linked. ``sections`` are in the order of their numbers."""

    sections: list[Section]
    symbols: list[Symbol]
    flags: int
    identification: bytes

    @classmethod
    def read(cls, content: bytes, table: int = _SYMTAB) -> ObjectFile:
        """Parse an ELF file. ``table``: the table of the symbols."""
        header = _HEADER.unpack_from(content)
        identification, machine, start, flags, count, names = header[0], header[2], header[6], header[7], header[12], header[13]
        if identification[:4] != b"\x7fELF" or machine != _AMDGPU:
            raise SpirogradRuntimeError("this is no object file for AMD's GPUs")
        rows = [_SECTION.unpack_from(content, start + _SECTION.size * k) for k in range(count)]
        sections = []
        for number, (name, kind, section_flags, address, offset, size, link, info, align, entry_size) in enumerate(rows):
            data = bytearray(size) if kind == _NOBITS else bytearray(content[offset : offset + size])
            label = _text(content, rows[names][4] + name)
            sections.append(Section(label, kind, section_flags, data, max(align, 1), number, link, info, entry_size, address, offset))
        symbols: list[Symbol] = []
        for section in sections:
            if section.kind == table:
                strings = sections[section.link].data
                for name, *rest in _SYMBOL.iter_unpack(section.data):
                    symbols.append(Symbol(_text(strings, name), *rest))
        return cls(sections, symbols, flags, identification)


def link_code_object(content: bytes) -> bytes:
    """Return the shared object for an object file.

    Raises SpirogradRuntimeError for features that the object file of a complete kernel does not have: symbols that are defined elsewhere,
    and relocations other than relative ones.
    """
    source = ObjectFile.read(content)
    missing = [symbol.name for symbol in source.symbols if symbol.name and not symbol.section]
    if missing:
        raise SpirogradRuntimeError(f"cannot link generated code: {', '.join(missing)} must be defined")
    exported = [symbol for symbol in source.symbols if symbol.exported]
    segments = _segments(source, exported)
    _place(segments)
    sections = [section for segment in segments for section in segment]
    _list_symbols(sections, exported)
    _relocate(source)
    return _file(source, segments, sections)


def _segments(source: ObjectFile, exported: Sequence[Symbol]) -> list[list[Section]]:
    """Return the sections of the three segments: read only, code, and writable."""
    loaded = [section for section in source.sections if section.flags & _ALLOC and section.data]
    notes = [section for section in loaded if section.kind == _NOTE]
    code = [section for section in loaded if section.flags & _EXECUTE]
    writable = [section for section in loaded if section.flags & _WRITE]
    constant = [section for section in loaded if section not in (*notes, *code, *writable)]
    strings = bytearray(b"\0" + b"".join([symbol.name.encode() + b"\0" for symbol in exported]))
    symbols = Section(".dynsym", _DYNSYM, _ALLOC, bytearray(_SYMBOL.size * (1 + len(exported))), info=1, entry_size=_SYMBOL.size)
    symbols.link = len(notes) + 3  # .dynstr
    hashes = Section(".hash", _HASH, _ALLOC, _hash_table([symbol.name for symbol in exported]), 4, link=len(notes) + 1, entry_size=4)
    names = Section(".dynstr", _STRTAB, _ALLOC, strings, 1)
    dynamic = Section(".dynamic", _DYNAMIC_TYPE, _ALLOC | _WRITE, bytearray(6 * _DYNAMIC.size), link=len(notes) + 3, entry_size=16)
    return [[*notes, symbols, hashes, names, *constant], code, [dynamic, *writable]]


def _hash_table(names: Sequence[str]) -> bytearray:
    """Return the hash table from symbol names to their numbers, from 1: one chain for each bucket."""
    buckets, chains = [0] * max(len(names), 1), [0] * (len(names) + 1)
    for number, name in enumerate(names, 1):
        bucket = _hash(name) % len(buckets)
        buckets[bucket], chains[number] = number, buckets[bucket]
    words = (len(buckets), len(chains), *buckets, *chains)
    return bytearray(struct.pack(f"<{len(words)}I", *words))


def _hash(name: str) -> int:
    """Return the hash of a name by the function of the ELF specification."""
    value = 0
    for byte in name.encode():
        value = (value << 4) + byte
        high = value & 0xF0000000
        value = (value ^ high >> 24) & ~high
    return value


def _place(segments: Sequence[Sequence[Section]]) -> None:
    """Place sections. Offsets follow one another; addresses are a page further for each segment, so that no page has two kinds of
    access."""
    offset = _HEADER.size + _SEGMENT.size * (len(segments) + 3)
    for number, segment in enumerate(segments):
        for section in segment:
            section.align = max(section.align, 256 if section.flags & _EXECUTE else 4)
            offset = _aligned(offset, section.align)
            section.offset, section.address = offset, offset + _PAGE * number
            offset += len(section.data)


def _list_symbols(sections: Sequence[Section], exported: Sequence[Symbol]) -> None:
    """Fill the tables that loaders read: the symbols, and the locations of the tables."""
    table = {section.name: section for section in sections if not section.number}
    places = {section.number: (k, section.address) for k, section in enumerate(sections, 1) if section.number}
    name = 1
    for number, symbol in enumerate(exported, 1):
        section, address = places[symbol.section]
        value = address + symbol.value
        _SYMBOL.pack_into(table[".dynsym"].data, _SYMBOL.size * number, name, symbol.info, symbol.other, section, value, symbol.size)
        name += len(symbol.name.encode()) + 1
    entries = (
        (_DT_SYMTAB, table[".dynsym"].address),
        (_DT_SYMENT, _SYMBOL.size),
        (_DT_STRTAB, table[".dynstr"].address),
        (_DT_STRSZ, len(table[".dynstr"].data)),
        (_DT_HASH, table[".hash"].address),
        (0, 0),
    )
    table[".dynamic"].data[:] = b"".join([_DYNAMIC.pack(*entry) for entry in entries])


def _relocate(source: ObjectFile) -> None:
    for relocations in source.sections:
        if relocations.kind != _RELA or not source.sections[relocations.info].flags & _ALLOC:
            continue
        target = source.sections[relocations.info]
        for offset, info, addend in _RELOCATION.iter_unpack(relocations.data):
            if info & 0xFFFFFFFF not in _RELOCATIONS:
                raise SpirogradRuntimeError(f"cannot link generated code: there is no relocation of type {info & 0xFFFFFFFF}")
            form, value = _RELOCATIONS[info & 0xFFFFFFFF]
            symbol = source.symbols[info >> 32]
            address = source.sections[symbol.section].address + symbol.value + addend
            struct.pack_into(form, target.data, offset, value(address, target.address + offset))


def _file(source: ObjectFile, segments: Sequence[Sequence[Section]], sections: Sequence[Section]) -> bytes:
    """Return the file: headers, sections, and the table of sections at the end."""
    names = bytearray(b"\0")
    rows = [_SECTION.pack(0, 0, 0, 0, 0, 0, 0, 0, 0, 0)]
    for s in sections:
        kind = _PROGBITS if s.kind == _NOBITS else s.kind
        flags, size = s.flags & _KEPT_FLAGS, len(s.data)
        rows.append(_SECTION.pack(len(names), kind, flags, s.address, s.offset, size, s.link, s.info, s.align, s.entry_size))
        names += s.name.encode() + b"\0"
    end = sections[-1].offset + len(sections[-1].data)
    rows.append(_SECTION.pack(len(names), _STRTAB, 0, 0, end, len(names) + len(b".shstrtab\0"), 0, 0, 1, 0))
    names += b".shstrtab\0"
    table = _aligned(end + len(names), 8)
    headers = _segment_headers(segments)
    image = bytearray(table) + b"".join(rows)
    numbers = (_HEADER.size, _SEGMENT.size, len(headers), _SECTION.size, len(rows), len(rows) - 1)
    _HEADER.pack_into(image, 0, source.identification, _SHARED_OBJECT, _AMDGPU, 1, 0, _HEADER.size, table, source.flags, *numbers)
    image[_HEADER.size : _HEADER.size + _SEGMENT.size * len(headers)] = b"".join(headers)
    for section in sections:
        image[section.offset : section.offset + len(section.data)] = section.data
    image[end : end + len(names)] = names
    return bytes(image)


def _segment_headers(segments: Sequence[Sequence[Section]]) -> list[bytes]:
    """Return the headers of the mapped segments, and of the dynamic table and the note, for loaders."""
    mapped = [row for row in zip(count(), segments, (0, _EXECUTABLE, _WRITABLE)) if row[1]]  # A kernel without tasks has no code.
    nbytes = _SEGMENT.size * (len(mapped) + 3)
    headers = [_SEGMENT.pack(_TABLE, _READABLE, _HEADER.size, _HEADER.size, _HEADER.size, nbytes, nbytes, 8)]
    for number, segment, access in mapped:
        start, last = segment[0].offset if number else 0, segment[-1]
        size = last.offset + len(last.data) - start
        address = start + _PAGE * number
        headers.append(_SEGMENT.pack(_LOAD, _READABLE | access, start, address, address, size, size, _PAGE))
    dynamic, note = segments[-1][0], segments[0][0]
    for kind, access, section in ((_DYNAMIC_SEGMENT, _READABLE | _WRITABLE, dynamic), (_NOTE_SEGMENT, _READABLE, note)):
        size = len(section.data)
        headers.append(_SEGMENT.pack(kind, access, section.offset, section.address, section.address, size, size, section.align))
    return headers


def _aligned(offset: int, align: int) -> int:
    return -(-offset // align) * align


def _text(strings: bytes | bytearray, start: int) -> str:
    return bytes(strings[start : strings.index(0, start)]).decode()
