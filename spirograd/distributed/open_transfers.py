"""Transfers that have begun and not ended, including those that can no longer end because their `Pending` was dropped.

Messages in transit use memory, and the next transfer of the same memory needs it, so a transfer is kept here until it ends. A dropped
transfer is an error at each later exchange and sum of this process, until `sg.distributed.init`: its halos are out of date, and other
processes, which may have finished theirs, do not know it. This process therefore sends nothing that they could mistake for another message.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

from spirograd.base.errors import SpirogradRuntimeError, render
from spirograd.base.loc import Loc


class Open(Protocol):
    """A transfer in progress: its name, the user's line that began it, and how to receive its messages without using them."""

    name: str
    loc: Loc | None

    def discard(self) -> None: ...

    def forget(self) -> None: ...


_open: dict[int, Open] = {}
_dropped: list[Open] = []
_lost: list[Open] = []


def begun(transfer: Open) -> None:
    """Record a transfer whose messages are in transit."""
    _open[id(transfer)] = transfer


def is_open(transfer: Open) -> bool:
    """Return whether the transfer has begun and not ended."""
    return id(transfer) in _open


def ended(transfer: Open) -> bool:
    """Close the transfer, and return whether it was open."""
    return _open.pop(id(transfer), None) is not None


def drop(transfers: Iterable[Open]) -> None:
    """Record that these can no longer be finished: `check` raises for those that are open."""
    _dropped.extend(transfer for transfer in transfers if id(transfer) in _open)


def lost(transfer: Open) -> None:
    """Record that an error or Ctrl-C ended a transfer here, which the other processes do not know."""
    _lost.append(transfer)


def check() -> None:
    """Raise SpirogradRuntimeError if a transfer was lost, or dropped before it ended."""
    if _lost:
        first = _lost[0]
        problem = f"an error or Ctrl-C ended {first.name} before all messages were there, so that its halos are not up to date"
        raise SpirogradRuntimeError(render(problem, first.loc, "until `sg.distributed.init` this process sends nothing"))
    if _dropped:
        first = _dropped[0]
        problem = f"{first.name} was started and never finished, so that its halos are not up to date"
        hint = "call `finish()` on what `start` returns, also after errors; until `sg.distributed.init` this process sends nothing"
        raise SpirogradRuntimeError(render(problem, first.loc, hint))


def discard_all() -> None:
    """Receive and discard the messages of all open transfers, before their memory is freed. After an error it continues with the others,
    and then raises the first error."""
    errors = []
    for transfer in [*_open.values()]:
        try:
            transfer.discard()
        except SpirogradRuntimeError as error:
            errors.append(error)
    _dropped.clear()
    _lost.clear()
    if errors:
        raise errors[0]


def forget_all() -> None:
    """Forget all transfers: the transport is closed, so no messages arrive any more."""
    for transfer in [*_open.values()]:
        transfer.forget()
    _open.clear()
    _dropped.clear()
    _lost.clear()
