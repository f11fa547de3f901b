"""The class `Graph`: the device work of a block of Python, repeated without that Python."""

from __future__ import annotations

from types import TracebackType
from typing import TYPE_CHECKING

from spirograd.base.errors import SpirogradRuntimeError, render
from spirograd.base.wording import counted
from spirograd.lang import context

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    from spirograd.base.protocols import WorkRecording
    from spirograd.lang.session_protocol import Session


class Graph:
    """Records launches, and launches them again: ``with sg.Graph() as graph: step()``, then ``graph.launch()`` as often as you like.

    The block runs as it always would. A launch of the graph repeats what the block had the device do: launches of kernels and gradients,
    fills, and copies between fields and ndarrays, with the arguments that they had then, on what memory holds now. A tape with a loss that
    is opened in the block is repeated with all of its gradients. What Python did in the block is not done again: numbers that it computed
    or wrote to memory stay what they were. Random numbers are new ones each time.

    On CUDA, AMD's GPUs and Vulkan the driver has all of it as one graph or command buffer: a launch costs the host some microseconds,
    whatever the number of kernels. Elsewhere it costs one call for each.

    Raises SpirogradRuntimeError where the block would read memory on the host (elements, `to_numpy`, values that kernels return) or gives a
    kernel an array of another library; for a graph in a tape or in another graph; and for a launch after a tree of its fields was
    destroyed, or after what the tapes of its gradients are sized by has changed, where the host finds these sizes (``sg.cpu``).
    """

    def __init__(self) -> None:
        self._session: Session | None = None
        self._recording: WorkRecording | None = None
        self._block: AbstractContextManager[object] | None = None

    def __repr__(self) -> str:
        return f"Graph({counted(self.launch_count, 'launch', 'launches')})"

    @property
    def launch_count(self) -> int:
        """The number of launches of kernels that it repeats."""
        return 0 if self._recording is None else self._recording.launches

    def __enter__(self) -> Graph:
        if self._recording is not None:
            raise SpirogradRuntimeError("a graph records once: make a new one")
        _refuse_recorder("recorded")
        session = self._session = context.session()
        recording = session.new_recording()
        self._block = recording.open()
        self._block.__enter__()
        self._recording = recording
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        block, self._block = self._block, None
        recording, self._recording = self._recording, None
        assert block is not None
        block.__exit__(kind, error, trace)
        if kind is None:
            self._recording = recording

    def launch(self) -> None:
        """Repeat the work, after all work so far. Does not wait.

        Raises SpirogradRuntimeError before anything is recorded, in a kernel, in a tape, after another `init`, and in the cases that
        `Graph` lists.
        """
        if self._recording is None or self._block is not None:
            raise SpirogradRuntimeError(render("this graph has recorded nothing yet", None, "record it with `with graph: ...`"))
        _refuse_recorder("launched")
        session = context.session()
        if session is not self._session:
            raise SpirogradRuntimeError("this graph belongs to an earlier `init`: record it anew")
        self._recording.repeat()
        session.launched()


def _refuse_recorder(what: str) -> None:
    if context.current_trace() is not None:
        raise SpirogradRuntimeError(f"a graph cannot be {what} in a kernel")
    if context.recorder() is not None:
        hint = "open the tape inside of the graph's block: then each launch of the graph computes the gradients, too"
        raise SpirogradRuntimeError(render(f"a graph cannot be {what} while a tape is open", None, hint))
