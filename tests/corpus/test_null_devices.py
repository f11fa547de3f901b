"""A setup of `ci/drivers` that only compiles; test_corpus.py has the whole corpus through its compiler."""

from __future__ import annotations

import pytest

from validation.case import load
from validation.drivers.compiling import COMPILE, compile_all, corpus_sources
from validation.drivers.records import Record
from validation.drivers.setups import SETUPS
from validation.tools import OK

CASES = ("steps", "gradient_serial", "sums_f32")


@pytest.mark.needs("radv-gfx1030")
def test_cases_compile_for_an_amd_gpu() -> None:
    setup = SETUPS["radv-gfx1030@host"]
    record = Record(setup.name, "", "", "")
    compile_all(setup, record, corpus_sources([case for case in load() if case.name in CASES]), [])
    assert "RADV" in record.driver
    assert record.outcomes[COMPILE] == dict.fromkeys(CASES, (OK, ""))
    assert record.usage["most registers"] > 0 and record.usage["instructions"] > record.usage["pipelines"] > len(CASES)
