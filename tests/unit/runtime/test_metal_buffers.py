"""Torch's tensors on Metal as arguments of kernels on Vulkan, without a Mac: stand-ins play MoltenVK's part and torch's.

Each `id<MTLBuffer>` is a number that names pages of this process, which lavapipe imports by VK_EXT_external_memory_host where MoltenVK
would import the buffer by VK_EXT_external_memory_metal. Tensors are torch's own, on the CPU, over such pages; they say that they are on
"mps", and have a number in place of an address. Work of torch happens when `torch.mps.synchronize` is called.
"""

from __future__ import annotations

import ctypes
import functools
import gc
import mmap
from types import SimpleNamespace

import needs
import numpy as np
import pytest

from spirograd.runtime import loader

if loader.available("vulkan") is not None:
    pytest.skip("missing vulkan", allow_module_level=True)

import spirograd as sg
from spirograd.lang import context
from spirograd.runtime.devices.vulkan import device as vulkan_device
from spirograd.runtime.devices.vulkan import features, metal_memory
from spirograd.runtime.devices.vulkan.api import NULL, ffi, lib, number

torch = needs.package("torch")

HOST_MEMORY = "VK_EXT_external_memory_host"
HOST_POINTER, HOST_IMPORT = 0x80, 1000178000  # VK_EXTERNAL_MEMORY_HANDLE_TYPE_HOST_ALLOCATION_BIT_EXT, and the structure that imports it
PAGE = mmap.PAGESIZE


class HostImport(ctypes.Structure):
    """VkImportMemoryHostPointerInfoEXT."""

    _fields_ = [("sType", ctypes.c_uint32), ("pNext", ctypes.c_void_p), ("handleType", ctypes.c_uint32), ("pHostPointer", ctypes.c_void_p)]


class Metal:
    """Buffers of Metal. ``retained``: by number, how many memories of Vulkan hold each; ``waits``: what `synchronize` found pending."""

    def __init__(self) -> None:
        self.addresses: dict[int, int] = {}
        self.pages: list[mmap.mmap] = []
        self.retained: dict[int, int] = {}
        self.imports: dict[int, int] = {}  # The buffer of each memory of Vulkan.
        self.pending: list[object] = []
        self.waits: list[int] = []

    def buffer(self, nbytes: int) -> tuple[int, memoryview]:
        pages = mmap.mmap(-1, -(-nbytes // PAGE) * PAGE)
        self.pages.append(pages)
        handle = 0xA0000 + 0x20 * len(self.addresses)  # Close to each other, as small objects of a heap are.
        self.addresses[handle] = ctypes.addressof(ctypes.c_char.from_buffer(pages))
        self.retained[handle] = 0
        return handle, memoryview(pages)

    def handle_at(self, address: int) -> int:
        return next(handle for handle, first in self.addresses.items() if first == address)

    def synchronize(self) -> None:
        self.waits.append(len(self.pending))
        work, self.pending[:] = list(self.pending), []
        for step in work:
            step()


@functools.cache
def mps_tensors() -> type:
    """The class of tensors on "mps", made once: torch may be missing."""

    class MpsTensor(torch.Tensor):
        """A tensor on "mps", whose storage has the number of a buffer in place of an address."""

        metal: Metal

        @property
        def device(self):
            return SimpleNamespace(type="mps", index=0)

        def untyped_storage(self):
            storage = super().untyped_storage()
            return SimpleNamespace(data_ptr=lambda: self.metal.handle_at(storage.data_ptr()), nbytes=storage.nbytes)

        def clone(self, **options):
            return tensor(self.metal, super().as_subclass(torch.Tensor).clone(**options))

        def new_zeros(self, shape):
            return tensor(self.metal, torch.zeros(shape, dtype=self.dtype))

        def cpu(self):
            raise AssertionError("a tensor was copied to the host")

    return MpsTensor


def tensor(metal: Metal, values):
    """Return a tensor on "mps" with a buffer of its own."""
    _, memory = metal.buffer(max(values.numel() * values.element_size(), 1))
    own = torch.frombuffer(memory, dtype=values.dtype, count=values.numel()).view(values.shape)
    own.copy_(values)
    return own.as_subclass(mps_tensors())


def chain(first: object) -> dict[int, ffi.CData]:
    """Return the structures of a chain by type."""
    out, at = {}, ffi.cast("VkBaseInStructure*", first)
    while at != NULL:
        out[at.sType] = at
        at = ffi.cast("VkBaseInStructure*", at.pNext)
    return out


def moltenvk(metal: Metal, functions: SimpleNamespace) -> SimpleNamespace:
    """Replace the functions that the import calls; they check what MoltenVK and the specification ask for."""
    create, allocate, free = functions.CreateBuffer, functions.AllocateMemory, functions.FreeMemory
    external: set[int] = set()

    def create_buffer(device, info, _, out):
        parts = chain(info.pNext)
        if parts:
            asked = ffi.cast("VkExternalMemoryBufferCreateInfo*", parts.pop(1000072000))  # VK_STRUCTURE_TYPE_EXTERNAL_MEMORY_BUFFER_...
            assert asked.handleTypes == metal_memory.MTLBUFFER and not parts
            asked.handleTypes = HOST_POINTER
        result = create(device, info, NULL, out)
        if info.pNext != NULL:
            external.add(number(out[0]))
        return result

    def allocate_memory(device, info, _, out):
        parts = chain(info.pNext)
        if metal_memory.IMPORT_INFO not in parts:
            return allocate(device, info, NULL, out)
        at = number(parts.pop(metal_memory.IMPORT_INFO))
        asked = metal_memory.ImportMemoryMetalHandleInfo.from_address(at)
        assert asked.handleType == metal_memory.MTLBUFFER and external
        flags = ffi.cast("VkMemoryAllocateFlagsInfo*", parts.pop(1000060000))
        assert flags.flags == 2 and not parts  # VK_MEMORY_ALLOCATE_DEVICE_ADDRESS_BIT
        metal.retained[asked.handle] += 1
        host = HostImport(HOST_IMPORT, asked.pNext, HOST_POINTER, metal.addresses[asked.handle])
        info.pNext = ffi.cast("void*", ctypes.addressof(host))
        info.allocationSize = -(-info.allocationSize // PAGE) * PAGE  # Lavapipe imports whole pages; MoltenVK ignores the size.
        result = allocate(device, info, NULL, out)
        metal.imports[number(out[0])] = asked.handle
        return result

    def free_memory(device, memory, _):
        handle = metal.imports.pop(number(memory), None)
        if handle is not None:
            metal.retained[handle] -= 1
        free(device, memory, NULL)

    functions.CreateBuffer, functions.AllocateMemory, functions.FreeMemory = create_buffer, allocate_memory, free_memory
    return functions


@pytest.fixture
def metal(monkeypatch):
    """Sessions on Vulkan have a device of Apple's, and torch has "mps"."""
    metal = Metal()
    original = vulkan_device.query, vulkan_device.create_device, vulkan_device.device_functions

    def query(*args):
        found = original[0](*args)
        assert HOST_MEMORY in features.device_extensions(found.physical)
        return features.replace(found, extensions=(*found.extensions, metal_memory.EXTENSION))

    def create_device(found):
        names = [HOST_MEMORY if name == metal_memory.EXTENSION else name for name in found.extensions]
        return original[1](features.replace(found, extensions=tuple(names)))

    def memory_types(_, handle):
        assert handle in metal.addresses
        return 0xFFFFFFFF

    monkeypatch.setattr(vulkan_device, "query", query)
    monkeypatch.setattr(vulkan_device, "create_device", create_device)
    monkeypatch.setattr(vulkan_device, "device_functions", lambda device: moltenvk(metal, original[2](device)))
    monkeypatch.setattr(metal_memory, "memory_types", memory_types)
    monkeypatch.setattr(torch.mps, "synchronize", metal.synchronize)
    monkeypatch.setattr(mps_tensors(), "metal", metal, raising=False)
    sg.init(arch=sg.vulkan)
    yield metal
    sg.reset()
    assert not any(metal.retained.values())  # Closing the device released each buffer.


@sg.kernel
def add(a: sg.types.NDArray[sg.f32, 1], b: sg.types.NDArray[sg.f32, 1]):
    for i in a:
        a[i] += 10.0 * b[i]


def test_kernels_use_the_buffer_itself(metal: Metal) -> None:
    a, b = tensor(metal, torch.arange(100.0)), tensor(metal, torch.ones(100))
    before = a._version
    add(a, b)
    assert a.tolist() == [k + 10.0 for k in range(100)] and b.tolist() == [1.0] * 100
    assert a._version > before  # torch sees the write.
    assert len(metal.addresses) == 2  # Nothing was copied.


def test_offsets_are_bytes_of_the_buffer(metal: Metal) -> None:
    base = tensor(metal, torch.arange(64.0))
    add(base[8:12], base[32:36])
    expected = np.arange(64.0)
    expected[8:12] += 10.0 * expected[32:36]
    assert base.tolist() == expected.tolist()


def test_what_does_not_fit_is_copied_by_torch(metal: Metal) -> None:
    """Strides, and an offset that is no multiple of 16 bytes. The copies are made on the GPU, and written back there."""
    base = tensor(metal, torch.arange(64.0))
    other = tensor(metal, torch.ones(64))
    add(base[::2], other[::2])
    add(base[1:5], other[:4])
    expected = np.arange(64.0)
    expected[::2] += 10.0
    expected[1:5] += 10.0
    assert base.tolist() == expected.tolist()


def test_overlaps_with_copies_are_refused(metal: Metal) -> None:
    base = tensor(metal, torch.arange(64.0))
    with pytest.raises(sg.SpirogradRuntimeTypeError, match="overlap in memory"):
        add(base[:8], base[1:9])


def test_the_launch_comes_after_torch_and_torch_after_the_launch(metal: Metal) -> None:
    a, b = tensor(metal, torch.zeros(4)), tensor(metal, torch.zeros(4))
    metal.pending.append(lambda: b.fill_(3.0))
    add(a, b)
    assert metal.waits[0] == 1 and a.tolist() == [30.0] * 4
    assert context.session().device._own.idle  # What torch does next cannot come before the end of the launch.


def test_gradients(metal: Metal) -> None:
    a, b = tensor(metal, torch.zeros(4)), tensor(metal, torch.ones(4))
    a.requires_grad_()
    b.requires_grad_()
    a.grad = tensor(metal, torch.full((4,), 2.0))
    add.grad(a, b)
    assert b.grad.tolist() == [20.0] * 4 and len(metal.addresses) == 4


def test_buffers_are_released(metal: Metal) -> None:
    """The next launch, or the next wait, releases the buffers of a launch."""
    a, b = tensor(metal, torch.zeros(4)), tensor(metal, torch.ones(4))
    for _ in range(3):
        add(a, b)
        assert max(metal.retained.values()) <= 1
    gc.collect()
    sg.sync()
    assert not any(metal.retained.values())
    device = context.session().device
    assert not any(block.imported for block in device._allocator.blocks)


def test_empty_tensors_and_failed_imports(metal: Metal, monkeypatch: pytest.MonkeyPatch) -> None:
    a, b = tensor(metal, torch.zeros(4)), tensor(metal, torch.ones(4))
    device = context.session().device
    assert device.adopt_metal(metal.handle_at(torch.Tensor.untyped_storage(a).data_ptr()), 0, 0) is None
    used = device._allocator.used
    with monkeypatch.context() as patch:
        patch.setattr(device._fn, "AllocateMemory", lambda *_: -1000072003)  # VK_ERROR_INVALID_EXTERNAL_HANDLE
        with pytest.raises(sg.SpirogradRuntimeError, match="import a Metal buffer"):
            add(a, b)
    assert device._allocator.used == used and not any(metal.retained.values())
    add(a, b)
    assert a.tolist() == [10.0] * 4


def test_layout_of_the_structures() -> None:
    """As the compiled structures of Vulkan with the same members are."""
    assert ctypes.sizeof(metal_memory.ImportMemoryMetalHandleInfo) == ffi.sizeof("VkImportMemoryHostPointerInfoEXT") == 32
    assert metal_memory.ImportMemoryMetalHandleInfo.handle.offset == 24
    assert ctypes.sizeof(metal_memory.MemoryMetalHandleProperties) == 24
    assert metal_memory.MemoryMetalHandleProperties.memoryTypeBits.offset == 16


def test_memory_types_are_asked_of_the_driver(monkeypatch: pytest.MonkeyPatch) -> None:
    """By a function of the device, here a callback; its absence is an error that names it."""
    seen: list[tuple[int, int, int]] = []

    @ffi.callback("int(VkDevice, uint32_t, void*, void*)")
    def get(_, kind, handle, out):
        properties = metal_memory.MemoryMetalHandleProperties.from_address(number(out))
        seen.append((kind, number(handle), properties.sType))
        properties.memoryTypeBits = 6
        return 0

    looked_up = []
    fake = SimpleNamespace(vkGetDeviceProcAddr=lambda _, name: looked_up.append(name) or get)
    monkeypatch.setattr(metal_memory, "lib", fake)
    assert metal_memory.memory_types(NULL, 0xA0000) == 6
    assert seen == [(metal_memory.MTLBUFFER, 0xA0000, metal_memory.HANDLE_PROPERTIES)]
    assert looked_up == [b"vkGetMemoryMetalHandlePropertiesEXT"] and lib is not fake
    monkeypatch.setattr(fake, "vkGetDeviceProcAddr", lambda *_: NULL)
    with pytest.raises(sg.SpirogradRuntimeError, match="vkGetMemoryMetalHandlePropertiesEXT"):
        metal_memory.memory_types(NULL, 0xA0000)
