"""`Stream`: launches on a stream of another library."""

from __future__ import annotations

import contextlib
import threading
from types import TracebackType
from typing import Any

from spirograd.base.errors import SpirogradRuntimeError, SpirogradTypeError
from spirograd.lang import context
from spirograd.lang.scalar import describe, is_number

# A device gives all of its work to one stream at a time, so blocks of several threads come one after the other.
_blocks = threading.RLock()


class Stream:
    """A stream of another library on CUDA or AMD's GPUs: in ``with sg.Stream(stream):`` all work of the session goes there.

    ``stream``: a stream of torch or CuPy, an object with the method ``__cuda_stream__``, or the driver's handle as an integer. It stays the
    other library's, and must live until the block ends. The work in the block comes after what both were given before it, and before what
    the session is given after it; nothing waits on the host. Blocks nest. Raises SpirogradRuntimeError on other back ends.
    """

    def __init__(self, stream: Any) -> None:
        self.handle = _handle(stream)
        self._ordinal: int | None = getattr(stream, "device_index", None)  # of torch
        self._entered: list[tuple[Any, int]] = []

    def __repr__(self) -> str:
        return f"Stream({self.handle:#x})"

    def __enter__(self) -> Stream:
        session = context.session()
        device = session.sharing
        if device is None:
            raise SpirogradRuntimeError(f"`Stream` works on `sg.cuda` and `sg.amdgpu`; this session runs on `{session.arch}`")
        if self._ordinal not in (None, device.ordinal):
            raise SpirogradRuntimeError(f"this stream is one of GPU {self._ordinal}, and the session runs on GPU {device.ordinal}")
        _blocks.acquire()
        try:
            self._entered.append((device, device.switch(self.handle)))
        except BaseException:
            _blocks.release()
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None) -> None:
        device, before = self._entered.pop()
        try:
            if context.has_session() and context.session().sharing is device:
                with contextlib.suppress(SpirogradRuntimeError) if error is not None else contextlib.nullcontext():
                    device.switch(before)
        finally:
            _blocks.release()


def _handle(stream: Any) -> int:
    """The driver's handle of a stream."""
    if hasattr(stream, "__cuda_stream__"):
        return int(stream.__cuda_stream__()[1])
    found = stream if isinstance(stream, int) and is_number(stream) else getattr(stream, "cuda_stream", getattr(stream, "ptr", None))
    if not isinstance(found, int) or isinstance(found, bool) or found < 0:
        hint = "pass `torch.cuda.current_stream()`, a stream of CuPy, or the handle as an integer"
        raise SpirogradTypeError(f"`Stream` takes a stream of another library, got {describe(stream)}", None, hint)
    return found
