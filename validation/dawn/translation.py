"""Modules in the forms that Dawn takes: SPIR-V 1.3, and WGSL."""

from __future__ import annotations

import re
import subprocess

import numpy as np

from spirograd.base.errors import SpirogradRuntimeError
from validation.tools import naga_program

_HEADER_WORDS, _VERSION, _VERSION_1_3 = 5, 1, 0x10300
_NAME, _ENTRY_POINT, _VARIABLE, _MEMBER_DECORATE = 5, 15, 59, 72  # opcodes
_OFFSET = 35  # a decoration
_BLOCK = "Arguments"  # what modules call the argument block
_INPUT, _OUTPUT = 1, 3  # storage classes


def spirv_1_3(module: bytes) -> bytes:
    """Return a module as SPIR-V 1.3, whose entry points list the variables of inputs and outputs only. Other instructions stay: Dawn
    validates the result."""
    words = np.frombuffer(module, "<u4").tolist()
    places = []
    at = _HEADER_WORDS
    while at < len(words):
        places.append(at)
        at += words[at] >> 16
    interface = {words[p + 2] for p in places if words[p] & 0xFFFF == _VARIABLE and words[p + 3] in (_INPUT, _OUTPUT)}
    result = words[:_HEADER_WORDS]
    result[_VERSION] = _VERSION_1_3
    for p in places:
        instruction = words[p : p + (words[p] >> 16)]
        if instruction[0] & 0xFFFF == _ENTRY_POINT:
            end = 3 + next(k for k, word in enumerate(instruction[3:]) if word >> 24 == 0) + 1  # of the name
            instruction = instruction[:end] + [one for one in instruction[end:] if one in interface]
            instruction[0] = len(instruction) << 16 | _ENTRY_POINT
        result += instruction
    return np.array(result, "<u4").tobytes()


def wgsl(module: bytes) -> str:
    """Return the WGSL of a SPIR-V module, by naga. Raises SpirogradRuntimeError if naga refuses it, or is not built."""
    program = naga_program()
    if program is None:
        raise SpirogradRuntimeError("naga-translate is not built: validation/naga/build")
    done = subprocess.run([program, "wgsl"], input=module, capture_output=True, check=False)
    if done.returncode:
        raise SpirogradRuntimeError(f"naga: {done.stderr.decode(errors='replace').strip()}")
    return _padded(done.stdout.decode(), _offsets(module))


def _offsets(module: bytes) -> list[int]:
    """Return the offsets of the members of argument blocks, which are words, in order."""
    words = np.frombuffer(module, "<u4").tolist()
    named, found, at = set(), {}, _HEADER_WORDS
    while at < len(words):
        instruction = words[at : at + (words[at] >> 16)]
        at += len(instruction)
        if instruction[0] & 0xFFFF == _NAME and np.array(instruction[2:], "<u4").tobytes().rstrip(b"\0") == _BLOCK.encode():
            named.add(instruction[1])
        elif instruction[0] & 0xFFFF == _MEMBER_DECORATE and instruction[3] == _OFFSET:
            found[instruction[1], instruction[2]] = instruction[4]
    return [offset for (struct, _), offset in sorted(found.items()) if struct in named]


def _padded(text: str, offsets: list[int]) -> str:
    """Add words to the argument block so that its members have these offsets: naga does not write them."""
    block = re.search(rf"struct {_BLOCK} \{{\n((?:    .*\n)*)\}}", text)
    if block is None:
        return text
    lines, place = [], 0
    for line, offset in zip(block[1].splitlines(keepends=True), offsets):
        lines += [f"    padding_{at}: u32,\n" for at in range(place, offset, 4)]
        lines.append(line)
        place = offset + 4
    return text[: block.start(1)] + "".join(lines) + text[block.end(1) :]
