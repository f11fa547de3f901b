"""A disassembler: SPIR-V words to text like that of spirv-dis, with the Python line beside the first instruction that comes from it."""

from __future__ import annotations

import linecache
import re
import struct
from collections.abc import Iterator
from itertools import takewhile

from spirograd.spirvgen.grammar import ENUMERANTS, GLSL, INSTRUCTIONS, MAGIC, MASKS, PARAMETERS

_BY_NUMBER = {row[0]: (name, tuple(row[1].split())) for name, row in INSTRUCTIONS.items()}
_ENUM_NAMES = {kind: {value: name for name, value in members.items()} for kind, members in ENUMERANTS.items()}
_CAPABILITY = INSTRUCTIONS["Capability"][0]
_GLSL_NAMES = {number: name for name, number in GLSL.items()}
_FLOATS = {16: ("<H", "<e"), 32: ("<I", "<f"), 64: ("<Q", "<d")}
_INT_NAMES = {8: ("uchar", "char"), 16: ("ushort", "short"), 32: ("uint", "int"), 64: ("ulong", "long")}
_FLOAT_NAMES = {16: "half", 32: "float", 64: "double"}
_INDENT = 15
_COMMENT_COLUMN = 88


class DisassemblyError(ValueError):
    """The bytes are not a SPIR-V module."""


def instructions(module: bytes) -> Iterator[tuple[int, tuple[int, ...]]]:
    """Iterate over (opcode, operand words) of each instruction. Raises DisassemblyError if the bytes are not a module."""
    if len(module) % 4 or len(module) < 20 or struct.unpack_from("<I", module)[0] != MAGIC:
        raise DisassemblyError("not a SPIR-V module (little endian)")
    words = struct.unpack(f"<{len(module) // 4}I", module)
    at = 5
    while at < len(words):
        count, opcode = words[at] >> 16, words[at] & 0xFFFF
        if count == 0 or at + count > len(words):
            raise DisassemblyError(f"bad instruction length at word {at}")
        yield opcode, words[at + 1 : at + count]
        at += count


def opcode_names(module: bytes) -> list[str]:
    """Return the names of all instructions in order, as spirv-dis spells them."""
    return ["Op" + _BY_NUMBER[opcode][0] for opcode, _ in instructions(module)]


def capabilities(module: bytes) -> list[str]:
    """Return the names of the capabilities that a module declares."""
    declared = takewhile(lambda instruction: instruction[0] == _CAPABILITY, instructions(module))  # they come first
    return [_ENUM_NAMES["Capability"].get(words[0], str(words[0])) for _, words in declared]


def disassemble(module: bytes) -> str:
    """Return the text of a module, one instruction per line; OpLine becomes a comment. Raises DisassemblyError if the bytes are no
    module."""
    return "\n".join([text for text, _ in disassembled_lines(module)]) + "\n"


def disassembled_lines(module: bytes) -> list[tuple[str, tuple[str, int] | None]]:
    """Return the lines of `disassemble`, each with the (file, line) that OpLine says it comes from."""
    version, _, bound = struct.unpack_from("<3I", module, 4) if len(module) >= 20 else (0, 0, 0)
    printer = _Printer()
    head = ("; SPIR-V", f"; Version: {version >> 16}.{version >> 8 & 255}", f"; Bound: {bound}")
    lines: list[tuple[str, tuple[str, int] | None]] = [(text, None) for text in head]
    for opcode, operands in instructions(module):
        printer.learn(opcode, operands)
    for opcode, operands in instructions(module):
        text = printer.instruction(opcode, operands)
        if text is not None:
            lines.append((text, printer.source))
    return lines


def _text(words: tuple[int, ...]) -> tuple[str, int]:
    """Return a string literal and the number of words that it takes."""
    data = struct.pack(f"<{len(words)}I", *words)
    end = data.find(b"\0")
    return data[:end].decode(errors="replace"), end // 4 + 1


class _Printer:
    """A printer of instructions, which needs the names, types and strings of all of them first."""

    def __init__(self) -> None:
        self._names: dict[int, str] = {}
        self._taken: set[str] = set()
        self._strings: dict[int, str] = {}
        self._types: dict[int, tuple[str, int, int]] = {}  # id -> ("int" | "float", bits, signed)
        self.source: tuple[str, int] | None = None
        self._noted: tuple[str, int] | None = None

    def name(self, number: int) -> str:
        return "%" + self._names.get(number, str(number))

    def _call(self, number: int, wish: str) -> None:
        """Return a unique name for an id, without characters that names cannot have."""
        if number in self._names:
            return
        base = re.sub(r"\W", "_", wish) or "_"
        base = "_" + base if base[0].isdigit() else base
        name, k = base, 0
        while name in self._taken:
            name, k = f"{base}_{k}", k + 1
        self._taken.add(name)
        self._names[number] = name

    def instruction(self, opcode: int, words: tuple[int, ...]) -> str | None:
        if opcode not in _BY_NUMBER:
            return f"{' ' * _INDENT}; unknown instruction {opcode}"
        name, kinds = _BY_NUMBER[opcode]
        if name == "Line":
            self.source = (self._strings.get(words[0], "?"), words[1])
            return None
        if name in ("NoLine", "Label", "FunctionEnd"):
            self.source = None
        result = ""
        parts: list[str] = []
        embedded = 0
        for kind, piece in self._operands(kinds, words):
            if kind == "IdResult":
                result = piece
            elif kind == "LiteralString" and name in ("Source", "SourceContinued"):
                embedded = piece.count("\n")
            else:
                parts.append(piece)
        left = f"{result} = " if result else ""
        line = f"{left:>{_INDENT}}Op{name} {' '.join(parts)}".rstrip()
        return f"{line}  ; and its text, {embedded} lines" if embedded else line + self._comment(line)

    def _comment(self, line: str) -> str:
        if self.source is None or self.source == self._noted:
            return ""
        self._noted = self.source
        file, number = self.source
        source = linecache.getline(file, number).strip()
        return f"{' ' * max(1, _COMMENT_COLUMN - len(line))}; {file}:{number}" + (f"  {source}" if source else "")

    # --- operands --------------------------------------------------------------------------------------------------------

    def _operands(self, kinds: tuple[str, ...], words: tuple[int, ...]) -> Iterator[tuple[str, str]]:
        """Iterate over (kind, text) of each operand."""
        at = 0
        for kind in kinds:
            bare = kind.rstrip("?*")
            while at < len(words):
                for piece, count in self._operand(bare, words, at):
                    yield bare, piece
                    at += count
                if not kind.endswith("*"):
                    break

    def _operand(self, kind: str, words: tuple[int, ...], at: int) -> list[tuple[str, int]]:
        """Iterate over the text of one operand, in pieces with the number of words of each."""
        word = words[at]
        if kind.startswith("Id"):
            return [(self.name(word), 1)]
        if kind == "LiteralString":
            text, count = _text(words[at:])
            return [('"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"', count)]
        if kind == "LiteralContextDependentNumber":
            return [(self._number(words[0], words[at:]), len(words) - at)]
        if kind == "LiteralExtInstInteger":
            return [(_GLSL_NAMES.get(word, str(word)), 1)]
        if kind in _ENUM_NAMES:
            return self._enumerant(kind, words, at)
        if kind.startswith("Pair"):
            first, second = re.findall(r"IdRef|LiteralInteger", kind)
            return self._operand(first, words, at) + (self._operand(second, words, at + 1) if at + 1 < len(words) else [])
        return [(str(word), 1)]

    def _enumerant(self, kind: str, words: tuple[int, ...], at: int) -> list[tuple[str, int]]:
        """Iterate over the text of an enumerant or mask and of the operands that follow it."""
        value, names, parameters = words[at], _ENUM_NAMES[kind], PARAMETERS.get(kind, {})
        if kind in MASKS:
            bits = [b for b in names if b and value & b]
            pieces = [("|".join(names[b] for b in bits) or names.get(0, "None"), 1)]
            follow = " ".join(parameters[b] for b in bits if b in parameters)
        else:
            pieces = [(names.get(value, str(value)), 1)]
            follow = parameters.get(value, "")
        at += 1
        for parameter in follow.split():
            while at < len(words):
                more = self._operand(parameter.rstrip("?*"), words, at)
                pieces += more
                at += sum(count for _, count in more)
                if not parameter.endswith("*"):
                    break
        return pieces

    def _number(self, type_id: int, words: tuple[int, ...]) -> str:
        kind, bits, sign = self._types.get(type_id, ("int", 32 * len(words), 0))
        value = sum(w << 32 * k for k, w in enumerate(words))
        if kind == "float":
            unpack, form = _FLOATS[bits]
            return f"{struct.unpack(form, struct.pack(unpack, value & (1 << bits) - 1))[0]:.9g}"
        value &= (1 << bits) - 1
        return str(value - (1 << bits) if sign and value >> bits - 1 else value)

    # --- names -----------------------------------------------------------------------------------------------------------

    def learn(self, opcode: int, words: tuple[int, ...]) -> None:
        """Record the strings, types and names that other instructions refer to."""
        name = _BY_NUMBER[opcode][0] if opcode in _BY_NUMBER else ""
        if name == "String":
            self._strings[words[0]] = _text(words[1:])[0]
        elif name == "Name":
            self._call(words[0], _text(words[1:])[0])
        elif name == "Constant":
            text = self._number(words[0], words[2:])
            self._call(words[1], f"{self._names.get(words[0], words[0])}_{text.replace('-', 'n').replace('+', '')}")
        elif name in ("ConstantTrue", "ConstantFalse"):
            self._call(words[1], name.removeprefix("Constant").lower())
        elif name.startswith("Type"):
            self._learn_type(name, words)

    def _learn_type(self, name: str, words: tuple[int, ...]) -> None:
        rid = words[0]
        refer = self.name
        if name == "TypeInt":
            self._types[rid] = ("int", words[1], words[2])
            self._call(rid, _INT_NAMES[words[1]][words[2]])
        elif name == "TypeFloat":
            self._types[rid] = ("float", words[1], 1)
            self._call(rid, _FLOAT_NAMES.get(words[1], f"float{words[1]}"))
        elif name in ("TypeVoid", "TypeBool"):
            self._call(rid, name.removeprefix("Type").lower())
        elif name == "TypeVector":
            self._call(rid, f"v{words[2]}{refer(words[1])[1:]}")
        elif name == "TypeArray":
            self._call(rid, f"_arr_{refer(words[1])[1:]}_{refer(words[2])[1:]}")
        elif name == "TypeRuntimeArray":
            self._call(rid, f"_runtimearr_{refer(words[1])[1:]}")
        elif name == "TypePointer":
            self._call(rid, f"_ptr_{_ENUM_NAMES['StorageClass'].get(words[1], words[1])}_{refer(words[2])[1:]}")
