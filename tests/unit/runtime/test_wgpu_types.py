"""Types of C that are parsed behind the declarations that they name are those that cffi finds behind all of them."""

from __future__ import annotations

import cffi
import pytest
from cffi import cparser

pytestmark = pytest.mark.needs("wgpu")
HEADER = """
typedef unsigned int Flags;
typedef struct Chain { struct Chain *next; int kind; } Chain;
typedef struct Queue_ *Queue;
enum Level { LOW, HIGH };
typedef void (*Told)(Queue const *, Flags, void *);
struct Limits { Chain chain; Flags flags; uint64_t bytes[3]; Told told; };
"""
TYPES = ["Chain *", "Chain const *", "Queue[]", "Flags[4]", "struct Limits *", "enum Level", "Told", "void(Queue, Flags, struct Limits *)"]
TYPES += ["uint32_t[1]", "char []", "void *", "uintptr_t", "unsigned  long"]


@pytest.mark.parametrize("text", TYPES)
def test_types_are_those_of_cffi(text: str) -> None:
    from spirograd.runtime.devices.wgpu.c_types import parse_alone

    ffi, given = cffi.FFI(), cffi.FFI()
    for each in (ffi, given):
        each.cdef(HEADER)
    parse_alone(ffi)
    whole = cparser.Parser.parse_type(ffi._parser, text)
    assert ffi._parser.parse_type(text) == whole
    assert str(ffi.typeof(text.replace("void(", "void(*)("))) == str(given.typeof(text.replace("void(", "void(*)(")))


@pytest.mark.parametrize("text", ["Chains *", "Chain *)", "struct Limit *"])
def test_errors_are_those_of_cffi(text: str) -> None:
    from spirograd.runtime.devices.wgpu.c_types import parse_alone

    def outcome(quick: bool) -> str:
        ffi = cffi.FFI()
        ffi.cdef(HEADER)
        if quick:
            parse_alone(ffi)
        try:
            return str(ffi.sizeof(ffi.typeof(text).item))
        except Exception as error:
            return type(error).__name__

    assert outcome(True) == outcome(False)


@pytest.mark.needs("wgpu")
def test_wgpu_uses_it() -> None:
    from spirograd.runtime.devices.wgpu.api import ffi

    assert ffi._parser.parse_type is not cparser.Parser.parse_type
    assert ffi._parser.parse_type.__module__ == "spirograd.runtime.devices.wgpu.c_types"
    assert ffi.new("WGPUNativeLimits *").chain.next == ffi.NULL
