"""Additions to floats of shared arrays become exchanges of bits where the device cannot add to such floats."""

from __future__ import annotations

from dataclasses import replace

import pytest

from spirograd.base.caps import Capabilities
from spirograd.base.errors import SpirogradUnsupportedError
from spirograd.ir import ops
from spirograd.ir.text import parse
from spirograd.transforms.lowering.shared_atomics import add_by_bits

TEXT = """kernel "k"
ref s = SharedRef("s", {type}, 8)
{{
  %z = const[0]() : i32
  %h = const[0.5]() : {type}
  store[s](%z, %h)
  %a = atomic[("{kind}", s)](%z, %h) : {type}
  %b = load[s](%z) : {type}
  {use}
  yield()
}}
"""
VULKAN = Capabilities("vulkan", float64=True, int64=True)


@pytest.mark.parametrize(("caps", "type_", "kind", "use", "lowered"), [
    (VULKAN, "f32", "add", "", True),
    (Capabilities("wgpu"), "f32", "add", "", True),
    (replace(VULKAN, shared_f32_add=True), "f32", "add", "", False),
    (replace(VULKAN, shared_int64=True), "f64", "add", "", True),
    (Capabilities("cuda"), "f64", "add", "", False),
    (VULKAN, "f32", "max", "", False),
    (VULKAN, "f32", "add", "store[s](%z, %a)", False),
])  # fmt: skip
def test_which_arrays(caps, type_, kind, use, lowered):
    kernel = parse(TEXT.format(type=type_, kind=kind, use=use))
    new = add_by_bits(kernel, caps)
    assert (new is not kernel) == lowered
    if lowered:
        kinds = [op.attr[0] for op in new.walk() if op.code is ops.atomic]
        types = {op.attr.dtype.name for op in new.walk() if op.code in (ops.load, ops.store)}
        assert kinds == ["exchange", "exchange"]
        assert types == {{"f32": "u32", "f64": "u64"}[type_]}


def test_a_device_without_exchanges():
    with pytest.raises(SpirogradUnsupportedError, match="additions to f64 in shared arrays need 64-bit atomics there"):
        add_by_bits(parse(TEXT.format(type="f64", kind="add", use="")), VULKAN)
