"""What runs pipelines on Dawn: Dawn's library in this process, or a browser."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from validation.rdna3.arithmetic import Array


class Host(Protocol):
    """A device of WebGPU with its default limits. ``adapter``, ``driver``: their names."""

    adapter: str
    driver: str

    def pipeline(self, module: bytes, entry: str, buffers: int, indirect: bool) -> object:
        """Return the pipeline of a SPIR-V module with storage buffers in group 0, and the argument block in group 1 if ``indirect``. Raises
        SpirogradRuntimeError with the compiler's message."""

    def close(self) -> None:
        """Release the device."""

    def run(self, pipeline: object, contents: Sequence[Array], arguments: bytes, groups: int) -> list[Array]:
        """Run a pipeline on buffers with these contents, and return what they hold afterwards. Raises SpirogradRuntimeError."""
