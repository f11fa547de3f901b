"""The corpus through the compiler of a GPU's driver, which a null device stands for."""

from __future__ import annotations

import needs

from validation.case import load
from validation.drivers.compiling import COMPILE, compile_all, corpus_sources
from validation.drivers.records import Record
from validation.drivers.setups import SETUPS
from validation.tools import OK


def test_corpus_compiles_for_an_amd_gpu() -> None:
    """Every pipeline becomes machine code of RDNA 2, and the driver tells its resources."""
    setup = SETUPS["radv-gfx1030@host"]
    needs.need("radv-gfx1030")
    record = Record(setup.name, "", "", "")
    compile_all(setup, record, corpus_sources(load()), [])
    assert "RADV" in record.driver
    wrong = {name: outcome for name, outcome in record.outcomes[COMPILE].items() if outcome[0] != OK}
    assert not wrong
    assert record.usage["most registers"] > 0 and record.usage["instructions"] > record.usage["pipelines"] > 400
