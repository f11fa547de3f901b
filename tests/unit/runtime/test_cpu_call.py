"""How Python calls kernels on the CPU."""

import functools
import threading
import time

import pytest

from spirograd.runtime.devices import cpu_call


def test_threads_that_load_their_first_kernels_share_the_entry(monkeypatch: pytest.MonkeyPatch) -> None:
    """Built-in functions refer to the entry without keeping it alive: one that another thread replaces would be freed under them."""
    original, made = cpu_call._entry, []

    @functools.cache
    def slow_entry():
        made.append(threading.get_ident())
        time.sleep(0.05)
        return original()

    monkeypatch.setattr(cpu_call, "_entry", slow_entry)
    threads = [threading.Thread(target=cpu_call.caller, args=(1,)) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(made) == 1
