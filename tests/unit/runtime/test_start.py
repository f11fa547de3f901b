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
    """The pool's code, and the hashes of the sources of the compiler, without and with the language."""
    return sorted((tmp_path / "cache").rglob("*.sgc"), key=lambda file: -file.stat().st_size)


def test_a_second_process_compiles_nothing(run, tmp_path):
    assert run() == "1 True"
    file, *remembered = code_files(tmp_path)
    assert run() == "0 False"
    for hashed in remembered:
        hashed.write_bytes(b"damaged")
    assert run() == "0 False"
    file.write_bytes(file.read_bytes()[:-1] + b"?")
    assert run() == "1 False"  # damaged code is made anew
    assert run() == "0 False"
    file.write_bytes(b"")
    assert run() == "1 False"


def test_clearing_the_cache_removes_the_code(run, tmp_path):
    from spirograd.runtime.offline_cache import Cache

    run()
    cache = Cache(tmp_path / "cache")
    assert cache.stats().files == 1 and len(code_files(tmp_path)) == 3
    cache.clear()
    assert code_files(tmp_path) == [] and cache.stats().files == 0


def test_a_folder_that_cannot_be_written(tmp_path):
    from spirograd.runtime.offline_cache import Cache

    (tmp_path / "file").write_text("")
    assert Cache(tmp_path / "file").code("source", lambda: b"code") == b"code"


FORKING = """
import os
import spirograd as sg

sg.init(arch=sg.cpu)  # a thread begins to make the pool's code
child = os.fork()
x = sg.field(sg.f32, shape=100000)

@sg.kernel
def fill(k: sg.f32):
    for i in x:
        x[i] = k * i

fill(2.0)
assert x[70000] == 140000.0
if child == 0:
    os._exit(0)
assert os.waitpid(child, 0)[1] == 0
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="only systems with fork")
def test_a_fork_right_after_init(tmp_path):
    needs.need("cpu")
    program = tmp_path / "program.py"
    program.write_text(FORKING)
    for _ in range(3):
        done = subprocess.run([sys.executable, str(program)], capture_output=True, text=True, timeout=120)
        assert done.returncode == 0, done.stderr


def test_the_source_of_the_compiler_is_hashed_once(tmp_path, monkeypatch):
    from spirograd import kernel_key
    from spirograd.runtime.offline_cache import Cache

    (tmp_path / "llvmgen").mkdir()
    for name in ("base", "ir", "analysis", "transforms"):
        (tmp_path / name).mkdir()
    for name in ("compiler.py", "kernel_key.py", "llvmgen/emit.py"):
        (tmp_path / name).write_text("first")
    monkeypatch.setattr(kernel_key, "__file__", str(tmp_path / "kernel_key.py"))
    hashed = []
    monkeypatch.setattr(kernel_key, "_hash", lambda files, original=kernel_key._hash: hashed.append(files) or original(files))
    cache = Cache(tmp_path / "cache")

    def fingerprint() -> str:
        """As in a new process."""
        monkeypatch.setattr(kernel_key, "_known", {})
        return kernel_key._fingerprint("llvmgen", cache.code)

    before = fingerprint()
    assert fingerprint() == before and len(hashed) == 1
    (tmp_path / "llvmgen/emit.py").write_text("second")
    assert fingerprint() != before and len(hashed) == 2
    (tmp_path / "llvmgen/emit.py").write_text("first")
    os.utime(tmp_path / "llvmgen/emit.py", (1, 1))
    assert fingerprint() == before and len(hashed) == 3
