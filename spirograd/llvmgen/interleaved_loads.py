"""Loads of every n-th element: the emitter loads vectors that contain some of the elements, and shuffles them together. It accesses no
other memory."""

from __future__ import annotations

from collections.abc import Sequence

from spirograd.base.dtypes import Lanes
from spirograd.llvmgen.function import FunctionEmitter, overload
from spirograd.llvmgen.module import type_name

# Shuffles for interleaved loads, by the distance between elements: two vectors (loaded ones, then results of shuffles), and for each lane
# its index in both. AVX2 loads 8 elements at once and shuffles within halves of registers, AVX-512 loads 16 and shuffles freely.
_Shuffles = dict[int, tuple[tuple[int, int, tuple["int | None", ...]], ...]]
_OF_8: _Shuffles = {
    2: ((0, 1, (0, 2, 8, 10, 4, 6, 12, 14)), (2, 2, (0, 1, 4, 5, 2, 3, 6, 7))),
    3: ((0, 1, (0, 9, None, 3, 12, None, 6, 15)), (3, 2, (0, 1, 10, 3, 4, 13, 6, 7)), (4, 4, (0, 3, 6, 1, 4, 7, 2, 5))),
    4: (
        (0, 1, (0, 8, None, None, 4, 12, None, None)),
        (2, 3, (0, 8, None, None, 4, 12, None, None)),
        (4, 5, (0, 1, 8, 9, 4, 5, 12, 13)),
        (6, 6, (0, 4, 1, 5, 2, 6, 3, 7)),
    ),
}
_OF_16: _Shuffles = {
    2: ((0, 1, tuple(range(0, 32, 2))),),
    3: ((0, 1, (*range(0, 32, 3), *[None] * 5)), (3, 2, (*range(11), *range(17, 32, 3)))),
    4: (
        (0, 1, (*range(0, 32, 4), *[None] * 8)),
        (2, 3, (*range(0, 32, 4), *[None] * 8)),
        (4, 5, (*range(8), *range(16, 24))),
    ),
}


def interleaved_load(e: FunctionEmitter, t: Lanes, count: int, ways: Sequence[tuple[str, str]]) -> str:
    """Return lanes of every ``count``-th element, which has 32 bits. ``ways``: pointers to the element of the first lane, typed, and the
    lanes that load from there, as disjoint masks. Lanes in no mask get 0."""
    lanes, elem = f"<{t.n} x i32>", type_name(t.elem)
    size, shuffles = (16, _OF_16) if "+avx512f" in e.module.caps.cpu_features else (8, _OF_8)
    part = Lanes(size, t.elem)
    vector_type = type_name(part)
    callee = e.module.declare(f"llvm.masked.load.{overload(part)}.p0", vector_type, f"ptr, i32, <{size} x i1>, {vector_type}")
    wide = [(pointer, e.value(f"sext <{t.n} x i1> {mask} to {lanes}")) for pointer, mask in ways]
    parts = []
    for lane in range(0, t.n, size):
        vectors = []
        for start in range(lane * count, (lane + size) * count, size):
            chosen = ", ".join([f"i32 {p // count if p % count == 0 else t.n}" for p in range(start, start + size)])
            vector = "zeroinitializer"
            for pointer, mask in wide:
                spread = e.value(f"shufflevector {lanes} {mask}, {lanes} zeroinitializer, <{size} x i32> <{chosen}>")
                wanted = e.value(f"icmp slt <{size} x i32> {spread}, zeroinitializer")
                at = e.value(f"getelementptr {elem}, {pointer}, i64 {start}")
                vector = e.value(
                    f"call {vector_type} {callee}(ptr {at}, i32 {t.elem.size}, <{size} x i1> {wanted}, {vector_type} {vector})"
                )
            vectors.append(vector)
        for a, b, places in shuffles[count]:
            picked = ", ".join(["i32 poison" if k is None else f"i32 {k}" for k in places])
            vectors.append(e.value(f"shufflevector {vector_type} {vectors[a]}, {vector_type} {vectors[b]}, <{size} x i32> <{picked}>"))
        parts.append(vectors[-1])
    if len(parts) == 1:
        return parts[0]
    order = ", ".join([f"i32 {k}" for k in range(t.n)])
    return e.value(f"shufflevector {vector_type} {parts[0]}, {vector_type} {parts[1]}, <{t.n} x i32> <{order}>")
