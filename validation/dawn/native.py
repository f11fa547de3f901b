"""Dawn's library in this process, from the package dawn-python. Tint reads SPIR-V modules, or WGSL that naga makes of them."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.metadata import version

import numpy as np
from pydawn import utils, webgpu

from spirograd.base.errors import SpirogradRuntimeError
from validation.dawn import WGSL
from validation.dawn.translation import spirv_1_3, wgsl
from validation.rdna3.arithmetic import Array

_STORAGE = webgpu.WGPUBufferUsage_Storage | webgpu.WGPUBufferUsage_CopyDst | webgpu.WGPUBufferUsage_CopySrc


@dataclass(eq=False)
class _Pipeline:
    handle: object
    layouts: list[object]


class Native:
    """A `Host`. ``translated``: whether Tint gets WGSL."""

    def __init__(self, translated: bool) -> None:
        self._translated = translated
        adapter = utils.request_adapter_sync(webgpu.WGPUPowerPreference_HighPerformance)
        info = webgpu.WGPUAdapterInfo()
        webgpu.wgpuAdapterGetInfo(adapter, ctypes.byref(info))
        self.adapter = f"{utils.from_wgpu_str(info.device)}, {utils.from_wgpu_str(info.description)}"
        self.driver = f"Dawn of dawn-python {version('dawn-python')}, {'WGSL by naga' if translated else 'SPIR-V'}"
        self._device = _device(adapter)
        self._pipelines: list[object] = []
        self._layouts: list[object] = []

    def pipeline(self, module: bytes, entry: str, buffers: int, indirect: bool) -> _Pipeline:
        make = _module_of_wgsl if self._translated else _module_of_spirv
        counts = [buffers] + [1] * indirect
        try:
            layouts = [utils.create_bind_group_layout(self._device, [_entry(k) for k in range(count)]) for count in counts]
            layout = utils.create_pipeline_layout(self._device, layouts)
            compute = {"module": make(self._device, module), "entry_point": entry}
            pipeline = _Pipeline(utils.create_compute_pipeline(self._device, layout, compute), layouts)
        except RuntimeError as error:
            raise SpirogradRuntimeError(f"Dawn refuses a module: {error}") from error
        self._pipelines.append(pipeline.handle)
        self._layouts += layouts
        return pipeline

    def run(self, pipeline: object, contents: Sequence[Array], arguments: bytes, groups: int) -> list[Array]:
        assert isinstance(pipeline, _Pipeline)
        block = np.zeros(-(-len(arguments) // 16) * 16, np.uint8)
        block[: len(arguments)] = np.frombuffer(arguments, np.uint8)
        buffers = [self._buffer(content) for content in contents]
        constant = [self._buffer(block)] if len(block) else []
        try:
            self._dispatch(pipeline, [buffers, constant][: len(pipeline.layouts)], groups)
            return [np.frombuffer(utils.read_buffer(self._device, buffer), np.uint8) for buffer in buffers]
        except RuntimeError as error:
            raise SpirogradRuntimeError(f"Dawn refuses a dispatch: {error}") from error
        finally:
            for buffer in (*buffers, *constant):
                webgpu.wgpuBufferDestroy(buffer)
                webgpu.wgpuBufferRelease(buffer)

    def close(self) -> None:
        for release, things in ((webgpu.wgpuComputePipelineRelease, self._pipelines), (webgpu.wgpuBindGroupLayoutRelease, self._layouts)):
            while things:
                release(things.pop())
        webgpu.wgpuDeviceDestroy(self._device)
        webgpu.wgpuDeviceRelease(self._device)

    def _buffer(self, content: Array) -> object:
        buffer = utils.create_buffer(self._device, len(content), _STORAGE)
        webgpu.wgpuQueueWriteBuffer(webgpu.wgpuDeviceGetQueue(self._device), buffer, 0, content.ctypes.data, len(content))
        return buffer

    def _dispatch(self, pipeline: _Pipeline, groups: list[list[object]], count: int) -> None:
        webgpu.wgpuDevicePushErrorScope(self._device, webgpu.WGPUErrorFilter_Validation)
        encoder = utils.create_command_encoder(self._device)
        compute = utils.begin_compute_pass(encoder)
        utils.set_pipeline(compute, pipeline.handle)
        for number, (layout, buffers) in enumerate(zip(pipeline.layouts, groups)):
            entries = [
                {"binding": k, "resource": {"buffer": buffer, "offset": 0, "size": webgpu.wgpuBufferGetSize(buffer)}}
                for k, buffer in enumerate(buffers)
            ]
            group = utils.create_bind_group(self._device, layout, entries)
            webgpu.wgpuComputePassEncoderSetBindGroup(compute, number, group, 0, None)
            webgpu.wgpuBindGroupRelease(group)
        utils.dispatch_workgroups(compute, count, 1, 1)
        utils.end_compute_pass(compute)
        commands = utils.command_encoder_finish(encoder)
        utils.submit(self._device, [commands])
        for release, thing in (
            (webgpu.wgpuComputePassEncoderRelease, compute),
            (webgpu.wgpuCommandBufferRelease, commands),
            (webgpu.wgpuCommandEncoderRelease, encoder),
        ):
            release(thing)
        if problem := utils.pop_error(self._device):
            raise RuntimeError(problem)


def _entry(number: int) -> dict[str, object]:
    return {"binding": number, "visibility": webgpu.WGPUShaderStage_Compute, "buffer": {"type": webgpu.WGPUBufferBindingType_Storage}}


def _device(adapter: object) -> object:
    """Return a device with WebGPU's default limits and no optional features."""
    answers: list[tuple[object, str]] = []
    request = webgpu.WGPURequestDeviceCallbackInfo()
    request.mode = webgpu.WGPUCallbackMode_WaitAnyOnly
    request.callback = webgpu.WGPURequestDeviceCallback(
        lambda status, device, message, _: answers.append((device, utils.from_wgpu_str(message)))
    )
    utils.wait(webgpu.wgpuAdapterRequestDeviceF(adapter, webgpu.WGPUDeviceDescriptor(), request))
    device, message = answers[0]
    if not device:
        raise SpirogradRuntimeError(f"Dawn opens no device: {message}")
    return device


def _module_of_wgsl(device: object, module: bytes) -> object:
    return utils.create_shader_module(device, wgsl(module))


def _module_of_spirv(device: object, module: bytes) -> object:
    code = spirv_1_3(module)
    words = (ctypes.c_uint32 * (len(code) // 4)).from_buffer_copy(code)
    source = webgpu.WGPUShaderSourceSPIRV()
    source.chain.sType = webgpu.WGPUSType_ShaderSourceSPIRV
    source.codeSize, source.code = len(words), words
    descriptor = webgpu.WGPUShaderModuleDescriptor()
    descriptor.nextInChain = ctypes.cast(ctypes.pointer(source), ctypes.POINTER(webgpu.struct_WGPUChainedStruct))
    webgpu.wgpuDevicePushErrorScope(device, webgpu.WGPUErrorFilter_Validation)
    made = webgpu.wgpuDeviceCreateShaderModule(device, descriptor)
    if problem := utils.pop_error(device):
        raise RuntimeError(problem)
    return made


def open_host(name: str) -> Native:
    """Open the adapter that Dawn prefers. ``name``: a key of `HOSTS`."""
    return Native(name == WGSL)
