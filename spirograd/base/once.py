"""One lock for all that is made at its first use: trees and their memory, compiled kernels, derivatives, what is registered elsewhere.

Looking something up takes no lock; making it takes this one, and looks again first. It is taken before the locks of the launcher, of
devices, and of the CPU's code, and never by a thread that holds one of those, so no two threads wait for each other. Finalizers do not take
it.
"""

from __future__ import annotations

import functools
import os
import threading
from collections.abc import Callable
from typing import Any, TypeVar

F = TypeVar("F", bound=Callable[..., Any])
T = TypeVar("T")

lock = threading.RLock()
if hasattr(os, "register_at_fork"):  # a child finds nothing half made
    os.register_at_fork(before=lock.acquire, after_in_parent=lock.release, after_in_child=lock.release)


class once(functools.cached_property[T]):
    """A `functools.cached_property` that several threads compute once."""

    def __get__(self, instance: Any, owner: Any = None) -> Any:
        with lock:
            return super().__get__(instance, owner)


def once_in_process(function: F) -> F:
    """Decorator: as `functools.cache`, for functions that several threads must not run for the same arguments."""
    known = functools.cache(function)

    @functools.wraps(function)
    def call(*args: object) -> Any:
        with lock:
            return known(*args)

    return call  # type: ignore[return-value]


def one_at_a_time(method: F) -> F:
    """Decorator: have one thread at a time in all functions that are decorated so."""

    @functools.wraps(method)
    def call(*args: object, **kwargs: object) -> Any:
        with lock:
            return method(*args, **kwargs)

    return call  # type: ignore[return-value]
