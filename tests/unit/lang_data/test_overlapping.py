"""Which layouts overlap themselves, compared with the bytes that each element has."""

import itertools

import numpy as np
import pytest

from spirograd.lang.data.overlapping import overlaps_itself


def expected(shape, strides, size):
    places = [sum(i * stride for i, stride in zip(index, strides)) for index in np.ndindex(*shape)]
    used = [place + byte for place in places for byte in range(size)]
    return len(used) != len(set(used))


@pytest.mark.parametrize("size", [1, 4])
def test_small_layouts(size):
    found = set()
    for shape in itertools.product([0, 1, 2, 3], repeat=2):
        for strides in itertools.product([-12, -4, 0, 1, 2, 3, 4, 6, 8, 12], repeat=2):
            answer = overlaps_itself(shape, strides, size)
            assert answer == expected(shape, strides, size), (shape, strides)
            found.add(answer)
    assert found == {False, True}


@pytest.mark.parametrize(
    ("shape", "strides"),
    [
        ((), ()),
        ((5,), (0,)),
        ((5,), (-4,)),
        ((3, 2), (4, 4)),
        ((2, 3), (12, 8)),
        ((2, 3, 2), (4, 8, 24)),
        ((2, 3, 2), (4, 8, 20)),
        ((4, 3, 2), (0, 8, 4)),
    ],
)
def test_layouts_of_numpy(shape, strides):
    assert overlaps_itself(shape, strides, 4) == expected(shape, strides, 4)


def test_large_windows():
    assert overlaps_itself((10**9, 3), (4, 4), 4)
    assert not overlaps_itself((10**9, 3), (16, 4), 4)
