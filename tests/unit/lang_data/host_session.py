"""A session whose memory is NumPy arrays, so that data can be tested without a device."""

import numpy as np

from spirograd.lang.language_options import LanguageOptions


class HostBuffer:
    def __init__(self, nbytes):
        self.bytes = np.zeros(nbytes + 64, np.uint8)


class HostDevice:
    def __init__(self, addressable=True):
        self.addressable = addressable

    def host_view(self, buffer):
        return memoryview(buffer.bytes) if self.addressable else None

    def synchronize(self):
        pass


class HostAllocation:
    def __init__(self, device, nbytes):
        self.device, self.nbytes, self.generation = device, nbytes, 0
        self.buffer = HostBuffer(nbytes)
        self.address = 0x1000  # no address of the host
        self.transfers = 0
        self.shared = set()
        self.sharing = None

    def read_into(self, offset, out):
        assert offset >= 0 and offset + out.nbytes <= self.nbytes
        self.transfers += 1
        out.cast("B")[:] = memoryview(self.buffer.bytes)[offset : offset + out.nbytes]

    def host_bytes(self):
        return None

    def unpack(self, form, offset):
        assert offset >= 0 and offset + form.size <= self.nbytes
        self.transfers += 1
        return form.unpack_from(self.buffer.bytes, offset)

    def write(self, offset, data, part=""):
        assert offset >= 0 and offset + data.nbytes <= self.nbytes
        self.transfers += 1
        self.generation += 1
        memoryview(self.buffer.bytes)[offset : offset + data.nbytes] = data.cast("B")

    def fill(self, offset, nbytes, word, part=""):
        assert offset % 4 == 0 and nbytes % 4 == 0 and offset + nbytes <= self.nbytes
        self.generation += 1
        self.buffer.bytes[offset : offset + nbytes].view(np.uint32)[:] = word

    def copy_from(self, source, nbytes, offset=0, source_offset=0, part=""):
        self.generation += 1
        self.buffer.bytes[offset : offset + nbytes] = source.buffer.bytes[source_offset : source_offset + nbytes]

    def lend(self, borrower):
        """NumPy keeps the memory for as long as it is used."""

    def share(self, part=""):
        self.shared.add(part)

    def free(self):
        self.nbytes = 0


class HostMemory:
    def __init__(self, addressable):
        self.device = HostDevice(addressable)

    def allocate(self, nbytes):
        return HostAllocation(self.device, nbytes)


class HostSession:
    def __init__(self, addressable=True):
        self.memory = HostMemory(addressable)
        self.device = self.memory.device
        self.language = LanguageOptions()
        self.field_memory = self.memory.allocate

    def transfers_by_kernel(self, allocation):
        return False

    def raise_reported(self):
        pass
