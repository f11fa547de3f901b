"""Ctrl-C while a device is at work."""

from __future__ import annotations

import signal
import subprocess
import sys
import textwrap
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import needs
import pytest

from spirograd.runtime.devices import interrupts

pytestmark = pytest.mark.usefixtures("ctrl_c")


@contextmanager
def _call(lock: Any) -> Iterator[None]:
    """As devices do it."""
    interrupts.watch()
    with lock:
        yield
    interrupts.deliver()


def _interrupt(calls: list[int]) -> None:
    signal.raise_signal(signal.SIGINT)
    calls.append(1)


def test_a_signal_waits_for_the_outermost_end() -> None:
    calls: list[int] = []
    lock = interrupts.device_lock()
    with pytest.raises(KeyboardInterrupt), _call(lock):
        with _call(lock):
            _interrupt(calls)
        _interrupt(calls)
        calls.append(1)
    assert len(calls) == 3
    with pytest.raises(KeyboardInterrupt):  # and at once where nothing is under way
        _interrupt(calls)
    with _call(lock):
        pass
    assert len(calls) == 3


def test_a_signal_in_a_long_wait() -> None:
    lock = interrupts.device_lock()
    with pytest.raises(KeyboardInterrupt), _call(lock):
        signal.raise_signal(signal.SIGINT)
        interrupts.deliver()
        interrupts.deliver(inside=True)
        pytest.fail("this wait goes on")
    assert interrupts.pending.handler is None


def test_handlers_that_others_set_are_called() -> None:
    seen: list[int] = []
    lock = interrupts.device_lock()

    def handler(number: int, frame: Any) -> None:
        seen.append(number)

    for _ in range(3):
        signal.signal(signal.SIGINT, handler)
        with _call(lock):
            signal.raise_signal(signal.SIGINT)
            assert not seen
        assert seen == [signal.SIGINT]
        seen.clear()
    kept = signal.getsignal(signal.SIGINT)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with _call(lock):
        signal.raise_signal(signal.SIGINT)
    signal.signal(signal.SIGINT, kept)
    signal.raise_signal(signal.SIGINT)
    assert seen == [signal.SIGINT]


def test_other_threads_take_no_part() -> None:
    """A thread that is in a device neither holds back signals of the main thread nor calls what waits there."""
    lock, others = interrupts.device_lock(), interrupts.device_lock()
    inside, done = threading.Event(), threading.Event()

    def work() -> None:
        with _call(others):
            inside.set()
            done.wait(20)

    thread = threading.Thread(target=work)
    with pytest.raises(KeyboardInterrupt):
        with _call(lock):
            pass
        thread.start()
        inside.wait(20)
        signal.raise_signal(signal.SIGINT)
    calls: list[int] = []
    with pytest.raises(KeyboardInterrupt), _call(lock):
        _interrupt(calls)
        done.set()
        thread.join()
        assert interrupts.pending.handler is not None
    assert calls == [1]


_PROGRAM = """
    import os, random, signal, sys, threading, time
    import numpy as np
    import spirograd as sg

    signal.signal(signal.SIGINT, signal.default_int_handler)
    sg.init(arch=sys.argv[1], offline_cache=False)
    x, steps = sg.field(sg.i32, 1 << 14), sg.field(sg.i32, ())

    @sg.kernel
    def step():
        for i in x:
            x[i] += i
        for i in range(1):
            steps[None] += 1

    step(); x.to_numpy()
    interrupting, armed = True, False

    def interrupt():
        global armed
        rng = random.Random(7)
        while interrupting:
            time.sleep(0.004 * rng.random())
            if armed:  # once, where the program expects it
                armed = False
                os.kill(os.getpid(), signal.SIGINT)

    caught, started = 0, time.time()
    thread = threading.Thread(target=interrupt, daemon=True)
    thread.start()
    while caught < 200 and time.time() - started < 30:
        try:
            step()  # so that each round does something, however slow the machine is
            armed = True
            while True:
                step()
                steps[None]
        except KeyboardInterrupt:
            caught += 1
    interrupting = False
    thread.join()
    n = steps[None]
    assert caught > 20 and n >= caught, (caught, n)
    assert (x.to_numpy() == np.int32(n) * np.arange(1 << 14, dtype=np.int32)).all()
    print("good")
"""


@pytest.mark.parametrize("arch", ["vulkan", "wgpu"])
def test_programs_go_on(arch: str) -> None:
    """No command is lost, and the process lives."""
    needs.need(arch)
    command = [sys.executable, "-c", textwrap.dedent(_PROGRAM), arch]
    run = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert (run.returncode, run.stdout.split()) == (0, ["good"]), run.stderr[-3000:]
