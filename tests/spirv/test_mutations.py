"""Broken modules are seen by the checks: a few faults of each kind. `python -m validation.mutations` tries more of them."""

from __future__ import annotations

import struct
from random import Random
from typing import Any

import pytest

from spirograd.spirvgen.grammar import ENUMERANTS
from spirograd.spirvgen.naga_check import check_for_naga
from spirograd.spirvgen.validate import validate
from validation import mutations
from validation.mutation_kind import Kind
from validation.mutation_kinds import KINDS
from validation.mutation_parts import Instruction, Parts

pytestmark = pytest.mark.needs("spirv-val")
FAULTS = 5


@pytest.fixture(scope="module")
def modules() -> list[mutations.Module]:
    return mutations.collect()


def test_modules_are_right_before(modules: list[mutations.Module]) -> None:
    """Else every fault would be caught. Both targets are there, and taking a module apart loses nothing."""
    assert {module.target for module in modules} == {"vulkan", "wgpu"}
    for module in modules:
        assert Parts.of(module.binary).to_bytes() == module.binary
        validate(module.binary, module.target)
        if module.target == "wgpu":
            check_for_naga(module.binary)


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
def test_faults_are_caught(modules: list[mutations.Module], kind: Kind) -> None:
    faults = mutations.make_faults(modules, [kind], FAULTS, seed=1)
    assert {fault.module.target for fault in faults} == set(kind.targets), "no module of the corpus has what it takes"
    for found in mutations.examine_all(faults, jobs=2):
        known = found.known
        assert found.caught or known is not None, f"passes: {kind.name}, {found.fault.module}: {found.fault.what}"


@pytest.mark.long  # it changes when spirv-val or naga does
def test_what_passes_is_listed_truly(modules: list[mutations.Module]) -> None:
    """A hole that was closed leaves the list."""
    assert mutations.stale(modules) == []


# --- these tests can fail ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("lost", ["validate", "check_for_naga"])
def test_a_check_that_sees_nothing_is_noticed(modules: list[mutations.Module], monkeypatch: pytest.MonkeyPatch, lost: str) -> None:
    if lost == "validate":
        monkeypatch.setattr(mutations, "validate", lambda module, target: None)
        kinds = [kind for kind in KINDS if kind.name == "merge instruction dropped"]
    else:
        monkeypatch.setitem(mutations.OWN_CHECKS, "wgpu", lambda module: None)
        kinds = [kind for kind in KINDS if kind.name == "naga: operand of the other sign"]
    findings = mutations.examine_all(mutations.make_faults(modules, kinds, FAULTS, seed=1), jobs=2)
    (row,) = mutations.tally(findings).values()
    assert len(row.unknown) == row.made > 0


def test_a_closed_hole_is_noticed(modules: list[mutations.Module], monkeypatch: pytest.MonkeyPatch) -> None:
    row = mutations.Pass("merge instruction dropped", "OpLoopMerge", False, "not true")
    monkeypatch.setattr(mutations, "PASSES", (row,))
    assert mutations.stale(modules, tries=30) == [(row, "vulkan"), (row, "wgpu")]


def test_crashes_of_checks_do_not_count_as_caught(modules: list[mutations.Module], monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(module: bytes) -> None:
        raise KeyError(1)

    monkeypatch.setitem(mutations.OWN_CHECKS, "wgpu", broken)
    module = next(module for module in modules if module.target == "wgpu")
    found = mutations.examine(mutations.Fault(module, "none", "as it was", module.binary))
    assert found.crash and not found.caught


# --- taking modules apart ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "name, words, kinds",
    [
        ("Load", [1, 2, 3, 2, 4], "IdResultType IdResult IdRef MemoryAccess LiteralInteger"),
        ("Store", [1, 2], "IdRef IdRef"),
        ("Name", [1, *struct.unpack("<2I", b"abcd\0\0\0\0")], "IdRef LiteralString LiteralString"),
        ("Decorate", [1, ENUMERANTS["Decoration"]["BuiltIn"], 28], "IdRef Decoration BuiltIn"),
        ("ExecutionMode", [1, 17, 64, 1, 1], "IdRef ExecutionMode LiteralInteger LiteralInteger LiteralInteger"),
        ("EntryPoint", [5, 1, *struct.unpack("<2I", b"main" + bytes(4)), 7], "ExecutionModel IdRef LiteralString LiteralString IdRef"),
        ("AtomicIAdd", [1, 2, 3, 4, 5, 6], "IdResultType IdResult IdRef IdScope IdMemorySemantics IdRef"),
        ("Constant", [1, 2, 3, 4], "IdResultType IdResult LiteralContextDependentNumber LiteralContextDependentNumber"),
    ],
)  # fmt: skip
def test_kinds_of_operands(name: str, words: list[int], kinds: str) -> None:
    assert Instruction(name, words).kinds == kinds.split()


def test_faults_can_be_repeated(modules: list[mutations.Module]) -> None:
    def made() -> list[Any]:
        return mutations.make_faults(modules, KINDS[:5], 3, seed=7)

    assert made() == made()
    other = mutations.make_faults(modules, KINDS[:5], 3, seed=8)
    assert made() != other


def test_unchanged_modules_are_no_faults(modules: list[mutations.Module]) -> None:
    idle = Kind("idle", lambda parts, random: "nothing")
    assert mutations.make_fault(modules[0], idle, Random(1)) is None
