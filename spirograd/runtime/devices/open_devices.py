"""The open devices of one kind: closed when Python exits, and abandoned in a forked child."""

from __future__ import annotations

import atexit
import os
import sys
import weakref
from typing import TYPE_CHECKING, Protocol

from spirograd.base.errors import SpirogradRuntimeError

if TYPE_CHECKING:

    class OpenDevice(Protocol):
        """A device that is open."""

        def close(self) -> None: ...

        def _abandon(self) -> None: ...


class OpenDevices:
    """The open devices of one kind, created when the module of the kind is imported.

    Devices `add` themselves when they are open, and `discard` themselves when closed. At exit they are closed in the order opposite to
    these imports. In a forked child their method ``_abandon`` is called.
    """

    def __init__(self) -> None:
        self._devices: weakref.WeakSet[OpenDevice] = weakref.WeakSet()
        self.add, self.discard = self._devices.add, self._devices.discard
        atexit.register(self._close_all)
        if hasattr(os, "register_at_fork"):
            os.register_at_fork(after_in_child=self._after_fork)

    def _close_all(self) -> None:
        for device in list(self._devices):
            try:
                device.close()
            except SpirogradRuntimeError as error:
                sys.stderr.write(f"{error}\n")

    def _after_fork(self) -> None:
        for device in list(self._devices):
            device._abandon()
        self._devices.clear()
