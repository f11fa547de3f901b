"""Accesses by the index of a loop over a field that some iterations make out of range: a warning while compiling."""

from __future__ import annotations

import pytest

import spirograd as sg

pytestmark = [pytest.mark.usefixtures("session"), pytest.mark.archs("interpreter")]


def _warnings(kernel: object, caplog: pytest.LogCaptureFixture) -> str:
    caplog.clear()
    with pytest.raises(sg.SpirogradAssertionError, match="out of range"):
        kernel()  # type: ignore[operator]
    return caplog.text


def test_an_index_taken_for_an_element(caplog: pytest.LogCaptureFixture) -> None:
    data, counts, grid = sg.field(sg.i32, 20), sg.field(sg.i32, 10), sg.field(sg.f32, (20, 30))

    @sg.kernel
    def count():
        for x in data:
            counts[x] += 1

    @sg.kernel
    def transpose():
        for i, j in grid:
            data[j] = 1

    text = _warnings(count, caplog)
    assert "the loop over `data` goes from index 0 to 19, and `counts` has indices 0 to 9 on axis 0" in text
    assert "counts[x] += 1" in text and "the elements are `data[i]`" in text
    assert "the loop over `grid` goes from index 0 to 29, and `data` has indices 0 to 19" in _warnings(transpose, caplog)


def test_no_warning_where_a_condition_may_prevent_the_access(caplog: pytest.LogCaptureFixture) -> None:
    data, counts, shifted = sg.field(sg.i32, 20), sg.field(sg.i32, 10), sg.field(sg.i32, 10, offset=5)

    @sg.kernel
    def guarded():
        for x in data:
            if x < 10:
                counts[x] += 1
        for x in data:
            if x >= 10:
                continue
            counts[x] += 1
        for x in shifted:
            data[x] += 1
        for x in data:
            counts[x % 10] += 1
            counts[data[x] // 10] += 1

    guarded()
    assert not caplog.text
    assert counts.to_numpy().sum() == 60
