"""Fixtures of all tests; see README.md beside this file."""

from __future__ import annotations

import functools
import gc
import itertools
import os
import re
import sys
import time
import zlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

# These are read when drivers and the package load, so they come before any import of spirograd. lavapipe's optimiser is cubic in
# the number of loops; what a test caches on disk another test must not find.
os.environ.setdefault("GALLIVM_PERF", "nopt")
os.environ.setdefault("SG_OFFLINE_CACHE", "0")
os.environ.setdefault("SG_TUNE", "0")  # times decide nothing in tests but those of tuning
os.environ.setdefault("MPLBACKEND", "Agg")
os.environ.setdefault("SG_CHECK_TAPES", "1")  # every tape of every test is checked against the table of what tapes save
os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")  # else JAX takes three quarters of a GPU in each process

import needs
import pytest
from _pytest.assertion import rewrite

import spirograd as sg
from spirograd.base import knobs
from spirograd.base.records import replace
from spirograd.lang.data.tree import root
from spirograd.llvmgen import toolchain
from spirograd.spirvgen import emit

if os.environ.get("SG_TEST_CARD"):
    import card  # noqa: F401

ROOT = Path(__file__).resolve().parent.parent
_MISSED = "spirograd/missed"  # key in pytest's cache: name of what was missing -> tests that the last run skipped for it
# What would make results depend on the shell that tests are started from; with the last, each of the hundreds of processes that tests start
# would compile the package anew.
_FOREIGN = ("SG_ARCH", "SG_DUMP", "SG_OVERRIDE", "SG_DEBUG", "SG_LOG", "PYTHONDONTWRITEBYTECODE")
# LLVM optimises one of so many modules for the CPU, and all if SG_TEST_OPTIMIZE is 1, in long runs, and in tests marked `optimized`.
_ONE_IN = 8
_optimized = pytest.StashKey[bool]()
_failed = pytest.StashKey[bool]()
_files_missed = pytest.StashKey[set[Path]]()
_PAIR = ("vulkan", "wgpu")
_SHOWN = 6000  # characters of a failure
_SEVERAL, _MANY = 2, 4  # cases of a test marked `vulkan_or_wgpu`: with several, the CPU runs some and Vulkan or wgpu the others


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--bless", action="store_true", help="rewrite the expected texts of tests/text and tests/errors")
    parser.addoption("--missed", metavar="NAMES", help="run only tests that the last run skipped for lack of NAMES (needs.py)")
    parser.addoption("--on", metavar="ARCHS", help="run only tests on these back ends (cuda,vulkan); -k takes names of marks, too")
    parser.addoption("--failures", metavar="FILE", help="write each failure to FILE when it happens: it is there even if the run is ended")
    parser.addoption("--long", action="store_true", help="run the tests that are marked long, and no others")


@pytest.hookimpl(tryfirst=True)  # before xdist looks at the option
def pytest_cmdline_main(config: pytest.Config) -> None:
    """With `-n`: neighbours run in one process, which makes once what they share, such as Jacobians and modules."""
    if config.getoption("numprocesses", None) and config.option.dist == "no":
        config.option.dist = "worksteal"


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "archs(*names): run a test that takes the `arch` fixture on these back ends only")
    config.addinivalue_line("markers", "long: on a large scale what another test does on a small one; `pytest --long` runs these only")
    turns = "cases take turns on the two, the interpreter, and, where they are many, the CPU; `pytest --long` runs the rest"
    config.addinivalue_line("markers", f"vulkan_or_wgpu: {turns}")
    config.addinivalue_line("markers", "optimized: LLVM optimises all modules of the test for the CPU; of other tests one in eight")
    config.addinivalue_line("markers", "needs(*names): what the test needs, by the names in tests/needs.py; missing ones skip it")
    if not config.getoption("--long"):
        config.pluginmanager.register(_ByDay())
    for name in _FOREIGN:
        os.environ.pop(name, None)
    sys.dont_write_bytecode = False
    needs.required()  # a misspelt name is an error at once
    file = config.getoption("--failures")
    if file is not None and not hasattr(config, "workerinput"):
        config.pluginmanager.register(_Failures(Path(file)))
    names = [*filter(None, (config.getoption("--missed") or "").split(","))]
    for name in names:
        if name not in _missed(config):
            raise pytest.UsageError(f"--missed {name}: the last run skipped no test for it; run the tests where it is missing first")
    if names:
        config.stash[_files_missed] = {config.rootpath / test.partition("::")[0] for name in names for test in _missed(config)[name]}


def pytest_sessionstart(session: pytest.Session) -> None:
    """In a process of xdist: send no reports of fixtures that did their work and said nothing. They are two thirds of all reports, and
    nothing counts or shows them but `--durations`; receiving them takes the first process a percent of the time of all tests."""
    for plugin in session.config.pluginmanager.get_plugins():
        if type(plugin).__name__ == "WorkerInteractor" and not session.config.option.durations:
            plugin.sendevent = _without_fixtures(plugin.sendevent)


def _without_fixtures(send: Callable[..., None]) -> Callable[..., None]:
    def send_some(name: str, **event: Any) -> None:
        report = event.get("data", {})
        if name != "testreport" or report["when"] == "call" or report["outcome"] != "passed" or report["sections"]:
            send(name, **event)

    return send_some


def pytest_collection(session: pytest.Session) -> None:
    gc.disable()  # until all tests are collected
    _rewrite_a_share(session.config)


def _rewrite_a_share(config: pytest.Config) -> None:
    """In a process of xdist that runs all tests: compile a share of their files as pytest will, where that has not been done. All processes
    import all files, in one order: in a new checkout, each would compile all, which takes it five seconds."""
    worker = getattr(config, "workerinput", None)
    known = all(hasattr(rewrite, name) for name in ("_rewrite_test", "_write_pyc", "get_cache_dir"))  # which are no interface
    if worker is None or not known or config.args != config.getini("testpaths") or sys.dont_write_bytecode:
        return
    number, count = int(worker["workerid"].removeprefix("gw")), worker["workercount"]
    for path in sorted(Path(__file__).parent.rglob("test_*.py"))[number::count]:
        compiled = rewrite.get_cache_dir(path) / (path.stem + rewrite.PYC_TAIL)
        if not compiled.exists():
            compiled.parent.mkdir(parents=True, exist_ok=True)
            source, code = rewrite._rewrite_test(path, config)
            rewrite._write_pyc(config.stash[rewrite.assertstate_key], code, source, compiled)


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """With `--missed`: test files of which no test is wanted are not imported. They are nine in ten, and each process would import all."""
    wanted = config.stash.get(_files_missed, None)
    return True if wanted is not None and collection_path.suffix == ".py" and collection_path not in wanted else None


@pytest.hookimpl(tryfirst=True)  # before the plugin of Hypothesis
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    _draw_no_constants_of_modules()
    if not any("::" in arg for arg in config.args):  # a test that is named runs
        _alternate(items)
    long, names = config.getoption("--long"), config.getoption("--missed")
    missed = None if names is None else {test for name in names.split(",") for test in _missed(config)[name]}
    archs = {*filter(None, (config.getoption("--on") or "").split(","))}
    known = dict.fromkeys((*needs.ARCHS, *needs.RARE, "metal"))
    if archs - known.keys():
        raise pytest.UsageError(f"--on {config.getoption('--on')}: there are {', '.join(known)}")

    def is_wanted(item: pytest.Item) -> bool:
        return (
            (item.get_closest_marker("long") is not None) == long
            and (missed is None or item.nodeid in missed)
            and (not archs or _is_on(item, archs))
        )

    left_out = [item for item in items if not is_wanted(item)]
    if left_out:
        config.hook.pytest_deselected(items=left_out)
        items[:] = [item for item in items if is_wanted(item)]


def _is_on(item: pytest.Item, archs: set[str]) -> bool:
    """Whether a test runs on one of these back ends: it has that as a parameter, or else names it."""
    callspec = getattr(item, "callspec", None)
    given = None if callspec is None else callspec.params.get("arch")
    return given in archs if isinstance(given, str) else any(arch in item.nodeid for arch in archs)


class _Failures:
    """Writes failures to a file as they happen: when, the last lines of each, and which tests ran at that time in other processes. On some
    machines a card that one process has upset is lost for all: then the first failure tells, and what ran longest beside it."""

    def __init__(self, path: Path) -> None:
        self._path = path.resolve()  # tests may change the current folder
        self._running: dict[str, float] = {}
        self._path.parent.mkdir(parents=True, exist_ok=True)
        self._path.write_text("")

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        self._running[nodeid] = time.monotonic()

    def pytest_runtest_logfinish(self, nodeid: str) -> None:
        self._running.pop(nodeid, None)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            now = time.monotonic()
            beside = [f"beside it for {now - start:.1f} s: {name}" for name, start in self._running.items() if name != report.nodeid]
            self._write(report, f", {report.when}, {report.duration:.1f} s", *beside)

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.failed:
            self._write(report, ", while tests were collected")

    def _write(self, report: pytest.TestReport | pytest.CollectReport, what: str, *beside: str) -> None:
        with self._path.open("a") as out:
            out.write("\n".join([f"{time.strftime('%H:%M:%S')} {report.nodeid}{what}", *beside, report.longreprtext[-_SHOWN:], "", ""]))


def _alternate(items: list[pytest.Item]) -> None:
    """Of the cases of tests that are marked `vulkan_or_wgpu`, leave some back ends to long runs (`_later`).

    Where Vulkan or wgpu is missing, all others run all cases; where there is a GPU, whose drivers differ more, all run all."""
    if any(map(needs.missing, _PAIR)) or {*needs.ARCHS} & {*needs.RARE}:
        return
    files: dict[Path, dict[tuple[str, str], dict[str, pytest.Item]]] = {}  # file -> test and case without the back end -> back end -> item
    for item in items:
        test, _, case = item.nodeid.partition("[")
        if item.get_closest_marker("vulkan_or_wgpu") and not item.get_closest_marker("long"):
            for arch in {*_PAIR, "interpreter", "cpu"} & {*re.split(r"[-\]]", case)}:
                files.setdefault(item.path, {}).setdefault((test, case.replace(arch, "")), {})[arch] = item
    for cases in files.values():
        paired = [key for key, on in cases.items() if {*_PAIR} <= {*on}]
        sizes = Counter(test for test, _ in paired)
        places = {test: itertools.count() for test in sizes}
        for number, key in enumerate(paired):
            for arch in _later(number, next(places[key[0]]), sizes[key[0]], cases[key]):
                cases[key][arch].add_marker(pytest.mark.long)


def _later(number: int, place: int, size: int, archs: Iterable[str]) -> set[str]:
    """The back ends that leave a case to long runs: the ``number``-th of its file, the ``place``-th of ``size`` of its test.

    They take turns as in the sequence of Thue and Morse: where each second case has a parameter in common, these meet all.
    One generator makes the modules of Vulkan and wgpu, so either shows what the cases vary. The interpreter runs what the front end makes,
    which the others run, too; three in four cases do without. Of a test of several cases, half run on the CPU, and the others on Vulkan or
    wgpu, of many on both: what the cases vary is decided before these differ, and both code generators have the test."""
    later = {_PAIR[number.bit_count() % 2]}
    if "cpu" in archs and size >= _MANY:
        later = {"cpu", _PAIR[(place + place // 4) % 2]} if (place // 2).bit_count() % 2 else {*_PAIR}
    elif "cpu" in archs and size >= _SEVERAL:
        later = {"cpu", *later} if place % 2 else {*_PAIR}
    if {"interpreter", "cpu"} <= {*archs} and ((number // 2).bit_count() % 2 or (number // 4).bit_count() % 2):
        later.add("interpreter")
    return later


def pytest_collection_finish(session: pytest.Session) -> None:
    """LLVM and spirv-val see each module once: many tests launch the kernels of others. Test files that call these functions themselves
    have imported them already, as they are.

    Modules and test items live until the end: the cycle collector need not look at them, not even once, which would take each process three
    seconds. The little garbage among them stays.
    """
    for module, name in ((toolchain, "compile_module"), (emit, "validate")):
        setattr(module, name, functools.lru_cache(1000)(getattr(module, name)))
    toolchain.compile_module = _optimizing_some(toolchain.compile_module, session.config)
    gc.freeze()
    gc.set_threshold(1_000_000, 20, 20)  # it would take 6 % of the time otherwise
    gc.enable()


def _optimizing_some(compile_module: Callable[..., Any], config: pytest.Config) -> Callable[..., Any]:
    """``compile_module`` that optimises one in `_ONE_IN` modules and compiles the others at level 0, which takes a fifth of the time: what
    tests compare must not depend on it. The choice depends on the text, but for numbers in it: fields are numbered as tests make them.

    Modules whose stages are kept, to be looked at, are optimised; those for which the session asks for another level get that."""

    def compile_some(text: str, caps: Any, options: Any, need: int = 3, slp: bool = True) -> Any:
        if not config.stash[_optimized] and not options.keep_stages and options.opt_level == 3:
            letters = text.encode().translate(None, b"0123456789")
            options = replace(options, opt_level=0 if zlib.crc32(letters) % _ONE_IN else 3)
        return compile_module(text, caps, options, need, slp)

    return compile_some


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "arch" not in metafunc.fixturenames:
        return
    marker = metafunc.definition.get_closest_marker("archs")
    names = [name for name in marker.args if name not in needs.RARE or name in needs.ARCHS] if marker else needs.ARCHS
    given = [mark for mark in metafunc.definition.iter_markers("parametrize") if "arch" in re.split(r"\s*,\s*", str(mark.args[0]))]
    if not given:  # a test may also list its back ends itself
        metafunc.parametrize("arch", names, indirect=True)


class _ByDay:
    """Makes no tests of cases that are marked long: they are two in five, and each takes time in every process."""

    @pytest.hookimpl(wrapper=True)
    def pytest_generate_tests(self, metafunc: pytest.Metafunc) -> Iterator[None]:
        yield
        calls = [call for call in metafunc._calls if not any(mark.name == "long" for mark in call.marks)]
        metafunc._calls = calls or metafunc._calls  # of none, pytest would make a test without parameters


def _draw_no_constants_of_modules() -> None:
    """Hypothesis puts numbers that it finds in the source of all modules among those that it draws. Reading that takes each process three
    seconds, and what is drawn would depend on which other tests run."""
    providers = sys.modules.get("hypothesis.internal.conjecture.providers")
    if hasattr(providers, "_get_local_constants"):  # which is no interface: elsewhere it takes its time
        providers._get_local_constants = lambda: providers._local_constants


@pytest.hookimpl(tryfirst=True)  # before fixtures launch kernels
def pytest_runtest_setup(item: pytest.Item) -> None:
    always = item.config.getoption("--long") or os.environ.get("SG_TEST_OPTIMIZE", "0") != "0"
    item.config.stash[_optimized] = always or item.get_closest_marker("optimized") is not None
    for mark in item.iter_markers("needs"):
        for name in mark.args:
            needs.need(name)


def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> None:
    item.stash[_failed] = call.when == "call" and call.excinfo is not None


@pytest.fixture(scope="module")
def younger_garbage() -> None:
    """What is alive before a file is no garbage of its tests: `gc.collect` in them need not look at it (a fifth of a second each time)."""
    gc.collect()
    gc.freeze()
    root.reset()  # fields hang on it, and what is in a cycle with something that is frozen is never freed


@pytest.fixture(autouse=True, scope="module")
def _younger_garbage(request: pytest.FixtureRequest) -> None:
    if hasattr(request.module, "gc"):
        request.getfixturevalue("younger_garbage")


@pytest.fixture
def arch(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The name of a back end; the test runs once on each. At the end all work is waited for, and the session reset.

    On Vulkan the validation layer is on where it is installed: its messages are errors, and it checks every module as spirv-val does. On
    wgpu, and on Vulkan without the layer, spirv-val sees every module. SG_VALIDATION=0 and SG_VALIDATE=0 switch them off.
    """
    name: str = request.param
    needs.need(name)
    for knob, tool, archs in (("SG_VALIDATION", "validation", ("vulkan",)), ("SG_VALIDATE", "spirv-val", ("vulkan", "wgpu"))):
        if name in archs and knob not in os.environ and needs.missing(tool) is None:
            monkeypatch.setenv(knob, "1")
            break
    if any("jax" in mark.args for mark in request.node.iter_markers("needs")):
        config = needs.package("jax").config  # its arrays are to lie where the back end can use them
        config.update("jax_default_device", None if name in needs.RARE else needs.package("jax").devices("cpu")[0])
    yield name
    try:
        # If the test has lost its device, and failed for that, waiting for it would be a second error.
        known = request.node.stash.get(_failed, False)
        if sg.lang.context.has_session() and not (known and getattr(sg.lang.context.session().device, "_trouble", "")):
            sg.sync()
    finally:
        sg.reset()


@pytest.fixture
def session(arch: str) -> Any:
    """A session on ``arch`` with default options; tests that need others call ``sg.init(arch=arch, ...)`` themselves."""
    sg.init(arch=arch)
    return sg.lang.context.session()


def _missed(config: pytest.Config) -> dict[str, list[str]]:
    assert config.cache is not None, "--missed needs pytest's cache"
    found: dict[str, list[str]] = config.cache.get(_MISSED, {})
    return found


def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:
    """Name what the machine lacks, and how many tests were skipped for it. Keep which, for `--missed`."""
    counts: Counter[str] = Counter()
    missed: dict[str, list[str]] = {}
    for report in terminalreporter.stats.get("skipped", ()):
        text = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
        found = re.match(rf"Skipped: {needs.PREFIX}((.+?):.+)", text, re.DOTALL)
        if found:
            counts[found[1].splitlines()[0]] += 1
            missed.setdefault(found[2], []).append(report.nodeid)
    if getattr(config, "cache", None) is not None and config.getoption("--missed") is None:
        config.cache.set(_MISSED, missed)
    if counts:
        terminalreporter.section("missing on this machine")
        for reason, number in sorted(counts.items()):
            terminalreporter.line(f"{number} test{'s' if number > 1 else ''} skipped: {reason}")


def pytest_report_header() -> str:
    present = [name for name in needs.ARCHS if needs.missing(name) is None]
    layer = "no" if needs.missing("validation") else "yes"
    on = ", ".join(f"{name}={os.environ[name]}" for name in sorted({*knobs.KNOBS, "GALLIVM_PERF", "SG_TEST_REQUIRE"}) if name in os.environ)
    return f"back ends: {', '.join(present)}; validation layer: {layer}; {on}"
