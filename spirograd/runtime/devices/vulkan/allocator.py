"""Device memory: large blocks, divided into 256-byte aligned ranges. Free neighbours are merged and empty blocks are released."""

from __future__ import annotations

import ctypes
from bisect import bisect_left
from types import SimpleNamespace

import vulkan as vk

from spirograd.base.errors import OutOfDeviceMemory, SpirogradRuntimeError
from spirograd.base.records import dataclass
from spirograd.base.wording import over_limit
from spirograd.runtime.devices.vulkan import metal_memory
from spirograd.runtime.devices.vulkan.api import NULL, check, ffi, lib, struct

ALIGNMENT = 256
FIRST_BLOCK = 64 << 20
FIRST_BLOCK_OF_HOST = 4 << 20  # for drivers that run on the CPU: SwiftShader writes zeros to all of a block
LARGEST_BLOCK = 256 << 20
# Ranges above this fraction of a block get memory of their own: they would leave large holes.
DEDICATED_PART = 4
# Values of Vulkan 1.2 that the `vulkan` package does not name.
_ADDRESSABLE = 0x20000  # VK_BUFFER_USAGE_SHADER_DEVICE_ADDRESS_BIT
_ADDRESS_FLAG = 2  # VK_MEMORY_ALLOCATE_DEVICE_ADDRESS_BIT
_USAGE = vk.VK_BUFFER_USAGE_STORAGE_BUFFER_BIT | _ADDRESSABLE | vk.VK_BUFFER_USAGE_TRANSFER_SRC_BIT | vk.VK_BUFFER_USAGE_TRANSFER_DST_BIT
_LOCAL = vk.VK_MEMORY_PROPERTY_DEVICE_LOCAL_BIT
_MAPPABLE = vk.VK_MEMORY_PROPERTY_HOST_VISIBLE_BIT | vk.VK_MEMORY_PROPERTY_HOST_COHERENT_BIT
_CACHED = vk.VK_MEMORY_PROPERTY_HOST_CACHED_BIT


@dataclass(slots=True, eq=False)
class Block:
    """A VkDeviceMemory with one VkBuffer over all of it.

    ``host`` is the address it is mapped at, or 0. ``offsets`` and ``sizes`` are the free ranges, in order of offset; no two of them are
    adjacent. ``imported``: another library allocated the memory, all of which is one range.
    """

    buffer: ffi.CData
    memory: ffi.CData
    size: int
    address: int
    host: int
    dedicated: bool
    offsets: list[int]
    sizes: list[int]
    imported: bool = False

    @property
    def empty(self) -> bool:
        return len(self.sizes) == 1 and self.sizes[0] == self.size

    def take(self, size: int) -> int | None:
        """Take a free range of ``size`` bytes (first fit), and return its offset; None if there is none."""
        for i, free in enumerate(self.sizes):
            if free < size:
                continue
            offset = self.offsets[i]
            if free == size:
                del self.offsets[i], self.sizes[i]
            else:
                self.offsets[i] += size
                self.sizes[i] -= size
            return offset
        return None

    def give(self, offset: int, size: int) -> None:
        """Free a range, merging it with free neighbours."""
        i = bisect_left(self.offsets, offset)
        if i < len(self.offsets) and offset + size == self.offsets[i]:
            size += self.sizes[i]
            del self.offsets[i], self.sizes[i]
        if i and self.offsets[i - 1] + self.sizes[i - 1] == offset:
            self.sizes[i - 1] += size
            return
        self.offsets.insert(i, offset)
        self.sizes.insert(i, size)


@dataclass(slots=True, eq=False)
class Range:
    """A range of a block in use. ``host`` is its address on the host, or 0; ``view`` the bytes as a memoryview, or None."""

    block: Block
    offset: int
    size: int
    host: int
    view: memoryview | None

    @property
    def address(self) -> int:
        return self.block.address + self.offset


class MemoryTypes:
    """The memory types of a device that are used: ``arrays`` for kernels' data, ``staging`` for transfers between host and device."""

    def __init__(self, physical: ffi.CData, kind: str, mappable: bool | None) -> None:
        properties = ffi.new("VkPhysicalDeviceMemoryProperties*")
        lib.vkGetPhysicalDeviceMemoryProperties(physical, properties)
        self.flags = [properties.memoryTypes[i].propertyFlags for i in range(properties.memoryTypeCount)]
        heaps = [properties.memoryHeaps[i].size for i in range(properties.memoryHeapCount)]
        self.heap_sizes = [heaps[properties.memoryTypes[i].heapIndex] for i in range(properties.memoryTypeCount)]
        # A discrete GPU may offer mapped local memory too, but the host reads it uncached, far slower than through staging.
        unified = kind in ("cpu", "integrated") if mappable is None else mappable
        self.array_wishes = [_LOCAL | _MAPPABLE | _CACHED, _LOCAL | _MAPPABLE] if unified else []
        self.array_wishes += [_LOCAL, _MAPPABLE]

    def arrays(self, allowed: int) -> int:
        """Return the type for kernels' data among those in the bit mask ``allowed``."""
        return self._first(allowed, self.array_wishes)

    def staging(self, allowed: int) -> int:
        """Return the type for staging and argument blocks."""
        return self._first(allowed, [_MAPPABLE | _CACHED, _MAPPABLE])

    def _first(self, allowed: int, wishes: list[int]) -> int:
        for wish in wishes:
            for index, flags in enumerate(self.flags):
                if allowed >> index & 1 and flags & wish == wish:
                    return index
        raise SpirogradRuntimeError("the Vulkan device has no memory type that fits")


class Allocator:
    """An allocator of `Range` objects. Not thread safe: the device's lock guards it. ``used`` counts the bytes in use.

    ``first_block``: the bytes of the first block; each further block has twice as many as the one before.
    """

    def __init__(
        self,
        device: ffi.CData,
        functions: SimpleNamespace,
        types: MemoryTypes,
        max_allocation: int,
        cap: int | None,
        first_block: int = FIRST_BLOCK,
    ) -> None:
        self.device = device
        self.fn = functions
        self.types = types
        self.max_allocation = max_allocation
        self.cap = cap
        self.used = 0
        self.blocks: list[Block] = []
        self._next_block = first_block
        self.mapped = bool(types.flags[types.arrays(0xFFFFFFFF)] & _MAPPABLE == _MAPPABLE and types.array_wishes[0] & _MAPPABLE)

    def take(self, nbytes: int) -> Range:
        """Return a range of at least ``nbytes``, contents undefined.

        Raises OutOfDeviceMemory with the bytes asked for and the limit.
        """
        size = max(ALIGNMENT, -(-nbytes // ALIGNMENT) * ALIGNMENT)
        self._check_limits(nbytes, size)
        dedicated = size > FIRST_BLOCK // DEDICATED_PART
        if not dedicated:
            for block in self.blocks:
                offset = None if block.dedicated else block.take(size)
                if offset is not None:
                    return self._range(block, offset, size)
        if dedicated:
            block = self.create_block(size, dedicated=True)
        else:
            block = self._shared_block(size)
        self.blocks.append(block)
        offset = block.take(size)
        assert offset is not None  # A fresh block is large enough by construction.
        return self._range(block, offset, size)

    def _check_limits(self, nbytes: int, size: int) -> None:
        if size > self.max_allocation:
            most = f"the Vulkan device allows at most {self.max_allocation} bytes in one array; split it"
            raise OutOfDeviceMemory(f"cannot allocate {nbytes} bytes: {most}")
        if self.cap is not None and self.used + size > self.cap:
            raise OutOfDeviceMemory(over_limit(nbytes, self.used, self.cap))

    def _shared_block(self, size: int) -> Block:
        """Return a block for many ranges; where memory is short, one that is just large enough."""
        wanted = min(max(self._next_block, size), self.max_allocation)
        try:
            block = self.create_block(wanted)
        except OutOfDeviceMemory:
            return self.create_block(size)
        self._next_block = min(2 * self._next_block, LARGEST_BLOCK)
        return block

    def _range(self, block: Block, offset: int, size: int) -> Range:
        self.used += size
        host = block.host + offset if block.host else 0
        view = memoryview(ffi.buffer(ffi.cast("char*", host), size)).cast("B") if host else None
        return Range(block, offset, size, host, view)

    def give(self, part: Range) -> None:
        """Free a range that no pending work uses. Empty blocks are released, except for one spare block."""
        block = part.block
        if block.imported:
            self.blocks.remove(block)
            self.destroy_block(block)
            return
        block.give(part.offset, part.size)
        self.used -= part.size
        if block.empty and (block.dedicated or any(b is not block and b.empty and not b.dedicated for b in self.blocks)):
            self.blocks.remove(block)
            self.destroy_block(block)

    def release_empty(self) -> int:
        """Release all empty blocks; return their number."""
        empty = [block for block in self.blocks if block.empty]
        for block in empty:
            self.blocks.remove(block)
            self.destroy_block(block)
        return len(empty)

    def create_block(self, size: int, dedicated: bool = False, staging: bool = False) -> Block:
        """Allocate memory with a buffer over it, mapped if the host can. Raises OutOfDeviceMemory."""
        fn, device = self.fn, self.device
        buffer = ffi.new("VkBuffer*")
        buffer_info = struct("VkBufferCreateInfo", size=size, usage=_USAGE)
        check(fn.CreateBuffer(device, buffer_info, NULL, buffer), f"create a buffer of {size} bytes")
        memory = ffi.new("VkDeviceMemory*")
        try:
            needs = ffi.new("VkMemoryRequirements*")
            fn.GetBufferMemoryRequirements(device, buffer[0], needs)
            index = self.types.staging(needs.memoryTypeBits) if staging else self.types.arrays(needs.memoryTypeBits)
            limit = min(self.types.heap_sizes[index], self.max_allocation)
            if needs.size > limit:
                most = f"the Vulkan device allows at most {limit} bytes at once; split the array"
                raise OutOfDeviceMemory(f"cannot allocate {needs.size} bytes: {most}")
            own = struct("VkMemoryDedicatedAllocateInfo", buffer=buffer[0]) if dedicated else NULL
            flags = struct("VkMemoryAllocateFlagsInfo", pNext=own, flags=_ADDRESS_FLAG)
            info = struct("VkMemoryAllocateInfo", pNext=flags, allocationSize=needs.size, memoryTypeIndex=index)
            check(fn.AllocateMemory(device, info, NULL, memory), f"allocate {size} bytes")
            check(fn.BindBufferMemory(device, buffer[0], memory[0], 0), "bind memory to a buffer")
            host = 0
            if staging or self.mapped:
                pointer = ffi.new("void**")
                check(fn.MapMemory(device, memory[0], 0, size, 0, pointer), f"map {size} bytes")
                host = int(ffi.cast("uintptr_t", pointer[0]))
        except BaseException:
            fn.DestroyBuffer(device, buffer[0], NULL)
            fn.FreeMemory(device, memory[0], NULL)
            raise
        address = fn.GetBufferDeviceAddress(device, struct("VkBufferDeviceAddressInfo", buffer=buffer[0]))
        return Block(buffer[0], memory[0], size, address, host, dedicated, [0], [size])

    def import_metal(self, metal_buffer: int, offset: int, nbytes: int) -> Range:
        """Return a range over bytes of an `id<MTLBuffer>`, which is not mapped, and not counted by ``used``."""
        fn, device, size = self.fn, self.device, -(-(offset + nbytes) // 4) * 4
        buffer, memory = ffi.new("VkBuffer*"), ffi.new("VkDeviceMemory*")
        info, kept = metal_memory.buffer_info(size, _USAGE)
        check(fn.CreateBuffer(device, info, NULL, buffer), f"create a buffer over {size} bytes of Metal")
        try:
            needs = ffi.new("VkMemoryRequirements*")
            fn.GetBufferMemoryRequirements(device, buffer[0], needs)
            index = self.types.arrays(needs.memoryTypeBits & metal_memory.memory_types(device, metal_buffer))
            flags = struct("VkMemoryAllocateFlagsInfo", flags=_ADDRESS_FLAG)
            chain, kept_import = metal_memory.import_info(metal_buffer, flags)
            allocation = struct("VkMemoryAllocateInfo", pNext=chain, allocationSize=needs.size, memoryTypeIndex=index)
            check(fn.AllocateMemory(device, allocation, NULL, memory), "import a Metal buffer")
            check(fn.BindBufferMemory(device, buffer[0], memory[0], 0), "bind a Metal buffer")
        except BaseException:
            fn.DestroyBuffer(device, buffer[0], NULL)
            fn.FreeMemory(device, memory[0], NULL)
            raise
        del kept, kept_import
        address = fn.GetBufferDeviceAddress(device, struct("VkBufferDeviceAddressInfo", buffer=buffer[0]))
        block = Block(buffer[0], memory[0], size, address, 0, True, [], [], imported=True)
        self.blocks.append(block)
        return Range(block, offset, nbytes, 0, None)

    def destroy_block(self, block: Block) -> None:
        """Release a block (this unmaps it too)."""
        self.fn.DestroyBuffer(self.device, block.buffer, NULL)
        self.fn.FreeMemory(self.device, block.memory, NULL)

    def close(self) -> None:
        """Destroy all blocks; nothing may be pending."""
        for block in self.blocks:
            self.destroy_block(block)
        self.blocks.clear()


def clear_host(part: Range) -> None:
    """Set a mapped range to zero from the host."""
    ctypes.memset(part.host, 0, part.size)
