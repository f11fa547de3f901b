"""Work that several threads do: results in the order of the items, and errors of the first item that fails."""

from __future__ import annotations

import os
import threading

import pytest

from spirograd.base.concurrently import map_concurrently


def test_results_are_in_order() -> None:
    assert map_concurrently(lambda k: k * k, range(100)) == [k * k for k in range(100)]
    assert map_concurrently(lambda k: k, ()) == []


@pytest.mark.skipif((os.cpu_count() or 1) < 2, reason="one processor")
def test_two_threads_work_at_the_same_time() -> None:
    both = threading.Barrier(2)
    assert sorted(map_concurrently(lambda k: both.wait(60), [0, 1])) == [0, 1]


def test_the_first_item_that_fails_raises() -> None:
    done = []

    def work(k: int) -> None:
        if k % 3 == 2:
            raise ValueError(k)
        done.append(k)

    with pytest.raises(ValueError, match="2"):
        map_concurrently(work, range(9))
    assert sorted(done) == [0, 1, 3, 4, 6, 7]
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("spirograd-piece")]
