"""Structures of Vulkan that the package `vulkan` lacks."""

from __future__ import annotations

import ctypes
import struct

import pytest

from spirograd.runtime import loader

if loader.available("vulkan") is not None:
    pytest.skip("missing vulkan", allow_module_level=True)

from spirograd.runtime.devices.vulkan import features
from spirograd.runtime.devices.vulkan.api import NULL, ffi
from spirograd.runtime.devices.vulkan.later_structures import LATER, later_structure


@pytest.mark.parametrize("name", LATER)
def test_layout(name: str) -> None:
    """The type, a pointer that is aligned, one word for each feature; nothing is set but the first two."""
    structure, pointer = later_structure(name, ffi.cast("void*", 0x1122334455667788))
    kind, members = LATER[name]
    words = bytes(ffi.buffer(ffi.cast("char*", pointer), 16 + 4 * len(members)))
    assert struct.unpack_from("=I4xQ", words) == (kind, 0x1122334455667788)
    assert not any(words[16:])
    for k, member in enumerate(members):
        setattr(structure, member, k + 1)
    written = bytes(ffi.buffer(ffi.cast("char*", pointer), 16 + 4 * len(members)))
    assert struct.unpack_from(f"={len(members)}I", written, 16) == tuple(range(1, len(members) + 1))


def test_chain_links_structures_of_both_kinds() -> None:
    names = [name for name, _ in features._CHAIN]
    chain, place, found = features._chain(set(names)), NULL, []
    at = chain[features._CORE].pNext
    by_type = {ffi.cast("VkBaseOutStructure*", _address(chain[name])).sType: name for name in names}
    while at != place:
        base = ffi.cast("VkBaseOutStructure*", at)
        found.append(by_type[base.sType])
        at = base.pNext
    assert found == names


def _address(structure: object) -> object:
    return ffi.cast("void*", ctypes.addressof(structure)) if isinstance(structure, ctypes.Structure) else structure
