"""The page that `ci/drivers` writes, and which setups can be used."""

from __future__ import annotations

from pathlib import Path

import pytest

from validation.case import load
from validation.drivers import page, records
from validation.drivers.__main__ import main
from validation.drivers.records import Record
from validation.drivers.setups import SETUPS
from validation.drivers.systems import System

CASES = [case.name for case in load()]


def record(name: str, arch: str, **outcomes: tuple[str, str]) -> Record:
    return Record(name, "a driver 1.0", "2026-11-29", "abc", {arch: dict.fromkeys(CASES, ("ok", "")) | outcomes})


def test_the_page_counts_cases_by_outcome_and_reason() -> None:
    compiled = record(
        "turnip-a750@sid",
        "compile",
        add_sub_mul_f64=("refused", "this device (target vulkan) has no 64-bit floats, which a value of type f64 needs"),
        atomic_add_i64=("refused", "atomic add on `out` (i64) needs 64-bit atomics, which this device (target vulkan) lacks"),
    )
    ran = record("swiftshader@host", "vulkan", add_sub_mul_f64=("refused", "needs f64"), steps=("failed", "x | y is 3, not 4"))
    compiled.random, compiled.refusals, compiled.programs, compiled.seed = {"ok": 5, "refused": 4}, {"64-bit floats": 4}, 7, 2
    text = page.text([compiled, ran])
    assert f"| turnip-a750@sid | a driver 1.0 | compiles | {len(CASES) - 2} | 2 | 0 | 7 from seed 2: 5 ok, 4 refused | 2026-11-29 |" in text
    assert f"| swiftshader@host, vulkan | a driver 1.0 | executes | {len(CASES) - 2} | 1 | 1 | - | 2026-11-29 |" in text
    assert (
        "| setup | 64-bit floats | 64-bit atomics |\n|---|---|---|\n| turnip-a750@sid | 1 | 1 |\n"
        "| turnip-a750@sid, random programs | 4 |  |\n| swiftshader@host, vulkan | 1 |  |" in text
    )
    assert "| swiftshader@host, vulkan | steps | x \\| y is 3, not 4 |" in text


@pytest.mark.parametrize(
    ("message", "reason"),
    [
        ("needs i64, f64", "64-bit floats"),
        ("needs atomic_i64", "64-bit atomics"),
        ("needs i64, atomic_i64", "64-bit integers"),
        ("something new", "something new"),
    ],
)
def test_reasons_have_names(message: str, reason: str) -> None:
    ran = record("swiftshader@host", "vulkan", steps=("refused", message))
    assert f"| setup | {reason} |" in page.text([ran])


def test_rows_of_setups_without_a_record_stay() -> None:
    """Also columns that only they fill, and order is that of the setups."""
    turnip = record("turnip-a750@sid", "compile", add_sub_mul_f64=("refused", "needs f64"))
    ran = record("swiftshader@host", "vulkan", steps=("failed", "x | y"), shifts_u16=("refused", "something new"))
    turnip.usage, turnip.seconds = {"pipelines": 3}, 1.0
    page_before = page.text([turnip, ran])
    assert page.text([], page_before, [turnip.name, ran.name]) == page_before
    again = record("swiftshader@host", "vulkan")
    text = page.text([again], page_before, list(SETUPS))
    assert text == page.text([again, turnip]) and "something new" not in text
    assert page.text([], page_before, []) == page.text([])


def test_records_are_kept(tmp_path: Path) -> None:
    kept = record("swiftshader@host", "vulkan", steps=("failed", "wrong"))
    kept.save(tmp_path)
    found = records.load(tmp_path, kept.name)
    assert found is not None and found.failed
    assert [tuple(failure) for failure in found.failures()] == [("vulkan", "steps", "wrong")]
    assert records.load(tmp_path, "lavapipe@sid") is None


def test_a_system_that_is_not_unpacked_says_so() -> None:
    system = System("nowhere", "trixie")
    assert system.why_not(None) == "Debian's trixie is not unpacked: ci/drivers --prepare"


def test_the_list_names_all_setups(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--list"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines] == list(SETUPS)


def test_an_unknown_setup_is_an_error(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        main(["--only", "nothing"])
    assert "no setup fits; there are swiftshader@host" in capsys.readouterr().err
