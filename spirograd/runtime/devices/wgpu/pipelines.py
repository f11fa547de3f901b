"""Shader modules and compute pipelines, and the layouts of their bindings."""

from __future__ import annotations

from spirograd.runtime.devices.artifacts import check_module
from spirograd.runtime.devices.wgpu.api import telling, trusted_module, wgpu


class Pipelines:
    """A factory of pipelines. ``checked``: use wgpu's own checks of accesses and loops, for debugging."""

    def __init__(self, device: wgpu.GPUDevice, checked: bool) -> None:
        self._device = device
        self._checked = checked
        self._groups: dict[tuple[int, bool], wgpu.GPUBindGroupLayout] = {}
        self._layouts: dict[tuple[int, int, bool], wgpu.GPUPipelineLayout] = {}

    def group_layout(self, count: int, dynamic: bool = False) -> wgpu.GPUBindGroupLayout:
        """Return the layout of a group of ``count`` storage buffers."""
        layout = self._groups.get((count, dynamic))
        if layout is None:
            buffer = {"type": wgpu.BufferBindingType.storage, "has_dynamic_offset": dynamic, "min_binding_size": 0}
            entries = [{"binding": k, "visibility": wgpu.ShaderStage.COMPUTE, "buffer": buffer} for k in range(count)]
            layout = self._groups[count, dynamic] = self._device.create_bind_group_layout(entries=entries)
        return layout

    def _layout(self, count: int, immediates: int, indirect: bool) -> wgpu.GPUPipelineLayout:
        """Return the layout of a pipeline.

        Group 0: the buffers of the task. Group 1: the argument block, if it is a buffer.
        """
        key = (count, immediates, indirect)
        layout = self._layouts.get(key)
        if layout is None:
            groups = [self.group_layout(count)] + ([self.group_layout(1, True)] if indirect else [])
            layout = self._layouts[key] = self._device.create_pipeline_layout(bind_group_layouts=groups, immediate_size=immediates)
        return layout

    def create(self, code: bytes, entry: str, count: int, immediates: int, indirect: bool, what: str) -> wgpu.GPUComputePipeline:
        """Return the pipeline of a module. ``count``: storage buffers; ``immediates``: bytes of the argument block that are pushed."""
        check_module(code, entry, what)
        with telling(f"load {what} through wgpu"):
            create = self._device.create_shader_module
            module = create(code=code, label=what) if self._checked else trusted_module(self._device, code, what)
            layout = self._layout(count, immediates, indirect)
            return self._device.create_compute_pipeline(label=what, layout=layout, compute={"module": module, "entry_point": entry})

    def group(self, entries: list[tuple[wgpu.GPUBuffer, int, int]], dynamic: bool = False) -> wgpu.GPUBindGroup:
        """Return a bind group of (buffer, offset, size)."""
        bindings = [
            {"binding": k, "resource": {"buffer": buffer, "offset": offset, "size": size}}
            for k, (buffer, offset, size) in enumerate(entries)
        ]
        with telling("bind buffers through wgpu"):
            return self._device.create_bind_group(layout=self.group_layout(len(entries), dynamic), entries=bindings)
