"""Independent pieces of work, done by several threads: for work of libraries that release Python's lock, such as LLVM and drivers."""

from __future__ import annotations

import itertools
import os
import threading
from collections.abc import Callable, Sequence
from typing import TypeVar

T = TypeVar("T")
R = TypeVar("R")


def map_concurrently(work: Callable[[T], R], items: Sequence[T]) -> list[R]:
    """Return the results of ``work`` on ``items``, in their order. The calling thread takes part; there are at most as many threads as
    processors. Items are begun in order, so the largest should be first. After all threads have ended, the error of the first item that
    failed is raised."""
    results: dict[int, R] = {}
    errors: dict[int, Exception] = {}
    numbers = itertools.count()

    def run() -> None:
        while (number := next(numbers)) < len(items):
            try:
                results[number] = work(items[number])
            except Exception as error:
                errors[number] = error

    count = min(len(items), os.cpu_count() or 1)
    threads = [threading.Thread(target=run, name=f"spirograd-piece-{number}") for number in range(1, count)]
    for thread in threads:
        thread.start()
    run()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[min(errors)]
    return [results[number] for number in range(len(items))]
