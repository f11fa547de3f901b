"""The structure of graphs in kernels of ``@sg.kernel(graph=True)``: `do_while`, `parallel_context`, `parallel`.

Quadrants also calls them ``graph_do_while``, ``graph_parallel_context`` and ``graph_parallel``. `checkpoint` and `stream_parallel` are
defined here, too, and available directly in ``sg``.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from spirograd.base.errors import SpirogradRuntimeError
from spirograd.base.records import dataclass

__all__ = ["do_while", "parallel", "parallel_context"]


def do_while(condition: object) -> bool:
    """``while sg.graph.do_while(flag):`` in a kernel of ``@sg.kernel(graph=True)``: run the body, and again as long as ``condition`` is not
    0.

    ``condition``: a field or ndarray of i32 with no axes; the body runs at least once. The loop stands at the top of the kernel, or in the
    body of another such loop. All else in the kernel runs where it stands: parallel loops are parallel, other statements run once.
    In Python, it raises SpirogradRuntimeError.
    """
    raise SpirogradRuntimeError(
        "`graph.do_while` was called in Python: write it as the condition of a `while` loop in a kernel with `@sg.kernel(graph=True)`"
    )


@contextlib.contextmanager
def parallel_context() -> Iterator[None]:
    """``with sg.graph.parallel_context():`` at the top of a kernel of ``@sg.kernel(graph=True)``: its body consists of `parallel` blocks,
    which may run at the same time. What comes after waits for all of them. In Python, it does nothing."""
    yield


@contextlib.contextmanager
def parallel() -> Iterator[None]:
    """``with sg.graph.parallel():`` in a `parallel_context`: work that may run at the same time as the other blocks. Blocks that touch the
    same memory, which one of them changes, run one after the other. In Python, it does nothing."""
    yield


@contextlib.contextmanager
def stream_parallel() -> Iterator[None]:
    """``with sg.stream_parallel():`` at the top of a kernel: blocks that follow each other may run at the same time, on streams of their
    own. Blocks that touch the same memory, which one of them changes, run one after the other. In Python, it does nothing."""
    yield


@contextlib.contextmanager
def checkpoint(cp_id: int, yield_on: object) -> Iterator[None]:
    """``with sg.checkpoint(cp_id, yield_on=flag):`` in a kernel of ``@sg.kernel(graph=True, checkpoints=True)``: if ``flag`` is not 0 after
    the block, the kernel ends there, and returns a `GraphStatus` that names the checkpoint.

    ``cp_id``: an integer or a member of an IntEnum, another one for each checkpoint. ``flag``: a field or ndarray of i32 with no axes,
    which the program sets to 0 before it calls ``kernel.resume(..., from_checkpoint=cp_id)``: that runs the block again, and what comes
    after. In Python, it does nothing.
    """
    yield


@dataclass(frozen=True, slots=True)
class GraphStatus:
    """The result of a kernel with checkpoints. ``yielded``: whether it ended at a checkpoint; ``checkpoint``: its id, else None."""

    yielded: bool
    checkpoint: int | None = None
