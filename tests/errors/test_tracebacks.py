"""What Python prints of an error that is not caught: the user's own frames, the text of the error, nothing of the compiler."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import spirograd as sg

PACKAGE = str(Path(sg.__file__).parent)
HEAD = "import numpy as np\nimport spirograd as sg\n\nsg.init(arch=sg.interpreter, offline_cache=False, debug=True)\n"
COMPILATION = '''
@sg.kernel
def step(x: sg.f32) -> sg.f32:
    return x * speed

def main():
    return step(1.0)

main()
'''
EXPECTED = '''Traceback (most recent call last):
  File "example.py", line 13, in <module>
    main()
  File "example.py", line 11, in main
    return step(1.0)
           ^^^^^^^^^
spirograd.base.errors.SpirogradNameError: `speed` is not defined
  at example.py:8 in step
    8 | return x * speed
      |            ^^^^^
'''
# Each is an error of another kind, raised in another depth of the package.
PROGRAMS = {
    "compilation": COMPILATION,
    "argument": "@sg.kernel\ndef f(x: sg.f32):\n    pass\n\nf('one')\n",
    "missing argument": "@sg.kernel\ndef f(x: sg.f32):\n    pass\n\nf()\n",
    "fault": "@sg.kernel\ndef f(x: sg.f32):\n    assert x > 0\n\nf(-1.0)\n",
    "option": "sg.init(arch=sg.interpreter, sped=3)\n",
    "field": "sg.field('f32', shape=3)\n",
    "element": "x = sg.field(sg.f32, shape=3)\nx[5] = 1.0\n",
    "method": "@sg.data_oriented\nclass A:\n    @sg.kernel\n    def f(self) -> sg.f32:\n        return self.y\n\nA().f()\n",
    "python function": "def g():\n    return 1 // 0\n\n@sg.kernel\ndef f() -> sg.f32:\n    return g()\n\nf()\n",
    "while handling": "try:\n    {}['a']\nexcept KeyError:\n    sg.field(sg.f32, shape=-1)\n",
    "thread": "import threading\nt = threading.Thread(target=lambda: sg.field(sg.f32, shape=-1))\nt.start()\nt.join()\nexit(1)\n",
}


def stderr_of(program: str, folder: Path, **environment: str) -> str:
    file = folder / "example.py"
    file.write_text(HEAD + program)
    env = {k: v for k, v in os.environ.items() if not k.startswith("SG_")} | environment
    done = subprocess.run([sys.executable, str(file)], env=env, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 1, done.stderr
    return done.stderr.replace(str(file), "example.py")


@pytest.mark.parametrize("name", PROGRAMS)
def test_only_frames_of_the_user(name: str, tmp_path: Path) -> None:
    text = stderr_of(PROGRAMS[name], tmp_path)
    assert "spirograd.base.errors." in text
    assert 'File "example.py"' in text
    assert PACKAGE not in text, text


def test_whole_text(tmp_path: Path) -> None:
    found = stderr_of(COMPILATION, tmp_path)
    # Python's own carets differ by version; ours stand behind a bar.
    assert [line for line in found.splitlines() if line.strip(" ~^")] == [line for line in EXPECTED.splitlines() if line.strip(" ~^")]


def test_cause_in_user_code_is_shown(tmp_path: Path) -> None:
    text = stderr_of(PROGRAMS["python function"], tmp_path)
    assert "in g" in text
    assert "ZeroDivisionError" in text
    assert "`g`, which runs while compiling, raised ZeroDivisionError" in text


@pytest.mark.parametrize("how", ["variable", "option"])
def test_all_frames_on_demand(how: str, tmp_path: Path) -> None:
    if how == "variable":
        text = stderr_of(COMPILATION, tmp_path, SG_TRACEBACK="1")
    else:
        text = stderr_of("sg.init(arch=sg.interpreter, print_full_traceback=True)\n" + COMPILATION, tmp_path)
    assert PACKAGE in text


def test_errors_of_others_are_left_alone(tmp_path: Path) -> None:
    text = stderr_of("np.zeros(3).reshape(2)\n", tmp_path)
    assert "ValueError" in text


def test_errors_can_be_caught_as_pythons() -> None:
    """A user who knows Python's exceptions need not know ours."""
    pairs = {
        sg.SpirogradSyntaxError: SyntaxError,
        sg.SpirogradTypeError: TypeError,
        sg.SpirogradCallError: (SyntaxError, TypeError),
        sg.SpirogradNameError: NameError,
        sg.SpirogradIndexError: IndexError,
        sg.SpirogradRuntimeError: RuntimeError,
        sg.SpirogradRuntimeTypeError: TypeError,
        sg.SpirogradAssertionError: AssertionError,
        sg.OutOfDeviceMemory: MemoryError,
        sg.errors.SpirogradValueError: ValueError,
    }
    for ours, pythons in pairs.items():
        for base in pythons if isinstance(pythons, tuple) else (pythons,):
            assert issubclass(ours, base)
        assert issubclass(ours, sg.SpirogradError)
