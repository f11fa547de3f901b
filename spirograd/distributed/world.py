"""The processes of a program: `init`, the identity of this process, and the propagation of errors to all processes."""

from __future__ import annotations

import atexit
import contextlib
import hashlib
import logging
import os
from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar

import numpy as np

from spirograd import api
from spirograd.base import knobs
from spirograd.base.errors import SpirogradError, SpirogradRuntimeError, SpirogradValueError, render
from spirograd.distributed import launchers, memory_numbers, open_transfers
from spirograd.distributed.launchers import ProcessPlace
from spirograd.distributed.mpi_transport import MpiTransport
from spirograd.distributed.torch_transport import TorchTransport
from spirograd.distributed.transport import SingleProcess, Transport, TransportFailure
from spirograd.lang import context

logger = logging.getLogger("spirograd")

T = TypeVar("T")

# Transports by the name that `init` takes.
_TRANSPORTS: dict[str, Callable[[ProcessPlace, float], Transport]] = {
    "single": lambda place, timeout: SingleProcess(timeout),
    "torch": TorchTransport,
    "mpi": lambda place, timeout: MpiTransport(timeout),
}
_transport: Transport | None = None


def init(
    arch: str | Sequence[str] | None = None,
    *,
    device: int | str | None = None,
    transport: str | None = None,
    timeout: float = 300.0,
    **options: object,
) -> None:
    """Join the other processes of the program, and start a session: `sg.init(arch, **options)`, on a device of this process's own.

    ``device``: by default the number of this process on its machine, as given by the launcher (such as `LOCAL_RANK` of torchrun); processes
    on CPUs divide the cores. ``transport``: "torch" (torch.distributed: gloo, and NCCL for CUDA), "mpi" (mpi4py) or "single"; by default
    that of the launcher. ``timeout``: seconds that a process waits for another before it raises an error; for others to start, 300 at
    least.

    Raises SpirogradRuntimeError on every process if one of them cannot start; SpirogradValueError for unknown options.
    """
    global _transport
    if not timeout > 0:
        raise SpirogradValueError(f"`timeout` is a number of seconds above 0, got {timeout!r}")
    place = launchers.place()
    name = transport or place.transport
    if name not in _TRANSPORTS:
        raise SpirogradValueError(f"there is no transport {name!r}; there are {', '.join(map(repr, _TRANSPORTS))}")
    if name == "single" and place.size > 1:
        raise SpirogradValueError(f"the transport 'single' is for one process, and the launcher started {place.size}")
    if _transport is None or (_transport.name, _transport.timeout) != (name, timeout):
        end()
        try:
            _transport = _TRANSPORTS[name](place, float(timeout))
        except TransportFailure as failure:
            problem = f"process {place.rank} of {place.size} cannot join the others: {failure}"
            raise SpirogradRuntimeError(render(problem, None, "start all processes within the timeout")) from None
    if place.local_size > 1:
        options.setdefault("cpu_max_num_threads", max(1, (os.cpu_count() or 1) // place.local_size))

    def start() -> None:
        open_transfers.discard_all()
        memory_numbers.forget_all()
        chosen = place.local_rank if device is None and place.size > 1 and _has_several(arch) else device
        api.init(arch, device="" if chosen is None else str(chosen), **options)

    _compared("`sg.distributed.init`", start, _nothing, "")  # also after transfers that were dropped
    same("the back end", context.session().arch)
    _use_gpu(_transport)


def _has_several(arch: str | Sequence[str] | None) -> bool:
    """Return whether a back end may have several devices. Processes on the CPU share one."""
    wanted = knobs.get("SG_ARCH") or arch or api.cpu
    return any(name not in (api.cpu, api.interpreter, api.python) for name in ([wanted] if isinstance(wanted, str) else wanted))


def _use_gpu(transport: Transport) -> None:
    """Send messages between GPUs directly, if all processes can."""
    session = context.session()
    if session.arch != "cuda":  # the last session may have been on CUDA
        transport.takes_gpu = False
    if session.arch != "cuda" or transport.size == 1 or transport.takes_gpu:
        return
    assert session.sharing is not None
    ordinal = session.sharing.ordinal
    gpus = gathered("`sg.distributed.init`", transport.gpu(ordinal))
    if None in gpus or len({*gpus}) < len(gpus):
        if transport.rank == 0:
            reason = f"the transport {transport.name} has no NCCL here" if None in gpus else "several processes share one"
            logger.warning("messages between GPUs go through the host: %s", reason)
        return

    def use() -> None:
        with waiting("`sg.distributed.init`"):
            transport.use_gpu(ordinal)

    together("`sg.distributed.init`", use)


def end() -> None:
    """Leave the other processes. This happens automatically at the end of Python."""
    global _transport
    if _transport is not None:
        transport, _transport = _transport, None
        with contextlib.suppress(TransportFailure, RuntimeError):  # of a process that is gone
            transport.close()
        open_transfers.forget_all()


def transport() -> Transport:
    """Return the transport to the other processes. Raises SpirogradRuntimeError before `init`."""
    if _transport is None:
        raise SpirogradRuntimeError("there are no processes to work with yet: call `sg.distributed.init(arch=...)` first")
    return _transport


def rank() -> int:
    """Return the number of this process, counted from 0."""
    return transport().rank


def size() -> int:
    """Return how many processes run the program."""
    return transport().size


def barrier() -> None:
    """Wait until all processes call this function. Raises SpirogradRuntimeError on all of them if one is in another function of
    `sg.distributed`, or if they have begun different numbers of halo exchanges, because their results are then wrong. It cannot detect
    whether earlier sums were of the same memory."""
    together("a barrier", lambda: None)


@contextlib.contextmanager
def waiting(what: str, begun: bool = False) -> Iterator[None]:
    """Convert failures of the transport during ``what`` to SpirogradRuntimeError, which names this process, ``what`` and the timeout. After
    a failure, all later calls fail, because messages could be mismatched; only transfers that have ``begun`` are waited for."""
    link = transport()
    try:
        if link.failed and not begun:
            raise TransportFailure("an earlier message failed")
        yield
    except TransportFailure as failure:
        if not link.failed:
            link.failed = True
            link.abandon()
        problem = (
            f"process {link.rank} of {link.size} failed in {what}: another process ended, or did not take part within "
            f"{link.timeout:g} s ({failure})"
        )
        raise SpirogradRuntimeError(render(problem, None, "end this process, and go on from the state saved last")) from None


def gathered(what: str, value: T) -> list[T]:
    """What all processes pass, by rank: values that can be pickled."""
    with waiting(what):
        return transport().all_gather(value)


def together(what: str, function: Callable[[], T]) -> T:
    """Call ``function`` on all processes, and return its result on this one. If it raises any exception on one process, all raise."""
    return _compared(what, _checked(function), _nothing, "")


def same(what: str, value: object) -> None:
    """Raise SpirogradValueError on all processes unless all pass values with the same text. ``what``: what the value describes."""
    _compared(f"the comparison of {what}", lambda: value, lambda result: result, what)


def alike(what: str, function: Callable[[], T], compared: str) -> T:
    """Call ``function`` as `together`, and raise SpirogradValueError on all processes unless the results have the same text. ``compared``:
    what the results describe."""
    return _compared(what, _checked(function), lambda result: result, compared)


def _checked(function: Callable[[], T]) -> Callable[[], T]:
    """Return ``function`` with a check that no transfer was dropped."""

    def checked() -> T:
        open_transfers.check()
        return function()

    return checked


def _nothing(result: object) -> None:
    return None


def _compared(what: str, function: Callable[[], T], of: Callable[[object], object], compared: str) -> T:
    """Compare the processes by one sum of five numbers, which shows whether all are in ``what`` without errors; only if not, gather
    texts."""
    error: BaseException | None = None
    digest = 0
    try:
        result = function()
        digest = int.from_bytes(hashlib.blake2b(repr((what, of(result))).encode(), digest_size=7).digest(), "big")
    except BaseException as raised:
        error = raised
    begun = transport().exchanges
    facts = np.array([error is not None, digest, -digest, begun, -begun], np.int64)
    try:
        with waiting(what):
            transport().all_reduce(facts, "max")
        if facts[0]:
            _raise_on_all(what, error)
    except SpirogradError:
        if error is None:
            raise
    if error is not None:
        raise error  # outside of `except`, so that it keeps its own cause
    if facts[3] != -facts[4]:
        numbers = ", ".join(map(str, gathered(what, begun)))
        problem = f"{what}: processes have begun different numbers of halo exchanges, by rank {numbers}"
        raise SpirogradRuntimeError(render(problem, None, "all processes exchange the same memory in the same order, also after errors"))
    if facts[1] != -facts[2]:
        _raise_difference(what, of(result), compared)
    return result


def _raise_difference(what: str, value: object, compared: str) -> None:
    """Raise for the first process that is in another function than process 0, or that has another value."""
    places, values = zip(*gathered(what, (what, value)))
    for number, other in enumerate(places):
        if other != places[0]:
            problem = f"process 0 is in {places[0]}, and process {number} in {other}"
            raise SpirogradRuntimeError(render(problem, None, "all processes call the same functions in the same order, also after errors"))
    for number, other in enumerate(values):
        if repr(other) != repr(values[0]):
            raise SpirogradValueError(f"{compared} differs between processes: process 0 has {values[0]}, process {number} {other}")


def _raise_on_all(what: str, error: BaseException | None) -> None:
    """Raise the error that another process raised. ``error``: the error of this process."""
    mine = None if error is None else str(error) if isinstance(error, SpirogradError) else f"{type(error).__name__}: {error}"
    for number, text in enumerate(gathered(what, mine)):
        if text is not None:
            raise SpirogradRuntimeError(f"{what} failed on process {number}: {text}")


atexit.register(end)
