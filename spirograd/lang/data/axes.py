"""The axes of field trees: `i` is axis 0, `j` axis 1; `ij` is both. `axes(0, 5)` names any."""

from __future__ import annotations


class Axis(int):
    """One axis of a field tree, numbered from 0."""

    def __repr__(self) -> str:
        return f"axis {int(self)}"


Axes = tuple[Axis, ...]


def axes(*numbers: int) -> Axes:
    """Return the axes with these numbers."""
    return tuple(Axis(n) for n in numbers)


i = Axis(0)
j = Axis(1)
k = Axis(2)
l = Axis(3)
ij = (i, j)
ik = (i, k)
il = (i, l)
jk = (j, k)
jl = (j, l)
kl = (k, l)
ijk = (i, j, k)
ijl = (i, j, l)
ikl = (i, k, l)
jkl = (j, k, l)
ijkl = (i, j, k, l)

NAMES = ("i", "j", "k", "l", "ij", "ik", "il", "jk", "jl", "kl", "ijk", "ijl", "ikl", "jkl", "ijkl")
