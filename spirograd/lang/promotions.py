"""Result types of operations on two types, as a table for users."""

from __future__ import annotations

from spirograd.base.dtypes import ALL, promote


def promotion_table() -> str:
    """Return the type of ``a + b``, ``a - b``, ``a * b``, ``a // b``, ``a % b``, and of the smaller and the larger of the two: for each
    type of a a line, for each type of b a column.

    ``a / b`` makes floats of the default type of integers first; of integers, ``a ** b`` and shifts have the type of a.
    """
    lines = [["", *map(str, ALL)], *[[str(a), *[str(promote(a, b)) for b in ALL]] for a in ALL]]
    return "\n".join(" ".join(f"{name:>3}" for name in line) for line in lines)
