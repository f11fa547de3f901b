"""Text in, text out: each file of cases/ holds kernels, and what a pass makes of them.

A file starts with `pass: <names>` (run in order), optional `caps: <field>=<value> ...`, `costs: <constant of loop_costs>=<value> ...`,
`level: device`, `result: device`; then come pairs of kernels, each pair `=== <title>`, the input, `---`, the output.
"""

from __future__ import annotations

import ast
import importlib
import inspect
import pkgutil
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from unittest import mock

import pytest
from golden_cases import Case, read, write

from spirograd import transforms
from spirograd.analysis import loop_costs
from spirograd.analysis.sites import collect_sites
from spirograd.autodiff import prepare
from spirograd.base.caps import Capabilities
from spirograd.base.errors import SpirogradCompilationError
from spirograd.base.options import CompileOptions
from spirograd.ir.nodes import Kernel
from spirograd.ir.spec import verify
from spirograd.ir.text import parse, to_text
from spirograd.transforms.lowering.layout import arg_block
from spirograd.transforms.pass_context import PassContext

Pass = Callable[[Kernel, PassContext], Kernel]


def passes_of(package: ModuleType) -> Iterator[Pass]:
    """The public functions of the modules of ``package`` that take a kernel and a context and give a kernel."""
    for info in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
        module = importlib.import_module(info.name)
        for f in vars(module).values():
            if inspect.isfunction(f) and f.__module__ == module.__name__ and not f.__name__.startswith("_"):
                signature = inspect.signature(f)
                types = [p.annotation for p in signature.parameters.values()]
                if [*types, signature.return_annotation] == ["Kernel", "PassContext", "Kernel"]:
                    yield f


PASSES = {f.__name__: f for package in (transforms, prepare) for f in passes_of(package)}
# Compared by what they compute: the text of a series says nothing.
_NUMERIC = {"expand_math"}  # tests/unit/math
FILES = sorted((Path(__file__).parent / "cases").glob("*.txt"))
_TYPES = dict.fromkeys(("int8", "int16", "int64", "float16", "float64", "storage8", "storage16"), True)
_FULL = _TYPES | dict.fromkeys(("atomic_int64", "atomic_f32_add", "atomic_f32_minmax"), True)


def transformed(settings: dict[str, str], source: str) -> str:
    fields = dict(_FULL) | {key: ast.literal_eval(value) for key, value in (f.split("=") for f in settings.get("caps", "").split())}
    caps = Capabilities(str(fields.pop("target_name", "vulkan")), **fields)
    kernel = parse(source)
    before = settings.get("level", "kernel")
    verify(kernel, before)
    ctx = PassContext(caps, CompileOptions())
    if before == "kernel":
        faults, prints = collect_sites(kernel)
        ctx = replace(ctx, block=arg_block(kernel, ctx), faults=faults, prints=prints)
    costs = dict(f.split("=") for f in settings.get("costs", "").split())
    with mock.patch.multiple(loop_costs, **{name: int(value) for name, value in costs.items()}) if costs else nullcontext():
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
    assert named == set(PASSES) - _NUMERIC
