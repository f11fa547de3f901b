"""Text in, text out: each file of cases/ holds kernels, and what a pass makes of them.

A file starts with `pass: <names>` (run in order), optional `caps: <field>=<value> ...`, `level: device`, `result: device`; then come
pairs of kernels, each pair `=== <title>`, the input, `---`, the output.
"""

from __future__ import annotations

import ast
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from spirograd.analysis.sites import collect_sites
from spirograd.autodiff.prepare.forward_stores import forward_stores
from spirograd.autodiff.prepare.hoist_temps import hoist_temps
from spirograd.autodiff.prepare.induction import induction
from spirograd.autodiff.prepare.promote import promote
from spirograd.autodiff.prepare.serial_products import serial_products
from spirograd.autodiff.prepare.single_trips import single_trips
from spirograd.base.caps import Capabilities
from spirograd.base.errors import SpirogradCompilationError
from spirograd.base.options import CompileOptions
from spirograd.ir.nodes import Kernel
from spirograd.ir.spec import verify
from spirograd.ir.text import parse, to_text
from spirograd.transforms.check_bounds import check_bounds
from spirograd.transforms.check_capabilities import check_capabilities
from spirograd.transforms.check_loops import check_loops
from spirograd.transforms.check_overflow import check_overflow
from spirograd.transforms.context import PassContext
from spirograd.transforms.cse import cse
from spirograd.transforms.dce import dce
from spirograd.transforms.demote_atomics import demote_atomics
from spirograd.transforms.diagnostics import diagnostics
from spirograd.transforms.exact_extrema import exact_extrema
from spirograd.transforms.fold import fold
from spirograd.transforms.layout import arg_block, layout
from spirograd.transforms.legalize import legalize
from spirograd.transforms.licm import licm
from spirograd.transforms.lower_atomics import lower_atomics
from spirograd.transforms.lower_remainder import lower_remainder
from spirograd.transforms.offload import offload
from spirograd.transforms.reassociate import reassociate
from spirograd.transforms.reductions import reductions
from spirograd.transforms.simplify import simplify, simplify_lowered
from spirograd.transforms.widen_integers import widen_integers

_FUNCTIONS: tuple[Callable[[Kernel, PassContext], Kernel], ...] = (
    check_bounds, check_capabilities, check_loops, check_overflow, cse, dce, demote_atomics, diagnostics, exact_extrema, fold, forward_stores,
    hoist_temps, induction, layout, legalize, licm, lower_atomics, lower_remainder,
    offload, promote, reassociate, reductions, serial_products, simplify, simplify_lowered, single_trips, widen_integers,
)  # fmt: skip
PASSES = {f.__name__: f for f in _FUNCTIONS}
FILES = sorted((Path(__file__).parent / "cases").glob("*.txt"))
_TYPES = dict.fromkeys(("int8", "int16", "int64", "float16", "float64", "storage8", "storage16"), True)
_FULL = _TYPES | dict.fromkeys(("atomic_int64", "atomic_f32_add", "atomic_f32_minmax"), True)


@dataclass(frozen=True)
class Case:
    title: str
    source: str
    expected: str


def read(path: Path) -> tuple[dict[str, str], list[Case]]:
    head, *parts = path.read_text().split("\n=== ")
    settings = dict(line.split(": ", 1) for line in head.splitlines() if line.strip())
    cases = []
    for part in parts:
        title, rest = part.split("\n", 1)
        source, _, expected = rest.partition("---\n")
        cases.append(Case(title, source.strip() + "\n", expected.strip() + "\n"))
    return settings, cases


def write(path: Path, settings: dict[str, str], cases: list[Case]) -> None:
    head = "\n".join(f"{key}: {value}" for key, value in settings.items())
    path.write_text(head + "\n" + "".join(f"\n=== {c.title}\n{c.source}---\n{c.expected}" for c in cases))


def transformed(settings: dict[str, str], source: str) -> str:
    fields = dict(_FULL) | {key: ast.literal_eval(value) for key, value in (f.split("=") for f in settings.get("caps", "").split())}
    caps = Capabilities(str(fields.pop("profile", "vulkan")), **fields)
    kernel = parse(source)
    before = settings.get("level", "kernel")
    verify(kernel, before)
    ctx = PassContext(caps, CompileOptions())
    if before == "kernel":
        faults, prints = collect_sites(kernel)
        ctx = replace(ctx, block=arg_block(kernel, ctx), faults=faults, prints=prints)
    for name in settings["pass"].split():
        try:
            kernel = PASSES[name](kernel, ctx)
        except SpirogradCompilationError as error:
            return f"{type(error).__name__}: {error.message}\n"
    verify(kernel, settings.get("result", before))
    return to_text(kernel)


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_passes(path: Path, request: pytest.FixtureRequest) -> None:
    settings, cases = read(path)
    assert cases, f"{path} holds no kernels"
    found = [Case(c.title, c.source, transformed(settings, c.source)) for c in cases]
    if request.config.getoption("--bless"):
        write(path, settings, found)
        return
    for case, now in zip(cases, found):
        assert now.expected == case.expected, case.title


def test_every_pass_has_a_file() -> None:
    named = {name for path in FILES for name in read(path)[0]["pass"].split()}
    assert named == set(PASSES)
