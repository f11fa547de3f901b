"""How Python calls kernels on the CPU."""

import threading
import time

import pytest

from spirograd.runtime.devices import cpu_pool


def test_threads_that_load_their_first_kernels_share_the_entry(monkeypatch: pytest.MonkeyPatch) -> None:
    """Built-in functions refer to the entry without keeping it alive: one that another thread replaces would be freed under them."""
    original, made = cpu_pool.build, []

    def slow_build(*args):
        made.append(threading.get_ident())
        time.sleep(0.05)
        return original(*args)

    monkeypatch.setattr(cpu_pool, "build", slow_build)
    monkeypatch.setattr(cpu_pool, "_code", [])
    threads = [threading.Thread(target=cpu_pool.code) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(made) == 1
