"""Modules in the forms that Dawn takes: SPIR-V 1.3, and WGSL."""

from __future__ import annotations

import subprocess

import numpy as np

from spirograd.base.errors import SpirogradRuntimeError
from validation.tools import naga_program

_HEADER_WORDS, _VERSION, _VERSION_1_3 = 5, 1, 0x10300
_ENTRY_POINT, _VARIABLE = 15, 59  # opcodes
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
    return done.stdout.decode()
