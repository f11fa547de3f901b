"""The schedule of checkpoints: it reverses every step once, last first, and repeats as few as a search over all schedules finds."""

from __future__ import annotations

from functools import cache

import pytest

from spirograd.ad.binomial import Limits, repetitions, schedule


@cache
def fewest(steps: int, checkpoints: int) -> int:
    """Steps that are run again, besides each step once to record it, by trying every split."""
    if steps <= 1:
        return 0
    if checkpoints == 0:
        return steps * (steps - 1) // 2
    return min(first + fewest(steps - first, checkpoints - 1) + fewest(first, checkpoints) for first in range(1, steps))


@pytest.mark.parametrize("limit", [1, 2, 3, 4, 7])
def test_fewest_repetitions(limit: int) -> None:
    for steps in range(60):
        assert repetitions([0], steps, Limits(limit)) == steps + fewest(steps, limit - 1)


@pytest.mark.parametrize("kept", [[0], [0, 1, 2, 3], [0, 5, 6, 19], [0, 29]])
@pytest.mark.parametrize("limit", [1, 2, 5, 100])
def test_actions_fit_each_other(kept: list[int], limit: int) -> None:
    """Run the actions: each starts where memory is, and no more checkpoints are kept than the limit, or than there were."""
    steps, most = 30, max(limit, len(kept))
    at, kept, reversed_steps = steps, [*kept], []
    for action in schedule([*kept], steps, Limits(limit)):
        if action.kind == "return":
            assert at >= kept[-1]
            at = kept[-1]
        elif action.kind == "repeat":
            assert (at, action.begin) == (action.begin, at) and action.end > at
            at = action.end
        elif action.kind == "keep":
            assert action.begin == at > kept[-1]
            kept.append(at)
            assert len(kept) <= most
        elif action.kind == "reverse":
            assert (action.begin, action.end) == (at, at + 1)
            reversed_steps.append(at)
            at += 1
        else:
            assert kept.pop() == action.begin == at
    assert reversed_steps == [*range(steps - 1, -1, -1)] and kept == [0] and at == 0


@pytest.mark.parametrize("nbytes", [30, 60, 200, 1000])
@pytest.mark.parametrize("kept", [[0], [0, 1, 2, 3], [0, 40, 41]])
def test_logs_take_no_more_than_they_may(nbytes: int, kept: list[int]) -> None:
    """Logs of 10 bytes a step, and at most 30: what the first checkpoints take, or the limit."""
    steps, limits = 60, Limits(None, nbytes, 30, 10)

    def bytes_of(kept: list[int], end: int) -> int:
        return sum(min(30, 10 * (b - a)) for a, b in zip(kept, [*kept[1:], end]))

    most, kept, end = max(nbytes, bytes_of(kept, steps)), [*kept], steps
    for action in schedule([*kept], steps, limits):
        if action.kind == "keep":
            kept.append(action.begin)
            assert bytes_of(kept, end) <= most
        elif action.kind == "drop":
            kept.pop()
        elif action.kind == "reverse":
            end = action.begin
    more, fewer = (repetitions([0], steps, Limits(None, n, 30, 10)) for n in (nbytes, 2 * nbytes))
    assert more >= fewer >= steps
    assert repetitions([0], steps, Limits(None, 600, 30, 10)) == 2 * steps - 1
