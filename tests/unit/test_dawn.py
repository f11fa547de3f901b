"""The device of `validation.dawn`, on a stand-in for WebGPU, and the modules that it gets."""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from spirograd.base.artifact import ArgBlock, CompiledKernel, Slot, TaskInfo
from spirograd.base.errors import SpirogradRuntimeError
from spirograd.spirvgen.validate import available
from validation.dawn import device
from validation.dawn.translation import spirv_1_3


class Stub:
    """A `Host` whose pipelines add 1 to every byte, and keep the arguments of the last dispatch."""

    adapter, driver = "SwiftShader", "a stub"

    def pipeline(self, module: bytes, entry: str, buffers: int, indirect: bool) -> object:
        return None

    def close(self) -> None:
        pass

    def run(self, pipeline: object, contents: Sequence[Any], arguments: bytes, groups: int) -> list[Any]:
        self.sizes, self.arguments = [len(content) for content in contents], arguments
        return [content + np.uint8(1) for content in contents]


def launched(bindings: tuple[tuple[int, ...], ...], arrays: int, twice: bool = False) -> tuple[Stub, list[int]]:
    """Run a task on arrays of 300 bytes, the first two the same if ``twice``; return the first byte of each afterwards."""
    host = Stub()
    dawn = device.Dawn(host, 1 << 20)
    slots = tuple(Slot("array", k, offset=8 * k) for k in range(arrays))
    block = ArgBlock(slots, "<" + "Q" * arrays, 8 * arrays)
    task = TaskInfo("t", "serial", "main", 0, bindings=bindings)
    executable = dawn.load(CompiledKernel("k", "wgpu", "", block, (task,), (b"",)))
    buffers = [dawn.allocate(300) for _ in range(arrays)]
    addresses = [buffers[0 if twice and k == 1 else k].address for k in range(arrays)]
    dawn.launch(executable, np.array(addresses, np.uint64).tobytes(), [1])
    first = bytearray(1)
    values = []
    for buffer in buffers:
        dawn.download(buffer, 0, memoryview(first))
        values.append(first[0])
    dawn.close()
    return host, values


def test_bindings() -> None:
    host, values = launched(((0,), (8,)), 2)
    assert host.sizes == [304, 304] and values == [1, 1]


def test_shared_bindings_get_offsets() -> None:
    host, values = launched(((0,), (8, 16)), 3)
    assert host.sizes == [304, 512 + 304] and values == [1, 1, 1]
    assert np.frombuffer(host.arguments, np.uint64)[1:].tolist() == [0, 512]


def test_an_array_is_bound_once() -> None:
    with pytest.raises(SpirogradRuntimeError, match="binds one array twice, which WebGPU forbids"):
        launched(((0,), (8,)), 2, twice=True)
    assert launched(((0, 8),), 2, twice=True)[1] == [1, 0]


@pytest.mark.skipif(not available(), reason="spirv-val is not installed")
def test_modules_are_spirv_1_3() -> None:
    text = """
        OpCapability Shader
        OpMemoryModel Logical GLSL450
        OpEntryPoint GLCompute %main "main" %id %data
        OpExecutionMode %main LocalSize 1 1 1
        OpDecorate %id BuiltIn GlobalInvocationId
        OpDecorate %array ArrayStride 4
        OpDecorate %block Block
        OpMemberDecorate %block 0 Offset 0
        OpDecorate %data DescriptorSet 0
        OpDecorate %data Binding 0
        %void = OpTypeVoid
        %type = OpTypeFunction %void
        %uint = OpTypeInt 32 0
        %three = OpTypeVector %uint 3
        %in = OpTypePointer Input %three
        %id = OpVariable %in Input
        %array = OpTypeRuntimeArray %uint
        %block = OpTypeStruct %array
        %out = OpTypePointer StorageBuffer %block
        %data = OpVariable %out StorageBuffer
        %main = OpFunction %void None %type
        %label = OpLabel
        OpReturn
        OpFunctionEnd
    """
    assemble = ["spirv-as", "--target-env", "spv1.5", "-o", "-", "-"]
    module = subprocess.run(assemble, input=text.encode(), capture_output=True, check=True).stdout
    subprocess.run(["spirv-val", "--target-env", "vulkan1.1", "-"], input=spirv_1_3(module), check=True)
