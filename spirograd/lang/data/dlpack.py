"""DLPack capsules for memory of a GPU.

NumPy makes them, for arrays that it must not read; this module then corrects the device. The layout of the structures is defined by
dlpack.h: DLManagedTensor, and DLManagedTensorVersioned of DLPack 1.
"""

from __future__ import annotations

import ctypes
from ctypes import c_int32, c_uint32, c_uint64, c_void_p
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from typing_extensions import CapsuleType

    from spirograd.base.arrays import ArrayInterface, StridedInterface

CUDA, ROCM = 2, 10  # DLDeviceType
_COPIED = 1 << 1  # DLPACK_FLAG_BITMASK_IS_COPIED
_NAMES = (b"dltensor", b"dltensor_versioned")


class _Placed(ctypes.Structure):
    """The first fields of a DLTensor: `_Managed` begins with one, `_Versioned` ends with one."""

    _fields_ = [("data", c_void_p), ("device_type", c_int32), ("device_id", c_int32)]


class _Versioned(ctypes.Structure):
    _fields_ = [
        ("major", c_uint32),
        ("minor", c_uint32),
        ("context", c_void_p),
        ("deleter", c_void_p),
        ("flags", c_uint64),
        ("tensor", _Placed),
    ]


class NumpyMemory:
    """Memory as NumPy takes it; its arrays keep the owner alive."""

    def __init__(self, interface: ArrayInterface | StridedInterface, owner: object) -> None:
        self.__array_interface__ = interface
        self._owner = owner


_is_valid = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.py_object, ctypes.c_char_p)(("PyCapsule_IsValid", ctypes.pythonapi))
_pointer = ctypes.PYFUNCTYPE(c_void_p, ctypes.py_object, ctypes.c_char_p)(("PyCapsule_GetPointer", ctypes.pythonapi))
TAKES_VERSION = np.lib.NumpyVersion(np.__version__) >= "2.1.0"


def capsule(
    owner: object, interface: ArrayInterface, device: tuple[int, int], max_version: tuple[int, int] | None = None, copied: bool = False
) -> CapsuleType:
    """Return a capsule of the array that ``interface`` describes like ``__array_interface__``; ``owner`` lives as long as the consumer uses
    it.

    ``max_version``: the newest protocol version that the consumer knows. ``copied``: whether the memory belongs to the consumer alone.
    """
    address, _ = interface["data"]
    # Some versions of NumPy reject arrays without an address, such as those without elements.
    array = np.asarray(NumpyMemory(interface, owner)) if address else np.empty(interface["shape"], interface["typestr"])
    exported = array.__dlpack__(max_version=max_version) if TAKES_VERSION else array.__dlpack__()
    plain, versioned = _NAMES
    if _is_valid(exported, plain):
        tensor = _Placed.from_address(_pointer(exported, plain))
    else:
        managed = _Versioned.from_address(_pointer(exported, versioned))
        managed.flags |= _COPIED if copied else 0
        tensor = managed.tensor
    tensor.device_type, tensor.device_id = device
    tensor.data = address or None  # Without elements NumPy inserts an address of its own.
    return exported
