"""Options of `init` from the environment variables of Taichi and Quadrants, which programs of the family are started with."""

import pytest

import spirograd as sg
from spirograd.compat import quadrants as qd
from spirograd.compat import taichi as ti

pytestmark = pytest.mark.archs("cpu")
MEMBERS = {"TI": ti, "QD": qd}


@pytest.mark.parametrize("prefix", MEMBERS)
def test_variables_set_options_that_the_program_does_not(arch, prefix, monkeypatch):
    library = MEMBERS[prefix]
    for name, text in {
        "DEBUG": "1",
        "FAST_MATH": "0",
        "RANDOM_SEED": "7",
        "DEFAULT_FP": "64",
        "MAX_BLOCK_DIM": "0",
        "NOTHING": "1",
    }.items():
        monkeypatch.setenv(f"{prefix}_{name}", text)
    library.init(arch=arch)
    assert (sg.cfg.debug, sg.cfg.fast_math, sg.cfg.random_seed, sg.cfg.default_fp) == (True, False, 7, sg.f64)
    library.init(arch=arch, debug=False, default_fp=sg.f32)
    assert (sg.cfg.debug, sg.cfg.random_seed, sg.cfg.default_fp) == (False, 7, sg.f32)
    other = MEMBERS["QD" if prefix == "TI" else "TI"]
    other.init(arch=arch)
    sg.init(arch=arch)
    assert not sg.cfg.debug and sg.cfg.random_seed == 0


@pytest.mark.parametrize("prefix", MEMBERS)
def test_the_back_end(arch, prefix, monkeypatch):
    monkeypatch.setenv(f"{prefix}_ARCH", "interpreter")
    MEMBERS[prefix].init()
    assert sg.cfg.arch == "interpreter"
    MEMBERS[prefix].init(arch=sg.cpu)  # Taichi takes the variable, Quadrants the argument
    assert sg.cfg.arch == ("interpreter" if prefix == "TI" else "cpu")
    monkeypatch.setenv(f"{prefix}_ARCH", "x64")
    MEMBERS[prefix].init()
    assert sg.cfg.arch == "cpu"


@pytest.mark.parametrize(("name", "text", "problem"), [("DEFAULT_FP", "f64", "QD_DEFAULT_FP is 32 or 64"), ("DEBUG", "yess", "`debug`")])
def test_values_that_options_cannot_have(arch, name, text, problem, monkeypatch):
    monkeypatch.setenv(f"QD_{name}", text)
    with pytest.raises(sg.SpirogradRuntimeError, match=problem):
        qd.init(arch=arch)
