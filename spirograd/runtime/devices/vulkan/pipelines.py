"""Compute pipelines: one layout for all of them (push constants only), and a pipeline cache that survives the process."""

from __future__ import annotations

import contextlib
import hashlib
import os
from pathlib import Path
from types import SimpleNamespace

import vulkan as vk

from spirograd.runtime.devices.artifacts import check_module
from spirograd.runtime.devices.vulkan.api import NULL, check, ffi, struct
from spirograd.runtime.sealing import read_regular, sealed, unsealed, write_new


class Pipelines:
    """A factory of pipelines of SPIR-V modules. Thread safe, as Vulkan's pipeline creation is. ``folder`` None: no cache on disk.
    ``flags``: the VkPipelineCreateFlags of all; ``subgroup_size``: see `Features`."""

    def __init__(
        self,
        device: ffi.CData,
        functions: SimpleNamespace,
        push_bytes: int,
        identity: bytes,
        folder: Path | None,
        subgroup_size: int,
        flags: int = 0,
    ) -> None:
        self.device = device
        self._flags = flags
        self._subgroup_size = subgroup_size
        self.fn = functions
        self.push_bytes = push_bytes
        self._file = folder / f"pipelines-{hashlib.sha256(identity).hexdigest()[:24]}.bin" if folder is not None else None
        self._created = 0
        self._live: set[ffi.CData] = set()
        constants = struct_push_range(push_bytes)
        info = struct("VkPipelineLayoutCreateInfo", pushConstantRangeCount=1, pPushConstantRanges=constants)
        layout = ffi.new("VkPipelineLayout*")
        check(functions.CreatePipelineLayout(device, info, NULL, layout), "create a pipeline layout")
        self.layout = layout[0]
        self._cache = self._create_cache(self._load())

    def _create_cache(self, initial: bytes) -> ffi.CData:
        data = ffi.from_buffer(initial) if initial else NULL
        cache = ffi.new("VkPipelineCache*")
        info = struct("VkPipelineCacheCreateInfo", initialDataSize=len(initial), pInitialData=data)
        check(self.fn.CreatePipelineCache(self.device, info, NULL, cache), "create a pipeline cache")
        return cache[0]

    def create(self, module: bytes, entry: str, name: str, subgroup_size: int = 0) -> ffi.CData:
        """Return a pipeline of the entry point ``entry``; ``name`` is for errors. Raises SpirogradRuntimeError on an invalid module.

        ``subgroup_size``: another size of subgroups than that of all pipelines; 0 for that one.
        """
        size = subgroup_size or self._subgroup_size
        check_module(module, entry, name)
        words = ffi.new("uint32_t[]", len(module) // 4)
        ffi.memmove(words, module, len(module))
        shader = ffi.new("VkShaderModule*")
        info = struct("VkShaderModuleCreateInfo", codeSize=len(module), pCode=words)
        check(self.fn.CreateShaderModule(self.device, info, NULL, shader), f"load the SPIR-V module of kernel {name}")
        try:
            entry_name = ffi.new("char[]", entry.encode())
            pipeline_info = struct("VkComputePipelineCreateInfo", flags=self._flags, layout=self.layout, basePipelineIndex=-1)
            stage = pipeline_info.stage
            stage.sType = vk.VK_STRUCTURE_TYPE_PIPELINE_SHADER_STAGE_CREATE_INFO
            stage.stage = vk.VK_SHADER_STAGE_COMPUTE_BIT
            stage.module = shader[0]
            stage.pName = entry_name
            required = struct("VkPipelineShaderStageRequiredSubgroupSizeCreateInfo", requiredSubgroupSize=size)
            stage.pNext = required if size else NULL
            pipeline = ffi.new("VkPipeline*")
            result = self.fn.CreateComputePipelines(self.device, self._cache, 1, pipeline_info, NULL, pipeline)
            check(result, f"compile kernel {name}")
        finally:
            self.fn.DestroyShaderModule(self.device, shader[0], NULL)
        self._created += 1
        self._live.add(pipeline[0])
        return pipeline[0]

    def destroy(self, pipeline: ffi.CData) -> None:
        """Destroy a pipeline that no pending work uses."""
        self._live.discard(pipeline)
        self.fn.DestroyPipeline(self.device, pipeline, NULL)

    def close(self) -> None:
        """Save the cache if it grew, and destroy all objects."""
        if self._created:
            self._save()
        for pipeline in list(self._live):
            self.destroy(pipeline)
        self.fn.DestroyPipelineCache(self.device, self._cache, NULL)
        self.fn.DestroyPipelineLayout(self.device, self.layout, NULL)

    def _load(self) -> bytes:
        """Return the driver's data from disk, which contain code; empty if the file is missing, damaged, or not sealed with the user's
        key."""
        if self._file is None:
            return b""
        try:
            data = read_regular(self._file)
        except OSError:
            return b""
        return (None if data is None else unsealed(data, self._file.name)) or b""

    def _save(self) -> None:
        if self._file is None:
            return
        size = ffi.new("size_t*")
        if self.fn.GetPipelineCacheData(self.device, self._cache, size, NULL) != vk.VK_SUCCESS or not size[0]:
            return
        data = ffi.new("char[]", size[0])
        if self.fn.GetPipelineCacheData(self.device, self._cache, size, data) != vk.VK_SUCCESS:
            return
        body = bytes(ffi.buffer(data, size[0]))
        if body == self._load():
            return
        # The cache only saves time: a failing disk is no reason to raise at exit.
        with contextlib.suppress(OSError):
            self._file.parent.mkdir(parents=True, exist_ok=True)
            part = write_new(self._file, sealed(body, self._file.name))
            try:
                os.replace(part, self._file)
            except BaseException:
                part.unlink()
                raise


def struct_push_range(push_bytes: int) -> ffi.CData:
    """Return the range of all push constants, for the compute stage."""
    return ffi.new("VkPushConstantRange*", {"stageFlags": vk.VK_SHADER_STAGE_COMPUTE_BIT, "offset": 0, "size": push_bytes})
