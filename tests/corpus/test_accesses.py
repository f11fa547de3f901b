"""The interpreter runs what the passes for the CPU and for Vulkan make of the corpus, and the vectors of the CPU: results are right, and no
index is out of range."""

from __future__ import annotations

import pytest

import spirograd as sg
from validation.case import load

CASES = {c.name: c for c in load()}
# The interpreter takes more than ten seconds for these loops.
LONG = ("a_large_array", "a_long_sum")
TARGETS = ("cpu", "vulkan", "loops")


def runs(name: str, target: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SG_INTERPRET_AS", target)
    given = CASES[name]
    sg.init(arch="interpreter", **dict(given.options))
    assert given.wrong(given.run(*given.args)) == ""


@pytest.mark.parametrize("name,target", [(name, TARGETS[k // 3 % 3]) for k, name in enumerate(CASES) if name not in LONG and k % 3 == 0])
def test_one_target(name: str, target: str, monkeypatch: pytest.MonkeyPatch) -> None:
    runs(name, target, monkeypatch)


@pytest.mark.long
@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("name", list(CASES))
def test_both_targets(name: str, target: str, monkeypatch: pytest.MonkeyPatch) -> None:
    runs(name, target, monkeypatch)


def test_an_unknown_target(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SG_INTERPRET_AS", "gpu")
    with pytest.raises(sg.SpirogradRuntimeError, match="SG_INTERPRET_AS=gpu: there is no such target; set it to one of cpu, "):
        sg.init(arch="interpreter")
