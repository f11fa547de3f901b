"""The deferred deletion queue of a device: released resources are destroyed once no pending work uses them."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Generic, TypeVar

# `launch` collects when this number of resources was released; otherwise each allocation and each synchronization collects.
COLLECT_AT = 1024


def _at_once() -> int:
    return 0


T = TypeVar("T")


class DeletionQueue(Generic[T]):
    """The deferred deletion queue: it calls ``delete`` with released resources once they may be deleted.

    ``released``: resources since the last `collect`; ``held``: bytes of memory that pending work may still use. `put` and `extend` take no
    lock, because finalizers call them, which may run anywhere. The device's lock guards `collect`.
    """

    __slots__ = ("_delete", "_waiting", "extend", "held", "put", "released")

    def __init__(self, delete: Callable[[T], None]) -> None:
        self._delete = delete
        self.released: deque[T] = deque()
        self.put, self.extend = self.released.append, self.released.extend
        self._waiting: deque[tuple[int, T]] = deque()
        self.held = 0

    def __len__(self) -> int:
        return len(self.released)

    def collect(self, pending: int = 0, completed: Callable[[], int] = _at_once) -> None:
        """Delete resources that are no longer in use.

        ``pending`` counts the submissions that may use the resources released until now; ``completed()`` returns the number of completed
        submissions. By default all resources are deleted, for drivers that keep alive the resources that pending work uses.
        """
        released, waiting = self.released, self._waiting
        while released:
            thing = released.popleft()
            self.held += getattr(thing, "size", 0)
            waiting.append((pending, thing))
        if not waiting:
            return
        done = completed()
        while waiting and waiting[0][0] <= done:
            thing = waiting.popleft()[1]
            self.held -= getattr(thing, "size", 0)
            self._delete(thing)
