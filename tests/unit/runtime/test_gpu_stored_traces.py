"""Stored traces on CUDA and HIP, by stand-ins for their drivers, which compile and launch kernels without running them: a session that
recalls a trace sends the same code and the same arguments to the driver as one that traces."""

from __future__ import annotations

import importlib.util
import os
import pickle
import sys
import traceback

import pytest

import spirograd as sg
from spirograd.lang.frontend import kernel_tracing
from spirograd.runtime.devices.gpu import driver

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="processes are forks")
PROGRAM = """
import spirograd as sg

FACTOR = 2.0
x, y = sg.field(sg.f32, 1000), sg.field(sg.f32, 1000)

@sg.func
def scaled(v):
    return v * FACTOR

@sg.data_oriented
class Model:
    def __init__(self):
        self.shift = 1.5

    @sg.kernel
    def run(self, a: sg.types.ndarray(sg.f32, 1), n: sg.i32):
        for i in x:
            y[i] += scaled(x[i]) + self.shift
        for i in range(n):
            a[i] += 1.0

kernel = Model.run
Model().run(sg.ndarray(sg.f32, 100), 7)
"""


@pytest.fixture
def run(standin, tmp_path, monkeypatch):
    """Run the program in a process of its own: the kernels that were traced, the names, groups and sizes of launches, and the code."""
    monkeypatch.setenv("SG_CACHE_DIR", str(tmp_path / "cache"))
    traced = []
    trace = kernel_tracing._trace
    monkeypatch.setattr(kernel_tracing, "_trace", lambda source, *args: (traced.append(source.name), trace(source, *args))[1])

    def in_a_process(text, cached=True):
        monkeypatch.setenv("SG_OFFLINE_CACHE", str(int(cached)))
        reading, writing = os.pipe()
        child = os.fork()
        if child == 0:
            driver._started.clear()  # of an earlier test; stand-ins survive a fork
            try:
                outcome = in_a_session(text)
            except BaseException:
                outcome = traceback.format_exc()
            os.write(writing, pickle.dumps(outcome))
            os._exit(0)
        os.close(writing)
        with os.fdopen(reading, "rb") as data:
            outcome = pickle.loads(data.read())
        os.waitpid(child, 0)
        assert not isinstance(outcome, str), outcome
        return outcome

    def in_a_session(text):
        (tmp_path / "program.py").write_text(text)
        sg.init(arch=standin.api.arch)
        spec = importlib.util.spec_from_file_location("program", tmp_path / "program.py")
        program = importlib.util.module_from_spec(spec)
        monkeypatch.setitem(sys.modules, "program", program)
        monkeypatch.setattr(sys, "dont_write_bytecode", True)
        spec.loader.exec_module(program)
        launches = [(launch.name, launch.groups, launch.group_size, launch.size) for launch in standin.launches]
        kernels = list(traced)
        return kernels, launches, program.kernel.asm()

    return in_a_process


def test_a_recalled_trace_launches_the_same_code(run):
    first = run(PROGRAM)
    again = run(PROGRAM)
    assert first[0] == ["run"] and again[0] == []
    assert first[1] and first[1:] == again[1:]


@pytest.mark.parametrize("edit", [("FACTOR = 2.0", "FACTOR = 3.0"), ("self.shift = 1.5", "self.shift = 2.5"), ("1000", "1001")])
def test_what_changed_is_traced(run, edit):
    run(PROGRAM)
    changed = run(PROGRAM.replace(*edit))
    plain = run(PROGRAM.replace(*edit), cached=False)
    assert changed[0] == plain[0] == ["run"] and changed[1:] == plain[1:]
    assert run(PROGRAM)[0] == []
