"""The fixtures themselves: back ends, skips that are counted, requirements that fail."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import needs
import numpy as np
import pytest

import spirograd as sg

pytest_plugins = ["pytester"]

Run = Callable[..., pytest.RunResult]
CONFTEST = Path(needs.__file__).with_name("conftest.py")
PATHS = os.pathsep.join([str(CONFTEST.parent), str(CONFTEST.parent.parent)])
NO_DRIVER = "\nneeds.CHECKS |= dict.fromkeys(['vulkan', 'validation'], lambda: 'no driver')"
NO_VULKAN = NO_DRIVER + "\nneeds.ARCHS = ('interpreter', 'cpu', 'vulkan')\n"
BODY = "def test_it(session): pass"


def test_session_runs_kernels(session, arch):
    assert sg.cfg.arch == arch == session.arch
    x = sg.field(sg.i32, shape=8)

    @sg.kernel
    def fill():
        for i in x:
            x[i] = 2 * i

    fill()
    assert (x.to_numpy() == 2 * np.arange(8)).all()


@pytest.mark.archs("cpu")
def test_marker_restricts(arch):
    assert arch == "cpu"


@pytest.fixture(autouse=True)
def _no_plugins_of_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """They take a fifth of the time of the small runs below."""
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")


# A process that imports what pytest and `conftest.py` need, once, and then forks for each run: starting anew takes half a second each.
STARTER = """import json, os, sys
import pytest, _pytest.pytester, spirograd, needs
for line in sys.stdin:
    run = json.loads(line)
    child = os.fork()
    if child == 0:
        os.chdir(run["folder"])
        os.environ.clear()
        os.environ.update(run["environment"])
        for number, name in ((1, "out"), (2, "err")):
            os.dup2(os.open(name, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), number)
        status = pytest.main(run["arguments"])
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
"""


@pytest.fixture(scope="module")
def starter() -> Iterator[Any]:
    """See `STARTER`; None where processes cannot fork."""
    if not hasattr(os, "fork"):
        yield None
        return
    process = subprocess.Popen(
        [sys.executable, "-c", STARTER],
        env={**os.environ, "PYTHONPATH": PATHS, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    with process:
        yield process


@pytest.fixture
def run(pytester: pytest.Pytester, starter: Any) -> Run:
    """Runs pytest with these arguments in a process of its own."""

    def run_with(*arguments: str) -> pytest.RunResult:
        if starter is None:
            return pytester.runpytest_subprocess(*arguments)
        arguments = (f"--basetemp={pytester.path}/base", *arguments)
        order = {"folder": str(pytester.path), "environment": dict(os.environ), "arguments": arguments}
        print(json.dumps(order), file=starter.stdin, flush=True)
        status = int(starter.stdout.readline())
        out, err = [(pytester.path / name).read_text().splitlines() for name in ("out", "err")]
        return pytest.RunResult(status, out, err, 0.0)

    return run_with


def _run(
    pytester: pytest.Pytester,
    monkeypatch: pytest.MonkeyPatch,
    run: Run,
    demanded: str,
    body: str = BODY,
    options: tuple[str, ...] = (),
) -> pytest.RunResult:
    monkeypatch.setenv("PYTHONPATH", PATHS)
    monkeypatch.setenv("SG_TEST_REQUIRE", demanded)
    pytester.makeconftest(CONFTEST.read_text() + NO_VULKAN)
    pytester.makepyfile(body)
    return run("-p", "no:cacheprovider", *options)


def test_missing_back_end_is_counted(pytester, monkeypatch, run):
    result = _run(pytester, monkeypatch, run, "")
    result.assert_outcomes(passed=2, skipped=1)
    result.stdout.fnmatch_lines(["*missing on this machine*", "1 test skipped: vulkan: no driver"])


def test_required_back_end_fails(pytester, monkeypatch, run):
    result = _run(pytester, monkeypatch, run, "cpu,vulkan")
    result.assert_outcomes(passed=2, errors=1)
    result.stdout.fnmatch_lines(["*missing vulkan, which SG_TEST_REQUIRE demands: no driver*"])


TORCH = "import needs\ntorch = needs.package('torch')\ndef test_without(): pass\ndef test_with(): assert torch.tau(2) == 4\n"


def _torch(pytester, monkeypatch, run, present, *arguments):
    """The outcome of a test that uses torch and of one that does not, with a torch of our own and without any."""
    monkeypatch.setenv("PYTHONPATH", PATHS)
    monkeypatch.delenv("SG_TEST_REQUIRE", raising=False)
    check = f"\nneeds.CHECKS['torch'] = lambda: {None if present else 'not installed'!r}\n"
    pytester.makeconftest(CONFTEST.read_text() + NO_VULKAN + check)
    pytester.makepyfile(TORCH)
    pytester.makepyfile(torch="def tau(x): return 2 * x")
    monkeypatch.syspath_prepend(pytester.path)
    return run("-p", "pytester", *arguments)


def test_tests_of_torch_run_where_it_is(pytester, monkeypatch, run):
    refused = _torch(pytester, monkeypatch, run, True, "--missed", "torch")
    refused.stderr.fnmatch_lines(["*--missed torch: the last run skipped no test for it*"])
    without = _torch(pytester, monkeypatch, run, False)
    without.assert_outcomes(passed=1, skipped=1)
    without.stdout.fnmatch_lines(["1 test skipped: torch: not installed"])
    pytester.makepyfile(test_of_none_missed="raise AssertionError('imported')")
    for _ in range(2):
        with_torch = _torch(pytester, monkeypatch, run, True, "--missed", "torch")
        with_torch.assert_outcomes(passed=1, deselected=1)


def test_files_of_tests_load_without_what_may_be_missing():
    """An import at the top fails without torch, JAX or wgpu (Python 3.10), and `importorskip` skips tests that do not need it, without a
    name in the summary."""
    devices = r"^(import|from) spirograd\.runtime\.devices(\.| import .*\b)wgpu\b"
    pattern = re.compile(rf"^(import|from) (torch|jax|wgpu)\b|{devices}|importorskip\(", re.MULTILINE)
    files = [path for path in CONFTEST.parent.rglob("*.py") if path != Path(__file__)]
    assert files and [path for path in files if "programs" not in path.parts and pattern.search(path.read_text(encoding="utf-8"))] == []


@pytest.mark.parametrize(("options", "ran", "left_out"), [((), "small", 0), (("--long",), "large", 1)])
def test_long_tests_run_on_demand(pytester, monkeypatch, run, options, ran, left_out):
    sizes = "['small', pytest.param('large', marks=pytest.mark.long)]"
    body = f"import pytest\n\n@pytest.mark.parametrize('n', {sizes})\ndef test_it(n): print(n)\n"
    result = _run(pytester, monkeypatch, run, "", body, ("-rP", *options))
    result.assert_outcomes(passed=1, deselected=left_out)
    result.stdout.fnmatch_lines([ran])


ALTERNATING = """import pytest

pytestmark = pytest.mark.vulkan_or_wgpu

@pytest.mark.parametrize('k', range(3))
def test_cases(arch, k): pass

def test_one(arch): pass

def test_two(arch): pass

@pytest.mark.parametrize('k', range(8))
def test_many(arch, k): pass
"""
ALL = "012 one two 01234567"


@pytest.mark.parametrize(
    ("missing", "options", "wanted"),
    [
        ("None", (), {"interpreter": "01 7", "cpu": "02 one two 0167", "vulkan": "1 two 34", "wgpu": "one 25"}),
        ("None", ("--long",), {"interpreter": "2 one two 0123456", "cpu": "1 2345", "vulkan": "02 one 012567", "wgpu": "012 two 013467"}),
        ("'no package'", (), dict.fromkeys(["interpreter", "cpu", "vulkan", "wgpu"], ALL)),
    ],
    ids=["by day", "at night", "without wgpu"],
)
def test_cases_take_turns(pytester, missing, options, wanted, monkeypatch, run):
    checks = f"\nneeds.CHECKS |= {{'vulkan': lambda: None, 'wgpu': lambda: {missing}}}\nneeds.ARCHS = {tuple(wanted)}\n"
    monkeypatch.setenv("PYTHONPATH", PATHS)
    pytester.makeconftest(CONFTEST.read_text() + checks)
    pytester.makepyfile(ALTERNATING)
    said = run("-p", "no:cacheprovider", "--collect-only", *options).stdout.str()

    def found(arch: str) -> str:
        few, many = ("".join(re.findall(rf"test_{name}\[{arch}-(\d)\]", said)) for name in ("cases", "many"))
        return " ".join(filter(None, [few, *re.findall(rf"test_(one|two)\[{arch}\]", said), many]))

    assert {arch: found(arch) for arch in wanted} == wanted


ON = """import pytest

@pytest.mark.vulkan_or_wgpu
def test_marked(arch): assert arch != 'cpu', 'as planned'

def test_that_names_cpu(): pass

def test_of_none(): pass
"""


def test_back_ends_are_chosen_and_failures_written(pytester, monkeypatch, run):
    """By the back end that tests run on, whatever their marks are called; failures as they happen."""
    file = pytester.path / "failures"
    for names, outcomes in (
        ("cpu", {"passed": 1, "failed": 1}),
        ("interpreter", {"passed": 1}),
        ("cpu,interpreter", {"passed": 2, "failed": 1}),
    ):
        result = _run(pytester, monkeypatch, run, "", ON, ("--on", names, "--failures", str(file)))
        result.assert_outcomes(**outcomes, deselected=5 - sum(outcomes.values()))
        assert ("test_marked[cpu], call" in file.read_text() and "as planned" in file.read_text()) == ("cpu" in names)
    refused = _run(pytester, monkeypatch, run, "", ON, ("--on", "cpus"))
    refused.stderr.fnmatch_lines(["*--on cpus: there are interpreter, cpu, *"])


ELSEWHERE = """def test_elsewhere(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert False, 'as planned'
"""


@pytest.mark.parametrize("workers", [(), ("-p", "xdist", "-n", "1")], ids=["here", "xdist"])
def test_no_failure_is_left_out(pytester, monkeypatch, run, workers):
    """Of tests that change the current folder, and of files that cannot be collected, in a folder that does not exist yet."""
    pytester.makepyfile(test_broken="raise ImportError('a planted error')")
    options = ("--continue-on-collection-errors", "--failures", "new/folder/failures", *workers)
    result = _run(pytester, monkeypatch, run, "", ELSEWHERE, options)
    result.assert_outcomes(failed=1, errors=1)
    found = (pytester.path / "new" / "folder" / "failures").read_text()
    assert "test_elsewhere, call" in found and "as planned" in found
    assert "test_broken.py, while tests were collected" in found and "a planted error" in found


@pytest.mark.parametrize("words", ["fence", "busi,fenced", "fenced busy"])
def test_cards_have_names(words):
    environment = {**os.environ, "PYTHONPATH": PATHS, "SG_TEST_CARD": words}
    done = subprocess.run([sys.executable, "-c", "import card"], env=environment, capture_output=True, text=True)
    assert done.returncode == 1 and f"SG_TEST_CARD={words}: expected 1, or `fenced` and `busy` with a comma" in done.stderr
