"""What the start of a program with a warm offline cache takes."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import needs
import pytest

PROGRAM = """
import sys
import spirograd as sg
from spirograd.llvmgen import toolchain
from spirograd.runtime.devices import cpu_pool

compiled = []
def count(*args, **kwargs):
    compiled.append(args)
    return original(*args, **kwargs)
original, cpu_pool.compile_module = cpu_pool.compile_module, count

sg.init(arch=sg.cpu)
x = sg.field(sg.f32, shape=100000)

@sg.kernel
def fill(k: sg.f32):
    for i in x:
        x[i] = k * i

fill(2.0)
assert x[70000] == 140000.0
print(len(compiled), "spirograd.compiler" in sys.modules)
"""


@pytest.fixture
def run(tmp_path):
    needs.need("cpu")
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    environment = {**os.environ, "SG_CACHE_DIR": str(tmp_path / "cache"), "SG_OFFLINE_CACHE": "1"}

    def run() -> str:
        done = subprocess.run([sys.executable, str(program)], capture_output=True, text=True, timeout=120, env=environment)
        assert done.returncode == 0, done.stderr
        return done.stdout.strip()

    return run


def code_files(tmp_path: Path) -> list[Path]:
    return list((tmp_path / "cache").rglob("*.sgc"))


def test_a_second_process_compiles_nothing(run, tmp_path):
    assert run() == "1 True"
    (file,) = code_files(tmp_path)
    assert run() == "0 False"
    file.write_bytes(file.read_bytes()[:-1] + b"?")
    assert run() == "1 False"  # damaged code is made anew
    assert run() == "0 False"
    file.write_bytes(b"")
    assert run() == "1 False"


def test_clearing_the_cache_removes_the_code(run, tmp_path):
    from spirograd.runtime.cache import Cache

    run()
    cache = Cache(tmp_path / "cache")
    assert cache.stats().files == 1 and len(code_files(tmp_path)) == 1
    cache.clear()
    assert code_files(tmp_path) == [] and cache.stats().files == 0


def test_a_folder_that_cannot_be_written(tmp_path):
    from spirograd.runtime.cache import Cache

    (tmp_path / "file").write_text("")
    assert Cache(tmp_path / "file").code("source", lambda: b"code") == b"code"
