"""Streams of random numbers: one for each iteration of a parallel loop, one for the code outside of these loops.

How many numbers a stream has given is a variable of the kernel, `RNG`. A loop has a parameter for it that becomes a loop-carried value if
the body draws; otherwise nothing uses the parameter, and the loop does not get it. The key of a stream is emitted at its first draw, at
the front of its region.
"""

from __future__ import annotations

from spirograd.base.dtypes import u32
from spirograd.ir import ops as ir
from spirograd.ir.builder import Builder
from spirograd.ir.nodes import Op
from spirograd.lang import randoms, scalar
from spirograd.lang.scalar import Value


class RandomStream:
    """The stream of the region that ``b`` is building. ``loop``: the number of the parallel loop, 0 outside of these loops; ``index``: the
    index of the loop."""

    def __init__(self, b: Builder, loop: int = 0, index: Op | None = None) -> None:
        self.first = Value(Op(ir.const, u32, (), 0, (), b.loc))  # the number of the first draw
        self._b, self._block, self._loc = b, b.block(), b.loc
        self._loop, self._index = loop, index
        self._key: tuple[Value, Value] | None = None

    def key(self) -> tuple[Value, Value]:
        """Return the key and the index that distinguish draws of this stream from draws of other streams with the same number."""
        if self._key is None:
            b, loc = self._b, self._b.loc
            b.loc = self._loc
            b.begin()
            seed = Value(b.emit(ir.seed, type=u32))
            if self._index is None:
                self._key = seed, scalar.constant(0, u32)
            else:
                self._key = randoms.stream_key(seed, self._loop), scalar.cast(Value(self._index), u32)
            self._block[:0] = [*b.suspend()[1], self.first.op]
            b.loc = loc
        return self._key
