"""Calls by XLA: functions of Python as handlers of XLA's foreign function interface, without a copy and without compiled code.

The structures are those of `xla/ffi/api/c_api.h`, which jaxlib ships (version 0.3). Each begins with its size, which is compared: a
version with smaller structures is an error, and larger ones only append.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import TYPE_CHECKING, Union

import numpy as np

from spirograd.lang.data.foreign_buffers import DeviceBuffer, HostBuffer

if TYPE_CHECKING:
    from _ctypes import CFuncPtr

    from typing_extensions import Self

_MAJOR = 0  # XLA_FFI_API_MAJOR
_EXECUTE = 3  # XLA_FFI_ExecutionStage_EXECUTE
_METADATA = 1  # XLA_FFI_Extension_Metadata
_INTERNAL = 13  # XLA_FFI_Error_Code_INTERNAL
# The XLA_FFI_DataType of each type that kernels can have.
_TYPES = {
    1: np.dtype(np.bool_), 2: np.dtype(np.int8), 3: np.dtype(np.int16), 4: np.dtype(np.int32), 5: np.dtype(np.int64),
    6: np.dtype(np.uint8), 7: np.dtype(np.uint16), 8: np.dtype(np.uint32), 9: np.dtype(np.uint64),
    10: np.dtype(np.float16), 11: np.dtype(np.float32), 12: np.dtype(np.float64),
}  # fmt: skip

_Address = ctypes.c_void_p


class _Structure(ctypes.Structure):
    """A structure of XLA. ``size``: its bytes, without what later versions append."""

    @classmethod
    def at(cls, address: int) -> Self:
        structure = cls.from_address(address)
        structure.check()
        return structure

    def check(self) -> None:
        if self.size < self.least():
            sizes = f"{self.size} bytes, expected {self.least()}"
            raise RuntimeError(f"`{type(self).__name__}` of XLA has {sizes}: this version of JAX is not supported")

    @classmethod
    def least(cls) -> int:
        place = getattr(cls, cls._fields_[-1][0])
        return int(place.offset + place.size)


class Extension(_Structure):
    """XLA_FFI_Extension_Base, and what follows it in XLA_FFI_Metadata_Extension."""

    _fields_ = (("size", ctypes.c_size_t), ("kind", ctypes.c_int), ("next", _Address), ("metadata", _Address))


class Metadata(_Structure):
    """XLA_FFI_Metadata with its XLA_FFI_Api_Version."""

    _fields_ = (
        ("size", ctypes.c_size_t), ("version_size", ctypes.c_size_t), ("version_extension", _Address), ("major", ctypes.c_int),
        ("minor", ctypes.c_int), ("traits", ctypes.c_uint32),
    )  # fmt: skip


class Api(_Structure):
    """XLA_FFI_Api up to the functions that are used."""

    _fields_ = (
        ("size", ctypes.c_size_t), ("extension", _Address), ("version_size", ctypes.c_size_t), ("version_extension", _Address),
        ("major", ctypes.c_int), ("minor", ctypes.c_int), ("internal", _Address), ("error_create", _Address),
        ("error_message", _Address), ("error_destroy", _Address), ("register", _Address), ("stream_get", _Address),
    )  # fmt: skip


class List(_Structure):
    """XLA_FFI_Args, XLA_FFI_Rets."""

    _fields_ = (
        ("size", ctypes.c_size_t), ("extension", _Address), ("count", ctypes.c_int64), ("types", ctypes.POINTER(ctypes.c_int)),
        ("items", ctypes.POINTER(_Address)),
    )  # fmt: skip


class Attributes(_Structure):
    """XLA_FFI_Attrs."""

    _fields_ = (
        ("size", ctypes.c_size_t), ("extension", _Address), ("count", ctypes.c_int64), ("types", ctypes.POINTER(ctypes.c_int)),
        ("names", ctypes.POINTER(_Address)), ("items", ctypes.POINTER(_Address)),
    )  # fmt: skip


class Scalar(ctypes.Structure):
    """XLA_FFI_Scalar."""

    _fields_ = (("dtype", ctypes.c_int), ("value", ctypes.POINTER(ctypes.c_int64)))


class Frame(_Structure):
    """XLA_FFI_CallFrame."""

    _fields_ = (
        ("size", ctypes.c_size_t), ("extension", _Address), ("api", _Address), ("context", _Address), ("stage", ctypes.c_int),
        ("args", List), ("rets", List), ("attrs", Attributes),
    )  # fmt: skip


class BufferOfXla(_Structure):
    """XLA_FFI_Buffer."""

    _fields_ = (
        ("size", ctypes.c_size_t), ("extension", _Address), ("dtype", ctypes.c_int), ("data", _Address), ("rank", ctypes.c_int64),
        ("dims", ctypes.POINTER(ctypes.c_int64)),
    )  # fmt: skip


class _ErrorArguments(_Structure):
    """XLA_FFI_Error_Create_Args."""

    _fields_ = (("size", ctypes.c_size_t), ("extension", _Address), ("message", ctypes.c_char_p), ("code", ctypes.c_int))


class _StreamArguments(_Structure):
    """XLA_FFI_Stream_Get_Args."""

    _fields_ = (("size", ctypes.c_size_t), ("extension", _Address), ("context", _Address), ("stream", _Address))


_Function = ctypes.CFUNCTYPE(_Address, _Address)
# A function that a handler runs: takes the number of the call, the arguments, the results. Memory of a device comes with its stream.
Buffer = Union[HostBuffer, DeviceBuffer]
Run = Callable[[int, list[Buffer], list[Buffer]], None]


def handler(run: Run, on_device: bool) -> CFuncPtr:
    """Return a function of C for `jax.ffi.register_ffi_target`: it has the attribute `call`, an integer, and must not be freed.

    ``on_device``: for CUDA, where the buffers are `DeviceBuffer`; else `HostBuffer`. What ``run`` raises becomes an error of XLA.
    """

    def handle(address: int) -> int | None:
        frame = Frame.from_address(address)
        try:
            frame.check()
            if frame.extension and (extension := Extension.from_address(frame.extension)).kind == _METADATA:
                _tell_version(Api.at(frame.api), Metadata.at(extension.metadata))
            elif frame.stage == _EXECUTE:
                stream = _stream(frame) if on_device else None
                run(_number(frame), _buffers(frame.args, stream), _buffers(frame.rets, stream))
            return None
        except BaseException as error:  # one that passed here would be a call without an error
            return _error(frame, f"{type(error).__name__}: {error}")

    return _Function(handle)


def address_of(function: CFuncPtr) -> int:
    """Return the address of a `handler`."""
    address: int = ctypes.cast(function, _Address).value or 0
    return address


def _tell_version(api: Api, metadata: Metadata) -> None:
    """Set the version of the handler to the version of XLA, which accepts no other.

    Minor versions append to structures, which `_Structure.check` lets pass; another major version may have others."""
    if api.major != _MAJOR:
        raise RuntimeError(f"XLA has version {api.major} of its interface for handlers, expected {_MAJOR}: this JAX is not supported")
    metadata.major, metadata.minor, metadata.traits = api.major, api.minor, 0


def _number(frame: Frame) -> int:
    frame.attrs.check()
    if frame.attrs.count != 1:
        raise RuntimeError(f"a call of a kernel has one attribute, got {frame.attrs.count}")
    return int(Scalar.from_address(frame.attrs.items[0]).value[0])


def _buffers(given: List, stream: int | None) -> list[Buffer]:
    given.check()
    return [_buffer(BufferOfXla.at(given.items[k]), stream) for k in range(given.count)]


def _buffer(buffer: BufferOfXla, stream: int | None) -> Buffer:
    dtype = _TYPES.get(buffer.dtype)
    if dtype is None:
        raise RuntimeError(f"XLA passes a buffer of the type with the number {buffer.dtype}, which kernels do not have")
    shape = tuple(buffer.dims[: buffer.rank])
    if stream is None:
        return HostBuffer.at(buffer.data or 0, dtype, shape)
    return DeviceBuffer(buffer.data or 0, dtype, shape, stream)


def _stream(frame: Frame) -> int:
    given = _StreamArguments(_StreamArguments.least(), None, frame.context, None)
    error = _Function(Api.at(frame.api).stream_get)(ctypes.addressof(given))
    if error:
        raise RuntimeError("XLA has no stream for this call")
    return int(given.stream or 0)


def _error(frame: Frame, message: str) -> int | None:
    given = _ErrorArguments(_ErrorArguments.least(), None, message.encode("utf-8", "replace"), _INTERNAL)
    api = Api.from_address(frame.api)
    error: int | None = _Function(api.error_create)(ctypes.addressof(given))
    return error
