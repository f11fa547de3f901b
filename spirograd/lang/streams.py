"""Streams and events of the session, and streams of other libraries."""

from __future__ import annotations

import contextlib
import threading
import weakref
from collections.abc import Container
from contextlib import AbstractContextManager
from types import TracebackType
from typing import TYPE_CHECKING

from spirograd.base.device import SharesMemory
from spirograd.base.errors import SpirogradRuntimeError, SpirogradRuntimeTypeError, SpirogradTypeError, render
from spirograd.lang import context
from spirograd.lang.scalar import describe, is_number

if TYPE_CHECKING:
    from spirograd.base.protocols import SideStream, StreamOrder
    from spirograd.lang.session_protocol import Session

# A device gives all of its work to one stream at a time, so blocks of several threads run one after the other.
_blocks = threading.RLock()


class Stream:
    """A stream: work that is done in the order in which it is given, at the same time as that of other streams.

    `create_stream` makes one. ``kernel(..., stream=s)`` (Quadrants' ``qd_stream=s`` too) launches there, and in ``with s:`` all launches,
    fills and copies of the thread go there. Work of several streams that uses the same memory is done in the order of the calls, and so are
    reads by Python and `sync`: the results are those of one stream. On back ends with one queue (wgpu, the
    CPU, the interpreter) streams save no time.

    ``Stream(stream)`` is a stream of another library on CUDA or AMD's GPUs: in ``with sg.Stream(stream):`` all work of the session goes
    there. ``stream``: one of torch or CuPy, an object with the method ``__cuda_stream__``, or the driver's handle as an integer. It stays
    the other library's, and must live until the block ends. The work in the block comes after what both were given before it, and before
    what the session is given after it; nothing waits on the host. Blocks nest. Raises SpirogradRuntimeError on other back ends.
    """

    def __init__(self, stream: object) -> None:
        self.handle = _handle(stream)
        self._ordinal: int | None = getattr(stream, "device_index", None)  # Of torch.
        self._entered: list[tuple[SharesMemory, int]] = []

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

    def synchronize(self) -> None:
        """Wait until all work of the stream is complete. Print the output of kernels, and raise their errors, as `sync` does."""
        with self:
            context.session().sync()

    def destroy(self) -> None:
        """Release the stream after its work; it stands for the session's own stream from now on. Another library's stream is not
        destroyed."""


class _OwnStream(Stream):
    """A stream of the session. ``side``: None on back ends with one queue, and after `destroy`."""

    def __init__(self, session: Session, manual: bool) -> None:
        self._session = session
        order = session.streams
        self.side: SideStream | None = None if order is None else order.new(manual)
        self.handle = self.side.handle if self.side is not None and isinstance(self.side.handle, int) else 0
        self._opened: list[AbstractContextManager[None]] = []
        if order is not None and self.side is not None:
            weakref.finalize(self, order.dropped.append, self.side).atexit = False

    def __repr__(self) -> str:
        return "Stream()" if self.side is None else f"Stream({self.side.number})"

    def _of_session(self) -> Session:
        session = context.session()
        if session is not self._session:
            raise SpirogradRuntimeError("this stream belongs to an earlier `init`: make streams after `sg.init`")
        return session

    def __enter__(self) -> Stream:
        order = self._of_session().streams
        block = contextlib.nullcontext() if self.side is None or order is None else order.on(self.side)
        block.__enter__()
        self._opened.append(block)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None) -> None:
        self._opened.pop().__exit__(None, None, None)

    def synchronize(self) -> None:
        session = self._of_session()
        order = session.streams
        if self.side is None or order is None or session.reports_pending:
            session.sync()
        else:
            order.device.finish_stream(self.side.handle)

    def destroy(self) -> None:
        if self.side is not None:
            side, self.side = self.side, None
            if context.has_session() and context.session() is self._session:
                order = self._session.streams
                assert order is not None
                order.delete(side)


class Event:
    """A moment in the work of a stream. `create_event` makes one.

    Streams of the session are ordered by the memory that their work uses; events are for streams of ``create_stream(manual=True)``, and for
    waits of the host for part of the work. They do nothing on back ends with one queue, where all work is in order.

    Methods raise SpirogradRuntimeError after another `init`, and SpirogradTypeError for what is no stream.
    """

    def __init__(self) -> None:
        self._session = context.session()
        self._event: object = None

    def __enter__(self) -> Event:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None) -> None:
        self.destroy()

    def record(self, stream: Stream | None = None) -> None:
        """Record the event: it is complete after the work of ``stream`` so far (None: the session's own stream)."""
        order, handle = self._order(), _side_handle(stream)
        if order is not None:
            self._event = order.device.record_event(handle)

    def wait(self, stream: Stream | None = None) -> None:
        """Have later work of ``stream`` (None: the session's own) come after the event. An event that was not recorded is complete."""
        order, handle = self._order(), _side_handle(stream)
        if order is not None and self._event is not None:
            order.device.wait_for_event(self._event, handle)

    def synchronize(self) -> None:
        """Wait until the event is complete."""
        order = self._order()
        if order is not None and self._event is not None:
            order.device.finish_event(self._event)
        elif order is None:
            self._session.sync()

    def destroy(self) -> None:
        """Release the event; it behaves like one that was not recorded."""
        self._event = None

    def _order(self) -> StreamOrder[SideStream] | None:
        if context.session() is not self._session:
            raise SpirogradRuntimeError("this event belongs to an earlier `init`: make events after `sg.init`")
        return self._session.streams


def create_stream(manual: bool = False) -> Stream:
    """Return a new stream of the session.

    Its work comes after work of other streams that uses the same memory. ``manual``: it does not wait for others by itself, only for
    events: `Event.wait`. Others still wait for it. Raises SpirogradRuntimeError before `init`.
    """
    return _OwnStream(context.session(), manual)


def create_event() -> Event:
    """Return a new event, which is not recorded yet. Raises SpirogradRuntimeError before `init`."""
    return Event()


def taken_from(kwargs: dict[str, object], parameters: Container[str]) -> AbstractContextManager[object] | None:
    """Run the launches of a block on the stream among the arguments of a call, which is removed from them.

    Returns None if there is none; parameters of kernels with this name are left alone.
    """
    for name in ("qd_stream", "stream"):
        if name in kwargs and name not in parameters:
            stream = kwargs.pop(name)
            if stream is not None and not isinstance(stream, Stream):
                hint = "make one with `sg.create_stream()`, or wrap another library's: `sg.Stream(stream)`"
                raise SpirogradRuntimeTypeError(render(f"`{name}` takes a stream, got {describe(stream)}", None, hint))
            return contextlib.nullcontext() if stream is None else stream
    return None


def _side_handle(stream: Stream | None) -> object:
    if stream is None:
        return None
    if not isinstance(stream, Stream):
        raise SpirogradTypeError(f"expected a stream, got {describe(stream)}", None, "make it with `sg.create_stream()`")
    return stream.handle if not isinstance(stream, _OwnStream) else None if stream.side is None else stream.side.handle


def _handle(stream: object) -> int:
    """Return the driver's handle of a stream."""
    if hasattr(stream, "__cuda_stream__"):
        return int(stream.__cuda_stream__()[1])
    handle = stream if isinstance(stream, int) and is_number(stream) else getattr(stream, "cuda_stream", getattr(stream, "ptr", None))
    if not isinstance(handle, int) or isinstance(handle, bool) or handle < 0:
        hint = "pass `torch.cuda.current_stream()`, a stream of CuPy, or the handle as an integer"
        raise SpirogradTypeError(f"`Stream` takes a stream of another library, got {describe(stream)}", None, hint)
    return handle
