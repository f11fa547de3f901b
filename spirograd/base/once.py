"""The lock for objects that are created when they are first used: trees and their memory, compiled kernels, derivatives, registrations with
other libraries.

Look-ups take no lock. Creating an object takes this lock, and looks again first. The lock is acquired before the locks of the launcher, of
devices and of the CPU's code, never after them, so there are no deadlocks. Finalizers do not acquire it.
"""

from __future__ import annotations

import functools
import os
import threading
from collections.abc import Callable
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")

lock = threading.RLock()
if hasattr(os, "register_at_fork"):  # a child process finds no half-created object
    os.register_at_fork(before=lock.acquire, after_in_parent=lock.release, after_in_child=lock.release)


class once(functools.cached_property[T]):
    """A `functools.cached_property` that several threads compute once."""

    def __get__(self, instance: object, owner: type[object] | None = None) -> T:  # type: ignore[override]
        with lock:
            return super().__get__(instance, owner)


def once_in_process(function: Callable[P, R]) -> Callable[P, R]:
    """Cache results as `functools.cache` does, for functions that several threads must not run for the same arguments."""
    known = functools.cache(function)

    @functools.wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        with lock:
            return known(*args, **kwargs)  # type: ignore[arg-type]

    return call


def one_at_a_time(method: Callable[P, R]) -> Callable[P, R]:
    """Decorate a function so that only one thread at a time runs any function with this decorator."""

    @functools.wraps(method)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        with lock:
            return method(*args, **kwargs)

    return call
