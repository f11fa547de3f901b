"""Random whole programs against their reference, on every back end; SG_FUZZ_EXAMPLES for more, ``python -m tests.fuzz`` for long runs."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import needs
import numpy as np
import pytest
from cases import seeds

from spirograd.runtime import loader

from .whole import cells, check
from .whole.nodes import Const, Kernel, Launch, Load, Look, Memory, Name, Op, Over, Program, Repeat, Store, Tape
from .whole.reference import Reference
from .whole.render import source
from .whole.shrink import pruned
from .whole.variants import VARIANTS, varied
from .whole.write import program_of

EXAMPLES = int(os.environ.get("SG_FUZZ_EXAMPLES", "4"))
AT_NIGHT = 60
TOGETHER = 3  # programs with the same kernels
ARCHS = ("interpreter", "cpu", "vulkan", "wgpu")


@pytest.fixture(scope="module", autouse=True)
def sessions() -> Iterator[None]:
    """Devices that the programs share."""
    needs.need("cpu")
    yield
    check.close()


@pytest.mark.parametrize("number", seeds(EXAMPLES, max(EXAMPLES, AT_NIGHT)))
def test_random_programs(number: int) -> None:
    archs = [name for name in (ARCHS[number % 2], ARCHS[2 + number // 2 % 2], "cuda") if loader.available(name) is None]
    first = 31 * number * len(cells.LATER) + number % len(cells.LATER)
    for seed in range(first, first + TOGETHER):
        program = program_of(seed)
        if check.failure(program, archs):
            short = check.shortened(program, archs, seconds=30)
            pytest.fail(f"seed {seed}: {check.failure(short, archs)}\n{short!r}", pytrace=False)


def chain(later: float = 0.5) -> Program:
    """``y[i] += m[i] ** 2``, then ``m`` is overwritten, three times."""
    i = Name("i")
    squares = Kernel("squares", (), (Over(("i",), "m", (Store("y", (i,), None, "+=", Op("square", (Load("m", (i,)),))),)),))
    halves = Kernel("halves", (), (Over(("i",), "m", (Store("m", (i,), None, "*=", Const(later)),)),))
    total = Kernel("total", (), (Over(("i",), "y", (Store("loss", (), None, "+=", Op("sin", (Load("y", (i,)),))),)),))
    steps = Repeat("t", 3, (Launch("squares", ()), Launch("halves", ())))
    tape = Tape("loss", (steps, Launch("total", ())))
    memories = (Memory("m", "scalar", (4,)), Memory("y", "scalar", (4,)), Memory("loss", "scalar", ()))
    options = (("offline_cache", False),)
    return Program(memories, (), (squares, halves, total), (tape, Look()), "f64", ("chain",), options=options)


def test_the_reference_by_finite_differences() -> None:
    """The gradient of `chain`, from numbers that it sees without one."""
    seen = dict(Reference(chain()).run().seen)
    r = np.random.default_rng(Memory("m", "scalar", (4,)).seed).uniform(-1, 1, 4)
    y = np.random.default_rng(Memory("y", "scalar", (4,)).seed).uniform(-1, 1, 4)
    loss = lambda m: float(np.sin(y + m**2 * (1 + 0.25 + 0.0625)).sum())  # noqa: E731
    slopes = [(loss(r + e) - loss(r - e)) / 2e-6 for e in 1e-6 * np.eye(4)]
    assert np.allclose(seen["m.grad"], slopes, atol=1e-8)
    assert np.allclose(seen["loss"], loss(r))


def test_a_wrong_gradient_is_found_and_shortened(monkeypatch: pytest.MonkeyPatch) -> None:
    """The check itself: what runs overwrites with another factor than the reference has, in one program of its kernels."""
    assert check.failure(chain(), ["cpu"]) == ""
    run = check.run
    other = lambda p, arch: run(replace(p, kernels=tuple(chain(0.51).kernels[1] if k.name == "halves" else k for k in p.kernels)), arch)  # noqa: E731
    monkeypatch.setattr(check, "run", other)
    assert "cpu: loss" in check.failure(chain(), ["cpu"])
    short = check.shortened(chain(), ["cpu"], seconds=10)
    assert [k.name for k in short.kernels] == ["halves"]


@pytest.mark.parametrize("name", VARIANTS)
def test_variants_are_other_programs_that_compute_the_same(name: str) -> None:
    changed = 0
    for seed in range(0, 40 * len(cells.LATER), len(cells.LATER)):
        program = replace(program_of(seed), variants=())
        other = varied(program, name)
        changed += other != program
        if changed == 3:
            break
    assert changed
    assert check.failure(replace(program, variants=(("cpu", name),)), ["cpu"]) == ""


def test_seeds_that_follow_each_other_are_all_cells() -> None:
    found = {cells.cell(seed) for seed in range(1000, 1000 + cells.CELLS)}
    assert len(found) == cells.CELLS == 10_080


def test_the_page_shows_what_is_recorded() -> None:
    tool = Path(__file__).parents[2] / "tools" / "fuzzing.py"
    done = subprocess.run([sys.executable, str(tool), "--check"], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout


def test_programs_are_files(tmp_path: Path) -> None:
    """Run as users do."""
    file = tmp_path / "program.py"
    program = pruned(chain())
    file.write_text(source(program))
    done = subprocess.run([sys.executable, str(file), "cpu"], capture_output=True, text=True, check=True)
    expected = dict(Reference(program).run().seen)["m.grad"]
    assert f"m.grad {expected}" in done.stdout
