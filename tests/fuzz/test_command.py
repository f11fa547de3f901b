"""``python -m tests.fuzz`` itself, with a fuzzer whose programs are numbers."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from . import __main__ as command


def check(program: int, archs: Sequence[str]) -> None:
    if program == 3:
        raise command.gradients.Skipped
    assert program != 5, "five"


def failure(program: int, archs: Sequence[str]) -> str:
    return "five" if program in (5, 55) else ""


@pytest.fixture(autouse=True)
def numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    fuzzer = command.Fuzzer(lambda seed: seed, check, failure, lambda program, archs: 55, ("cpu",))
    monkeypatch.setattr(command, "FUZZERS", {"even": replace(fuzzer, write=lambda seed: 2 * seed), "all": fuzzer})


def run(folder: Path, *options: str) -> int:
    return command.main([*options, "--out", str(folder), "--on", "cpu"])


def test_failures_are_shortened_and_repeatable(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(tmp_path, "--seed", "1", "--count", "4") == 0
    assert run(tmp_path, "--seed", "1", "--count", "6") == 1
    again = "python -m tests.fuzz all --seed 5 --count 1 --on cpu"
    assert (tmp_path / "failures.txt").read_text() == f"=== {again}\nfive\n55\n"
    assert f"=== {again}" in capsys.readouterr().out
    assert run(tmp_path, *again.split()[3:]) == 1
    assert run(tmp_path, "even", "--seed", "1", "--count", "6") == 0


def test_resuming(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(tmp_path, "all", "--seed", "2", "--count", "2") == 0
    assert run(tmp_path, "--resume", "--count", "2") == 1
    assert [line.split() for line in capsys.readouterr().out.splitlines()[-3:]] == [
        ["fuzzer", "passed", "skipped", "failed", "programs"],
        ["all", "2", "1", "1", "4"],
        ["all", "2", "1", "1", "4"],
    ]
    state = json.loads((tmp_path / "state.json").read_text())
    assert state == {
        "kinds": ["all"],
        "next": 6,
        "counts": {"all passed": 2, "all skipped": 1, "all failed": 1},
        "running": "",
        "programs": {"all, cpu": 2},
        "comparisons": {"all, cpu": 2},
        "faults": {"all: five": 1},
        "recorded": {},
    }


def test_a_crash_is_a_failure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The process ends while a program runs: the run after it names the program, and leaves it out."""

    def crash(*_: object) -> str:
        raise SystemExit

    with monkeypatch.context() as patched, pytest.raises(SystemExit):
        patched.setattr(command, "outcome", crash)
        run(tmp_path, "all", "--seed", "7", "--count", "1")
    assert run(tmp_path, "--resume", "--count", "1") == 1
    assert "all --seed 7 --count 1 --on cpu\nthe process ended" in (tmp_path / "failures.txt").read_text()
    assert json.loads((tmp_path / "state.json").read_text())["next"] == 9


def test_unknown_fuzzers(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        run(tmp_path, "odd")
    assert "there is no fuzzer odd; there are even, all" in capsys.readouterr().err
