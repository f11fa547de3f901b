"""Transfers that have begun and not ended, and what becomes of those that can no longer end because their `Pending` was dropped.

Messages under way use memory, and the next transfer of the same memory needs it, so a transfer is kept here until it ends. One that was
dropped is an error, at the next call that all processes make: its halos are old. The messages are received before, and thrown away, so that
a program that catches the error can go on.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

from spirograd.base.errors import SpirogradRuntimeError, render
from spirograd.base.loc import Loc


class Open(Protocol):
    """A transfer under way: what it is, the user's line that began it, and how to receive its messages without using them."""

    name: str
    loc: Loc | None

    def discard(self) -> None: ...

    def forget(self) -> None: ...


_open: dict[int, Open] = {}
_dropped: list[Open] = []


def begun(transfer: Open) -> None:
    """Keep a transfer whose messages are under way."""
    _open[id(transfer)] = transfer


def ended(transfer: Open) -> bool:
    """Whether the transfer was open; from now on it is not."""
    return _open.pop(id(transfer), None) is not None


def drop(transfers: Iterable[Open]) -> None:
    """From now on no one can end these: those that are open lead to an error in `check`."""
    _dropped.extend(transfer for transfer in transfers if id(transfer) in _open)


def check() -> None:
    """Raise SpirogradRuntimeError, once, if a transfer was dropped before it ended; its messages are received first."""
    found = [transfer for transfer in _dropped if id(transfer) in _open]
    _dropped.clear()
    if not found:
        return
    for transfer in found:
        transfer.discard()
    first = found[0]
    problem = f"{first.name} was started and never finished, so that its halos are not up to date"
    raise SpirogradRuntimeError(render(problem, first.loc, "call `finish()` on what `start` returns, also after errors in between"))


def discard_all() -> None:
    """Receive the messages of all that are open, and throw them away: before the memory that they use goes."""
    for transfer in [*_open.values()]:
        transfer.discard()
    _dropped.clear()


def forget_all() -> None:
    """Keep none: the transport is closed, so that no messages arrive any more."""
    for transfer in [*_open.values()]:
        transfer.forget()
    _open.clear()
    _dropped.clear()
