"""Recognition of devices that execute nothing: drivers of GPUs in front of a null device, with which a machine compiles kernels for a GPU
that it does not have. Submissions succeed, and memory keeps what it held, so that numbers that the host reads mean nothing.
"""

from __future__ import annotations

from spirograd.base.device import Device
from spirograd.base.errors import SpirogradRuntimeError

_NBYTES = 16
_WORDS = (0x5EED5EED, 0x0BAD0BAD)


def refuse_null_device(device: Device) -> None:
    """Raise SpirogradRuntimeError if ``device`` executes nothing. Waits for the device."""
    if all(_filled(device, word) for word in _WORDS):
        return
    raise SpirogradRuntimeError(
        f"{device.info.name} did not execute what was submitted: its driver ({device.info.driver}) has a null device, which only compiles. "
        "Run the program on another device; `spirograd survey` compiles its kernels for this one"
    )


def _filled(device: Device, word: int) -> bool:
    """Return whether memory holds ``word`` after the device has filled it."""
    buffer = device.allocate(_NBYTES)
    try:
        found = bytearray(_NBYTES)
        device.fill(buffer, 0, _NBYTES, word)
        device.download(buffer, 0, memoryview(found))
    finally:
        device.free(buffer)
    return bytes(found) == word.to_bytes(4, "little") * (_NBYTES // 4)
