"""Where fetches of the wgpu device land: one mapped buffer for all of a submission, read once and used again."""

from __future__ import annotations

from collections import deque
from typing import Any

from spirograd.base.errors import SpirogradRuntimeError
from spirograd.runtime.device import FETCH_LIMIT
from spirograd.runtime.devices.wgpu.api import Mapping, wgpu

_ALIGNMENT = 8  # what wgpu maps begins at multiples of it
_USAGE = wgpu.BufferUsage.COPY_DST | wgpu.BufferUsage.MAP_READ


class Landing:
    """The fetches of one submission. ``used`` bytes of ``buffer`` are taken; ``data`` has them all in the end, or ``problem`` is set.

    ``submission`` is its index, 0 as long as the commands are being recorded.
    """

    __slots__ = ("buffer", "data", "mapping", "problem", "submission", "used")

    def __init__(self, buffer: Any) -> None:
        self.buffer = buffer
        self.used = 0
        self.submission = 0
        self.mapping: Mapping | None = None
        self.data: bytes | None = None
        self.problem: SpirogradRuntimeError | None = None


class Landings:
    """Gives out room for fetches. Not thread safe: the device's lock guards it."""

    def __init__(self, device: Any) -> None:
        self._device = device
        self._spare: list[Any] = []
        self._recorded: list[Landing] = []
        self._under_way: deque[Landing] = deque()
        self.buffers = 0  # created so far

    def room(self, nbytes: int) -> tuple[Landing, int]:
        """Where ``nbytes`` go in the submission that is being recorded: landing and offset in its buffer."""
        landing = self._recorded[-1] if self._recorded else None
        if landing is None or landing.used + nbytes > FETCH_LIMIT:
            landing = Landing(self._spare.pop() if self._spare else self._create())
            self._recorded.append(landing)
        offset = landing.used
        landing.used += -(-nbytes // _ALIGNMENT) * _ALIGNMENT
        return landing, offset

    def _create(self) -> Any:
        self.buffers += 1
        return self._device.create_buffer(size=FETCH_LIMIT, usage=_USAGE)

    def leave(self) -> list[Landing]:
        """Those of the commands recorded so far, which are about to be submitted."""
        landings, self._recorded = self._recorded, []
        return landings

    def submitted(self, landings: list[Landing], submission: int) -> None:
        """These are submitted: ask wgpu to map them when that is done."""
        for landing in landings:
            landing.submission = submission
            landing.mapping = Mapping(landing.buffer, landing.used)
        self._under_way.extend(landings)

    def collect(self) -> None:
        """Read what has been mapped, and use its buffers again."""
        while self._under_way:
            landing = self._under_way[0]
            mapping = landing.mapping
            if mapping is None or not mapping.status:
                return
            try:
                if landing.data is None:  # else a signal interrupted the last attempt
                    landing.data = mapping.read()[:]
                self._under_way.popleft()
                mapping.end()
                self._spare.append(landing.buffer)
            except SpirogradRuntimeError as error:
                self._under_way.popleft()
                landing.problem = error
            landing.buffer = landing.mapping = None
