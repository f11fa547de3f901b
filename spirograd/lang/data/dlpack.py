"""Capsules of DLPack, for memory that NumPy cannot make them of.

The layout of the structures is that of dlpack.h: DLManagedTensor, and DLManagedTensorVersioned of DLPack 1.
"""

from __future__ import annotations

import ctypes
from ctypes import CFUNCTYPE, c_int32, c_int64, c_uint8, c_uint16, c_uint32, c_uint64, c_void_p
from typing import Any

from spirograd.base.dtypes import DType

CUDA, ROCM = 2, 10  # DLDeviceType
_CODES = {"int": 0, "uint": 1, "float": 2, "bool": 6}  # DLDataTypeCode
_VERSION = (1, 0)
_COPIED = 1 << 1  # DLPACK_FLAG_BITMASK_IS_COPIED
_NAMES = {False: b"dltensor", True: b"dltensor_versioned"}


class _Tensor(ctypes.Structure):
    _fields_ = [
        ("data", c_void_p),
        ("device_type", c_int32),
        ("device_id", c_int32),
        ("ndim", c_int32),
        ("code", c_uint8),
        ("bits", c_uint8),
        ("lanes", c_uint16),
        ("shape", ctypes.POINTER(c_int64)),
        ("strides", ctypes.POINTER(c_int64)),
        ("byte_offset", c_uint64),
    ]


class _Managed(ctypes.Structure):
    _fields_ = [("tensor", _Tensor), ("context", c_void_p), ("deleter", c_void_p)]


class _Versioned(ctypes.Structure):
    _fields_ = [
        ("major", c_uint32),
        ("minor", c_uint32),
        ("context", c_void_p),
        ("deleter", c_void_p),
        ("flags", c_uint64),
        ("tensor", _Tensor),
    ]


# By the addresses of the structures: what they point to, and the owner of the memory, until the consumer deletes them.
_alive: dict[int, tuple[Any, ...]] = {}


def _delete(managed: int) -> None:
    _alive.pop(managed, None)


def _drop(capsule: int) -> None:
    """A capsule that nobody took goes: one that was taken has another name."""
    for name in _NAMES.values():
        if _is_valid(capsule, name):
            _alive.pop(_pointer(capsule, name), None)


_DELETER, _DESTRUCTOR = CFUNCTYPE(None, c_void_p)(_delete), CFUNCTYPE(None, c_void_p)(_drop)
_is_valid = ctypes.PYFUNCTYPE(ctypes.c_int, c_void_p, ctypes.c_char_p)(("PyCapsule_IsValid", ctypes.pythonapi))
_pointer = ctypes.PYFUNCTYPE(c_void_p, c_void_p, ctypes.c_char_p)(("PyCapsule_GetPointer", ctypes.pythonapi))
_new = ctypes.PYFUNCTYPE(ctypes.py_object, c_void_p, ctypes.c_char_p, c_void_p)(("PyCapsule_New", ctypes.pythonapi))


def capsule(
    owner: Any,
    address: int,
    device: tuple[int, int],
    dtype: DType,
    shape: tuple[int, ...],
    strides: tuple[int, ...],
    versioned: bool,
    copied: bool,
) -> Any:
    """A capsule of an array: ``strides`` in elements; ``owner`` lives as long as the consumer uses the array. ``versioned``: of DLPack 1.
    ``copied``: the memory is the consumer's alone."""
    extents, steps = (c_int64 * len(shape))(*shape), (c_int64 * len(shape))(*strides)
    managed: Any = _Versioned() if versioned else _Managed()
    tensor = managed.tensor
    tensor.data, (tensor.device_type, tensor.device_id), tensor.ndim = address, device, len(shape)
    tensor.code, tensor.bits, tensor.lanes = _CODES[dtype.kind], 8 * dtype.np.itemsize, 1
    tensor.shape, tensor.strides = extents, steps
    managed.deleter = ctypes.cast(_DELETER, c_void_p)
    if versioned:
        managed.major, managed.minor = _VERSION
        managed.flags = _COPIED if copied else 0
    at = ctypes.addressof(managed)
    _alive[at] = (managed, extents, steps, owner)
    return _new(at, _NAMES[versioned], ctypes.cast(_DESTRUCTOR, c_void_p))
