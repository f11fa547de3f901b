"""A device in host memory whose "kernels" are Python callables: for tests of the runtime without any back end."""

import ctypes
import struct

from spirograd.base.artifact import ArgBlock, CompiledKernel, Slot, TaskInfo
from spirograd.base.caps import Capabilities
from spirograd.base.device import Buffer, DeviceInfo
from spirograd.base.errors import OutOfDeviceMemory


class FakeDevice:
    def __init__(self, mappable=True, limit=1 << 40):
        self.info = DeviceInfo("fake", "fake", "0")
        self.caps = Capabilities(target_name="interpreter")
        self.mappable = mappable
        self.limit = limit
        self.live = {}
        self.launches = []
        self.syncs = 0

    def allocate(self, nbytes, zeroed=True):
        size = max(16, (nbytes + 15) & ~15)
        if sum(b.nbytes for b, _ in self.live.values()) + size > self.limit:
            raise OutOfDeviceMemory(f"{size} bytes wanted")
        raw = (ctypes.c_char * size)()
        buffer = Buffer(size, ctypes.addressof(raw), raw)
        self.live[buffer.address] = (buffer, raw)
        return buffer

    def free(self, buffer):
        del self.live[buffer.address]

    def _bytes(self, buffer):
        return memoryview(buffer.handle).cast("B")

    def upload(self, buffer, offset, data):
        self._bytes(buffer)[offset : offset + len(data)] = data

    def download(self, buffer, offset, out):
        out[:] = self._bytes(buffer)[offset : offset + len(out)]

    def fill(self, buffer, offset, nbytes, word):
        assert offset + nbytes <= buffer.nbytes
        self._bytes(buffer)[offset : offset + nbytes] = struct.pack("<I", word) * (nbytes // 4)

    def copy(self, target, target_offset, source, source_offset, nbytes):
        self._bytes(target)[target_offset : target_offset + nbytes] = bytes(self._bytes(source)[source_offset : source_offset + nbytes])

    def host_view(self, buffer):
        return self._bytes(buffer) if self.mappable else None

    def wrap(self, address, nbytes):
        return None

    def load(self, kernel):
        return kernel

    def launch(self, executable, block, counts):
        self.launches.append((executable.name, bytes(block), counts))
        if executable.run is not None:
            executable.run(bytes(block), self)

    def synchronize(self):
        self.syncs += 1

    def close(self):
        self.live.clear()

    def words(self, address):
        """The buffer at ``address`` as 32-bit words."""
        return self._bytes(self.live[address][0]).cast("I")


def kernel(slots=(), fmt="<", name="k", **fields):
    """A CompiledKernel of the given slots; offsets are filled in from the format by the caller."""
    fields.setdefault("tasks", (TaskInfo("t", "serial", "main", 0),))
    return CompiledKernel(name, "interpreter", name, ArgBlock(tuple(slots), fmt, struct.calcsize(fmt)), **fields)


def slot(kind, index=0, **fields):
    return Slot(kind, index, **fields)
