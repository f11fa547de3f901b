"""The module and function builders: interning, capabilities, and constructs that are not finished."""

from __future__ import annotations

import struct

import pytest

from spirograd.spirvgen.disasm import disassemble, opcode_names
from spirograd.spirvgen.function import Function
from spirograd.spirvgen.module import Module, ModuleError
from spirograd.spirvgen.validate import validate


def fresh() -> tuple[Module, Function]:
    module = Module((1, 5), "PhysicalStorageBuffer64", "GLSL450")
    return module, Function(module, "kernel")


def finished(module: Module, function: Function) -> bytes:
    module.entry_point(function.id, "main", 4)
    function.finish()
    return module.to_bytes()


def test_empty_module_is_valid() -> None:
    data = finished(*fresh())
    assert struct.unpack_from("<2I", data) == (0x07230203, 0x00010500)
    validate(data, "vulkan")


@pytest.mark.needs("spirv-val")
def test_validate_reports() -> None:
    module, function = fresh()
    function.value("IAdd", module.type_bool, module.constant_u32(1), module.constant_u32(2))
    with pytest.raises(ModuleError, match="spirv-val"):
        validate(finished(module, function), "vulkan")


def test_types_and_constants_are_interned() -> None:
    module, _ = fresh()
    assert module.type_int(32, True) == module.type_int(32, True) != module.type_int(32, False)
    assert module.constant_u32(7) == module.constant_u32(7) != module.constant_u32(8)
    assert module.pointer("Function", module.u32) == module.pointer("Function", module.u32)
    assert module.runtime_array_block(module.u32, 4, "a") == module.runtime_array_block(module.u32, 4, "a")
    assert module.string("x.py") == module.string("x.py")


def test_capabilities_follow_use() -> None:
    module, function = fresh()
    assert module.capabilities == ("Shader", "PhysicalStorageBufferAddresses")
    module.type_float(16)
    module.type_int(64, False)
    function.value("GroupNonUniformElect", module.type_bool, module.constant_u32(3))
    module.capability("AtomicFloat32AddEXT")
    assert {"Float16", "Int64", "GroupNonUniform", "AtomicFloat32AddEXT"} <= set(module.capabilities)
    assert "OpExtension" in opcode_names(finished(module, function))


def test_loop_and_selection() -> None:
    module, function = fresh()
    true = module.constant_bool(True)
    with function.loop() as loop:
        loop.test(true)
        with function.selection(true, otherwise=True) as selection:
            selection.otherwise()
        loop.step()
    with function.loop(separate_condition=True) as loop:
        with function.selection(true):
            pass
        loop.test(true)
        loop.step()
    validate(finished(module, function), "vulkan")


def test_unfinished_constructs_raise() -> None:
    module, function = fresh()
    true = module.constant_bool(True)
    with pytest.raises(ModuleError, match="second branch"), function.selection(true, otherwise=True):
        pass
    _, function = fresh()
    with pytest.raises(ModuleError, match="unfinished"), function.loop() as loop:
        loop.test(true)
    _, function = fresh()
    with pytest.raises(ModuleError, match="no second branch"), function.selection(true) as selection:
        selection.otherwise()
    _, function = fresh()
    selection = function.selection(true)
    selection.__enter__()
    with pytest.raises(ModuleError, match="inside of a construct"):
        function.finish()


def test_blocks_are_checked() -> None:
    module, function = fresh()
    with pytest.raises(ModuleError, match="before the last one"):
        function.label(module.new_id())
    function.branch(module.new_id())
    with pytest.raises(ModuleError, match="outside of a block"):
        function.value("IAdd", module.u32, 1, 1)
    with pytest.raises(ModuleError, match="outside of a block"):
        function.branch(module.new_id())


def test_prologue_comes_first() -> None:
    module, function = fresh()
    one = module.constant_u32(1)
    function.value("IMul", module.u32, one, one)
    with function.prologue():
        function.value("IAdd", module.u32, one, one)
    names = opcode_names(finished(module, function))
    assert names.index("OpIAdd") < names.index("OpIMul")


def test_disassembler_refuses_garbage() -> None:
    for data in (b"", b"\0" * 24, b"\x03\x02\x23\x07" + b"\0" * 16 + struct.pack("<I", 0)):
        with pytest.raises(ValueError):
            disassemble(data)
