"""Work in a copy of this process, so that a fatal error of LLVM, which ends a process, ends the copy only."""

from __future__ import annotations

import multiprocessing
import signal
import sys
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import TypeVar

SECONDS = 300  # for one kernel
_T = TypeVar("_T")


class CopyEnded(Exception):
    """The copy ended without a result; the message says how."""


def forked(work: Callable[[], _T]) -> _T:
    """Return what ``work`` returns, which must not raise, in a copy of this process; on systems other than Linux, in this process.

    Raises CopyEnded if the copy ends before, or takes longer than `SECONDS`.
    """
    if sys.platform != "linux":
        return work()
    context = multiprocessing.get_context("fork")
    receiver, sender = context.Pipe(duplex=False)
    process = context.Process(target=_send, args=(work, sender), daemon=True)
    process.start()
    sender.close()
    try:
        if not receiver.poll(SECONDS):
            raise CopyEnded(f"gave no result within {SECONDS} s")
        result: _T = receiver.recv()
    except EOFError:
        process.join()
        status = process.exitcode or 0
        raise CopyEnded(f"ended by {signal.Signals(-status).name}" if status < 0 else f"ended with status {status}") from None
    finally:
        process.kill()
        process.join()
        receiver.close()
    return result


def _send(work: Callable[[], object], sender: Connection[object, object]) -> None:
    sender.send(work())
    sender.close()
