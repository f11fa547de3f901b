"""A pass whose condition fails would leave the kernel as it is; its module is imported with the first kernel that meets the condition."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator

import pytest
from unit.transforms.random_kernels import random_kernel
from unit.transforms.test_passes_keep_meaning import CPU, GPU, IMPATIENT, NO_CAS, POOR

from spirograd import compiler
from spirograd.base.caps import Capabilities
from spirograd.base.errors import SpirogradUnsupportedError
from spirograd.base.options import CompileOptions
from spirograd.compiler import compile_kernel
from spirograd.ir.nodes import Kernel
from spirograd.ir.text import to_text
from spirograd.llvmgen.toolchain import host_caps
from spirograd.transforms import conditional
from spirograd.transforms.checks import space_limits
from spirograd.transforms.conditional import Conditional
from spirograd.transforms.lowering import group_fission
from spirograd.transforms.pass_context import PassContext
from spirograd.transforms.tasks import fuse
from validation.case import load
from validation.collecting import kernels_of
from validation.profiles import PTX, SPIRV

# Checks are asked for by options.
ASKED = {"check_bounds", "check_overflow"}
PASSES = {name: value for name, value in vars(conditional).items() if isinstance(value, Conditional)}
DEVICES = {"cpu": host_caps(), "vulkan": SPIRV["vulkan"], "cuda": PTX["cuda-sm_90"]}
CASES = {case.name: case for case in load()[::12]}


@pytest.fixture
def skipped(monkeypatch: pytest.MonkeyPatch) -> Iterator[set[str]]:
    """The names of passes whose conditions failed. The passes were run nevertheless."""
    names: set[str] = set()

    def run(self: Conditional, kernel: Kernel, ctx: PassContext) -> Kernel:
        if self.__name__ in ASKED and not self.condition(kernel, ctx):
            return kernel
        new = self.load()(kernel, ctx)
        if not self.condition(kernel, ctx):
            names.add(self.__name__)
            assert new is kernel or to_text(new) == to_text(kernel), f"{self.__name__} changes `{kernel.name}`, which fails its condition"
        return new

    monkeypatch.setattr(Conditional, "__call__", run)
    pairs = (conditional.fuse_loops, fuse.fuse_loops), (conditional.take_space_limits, space_limits.take_space_limits)
    for short, full in (*pairs, (conditional.divergence_sites, group_fission.divergence_sites)):

        def same(kernel: Kernel, ctx: PassContext, short=short, full=full):  # type: ignore[no-untyped-def]
            found, expected = short(kernel, ctx), full(kernel, ctx)
            if isinstance(expected, tuple) and expected and isinstance(expected[0], Kernel):
                assert to_text(found[0]) == to_text(expected[0]) and found[1] == expected[1]
            else:
                assert found == expected
            return found

        monkeypatch.setattr(compiler, short.__name__, same)
    yield names


def _compile(kernel: Kernel, caps: Capabilities, options: CompileOptions) -> None:
    try:
        compile_kernel(kernel, caps, options, generate=False)
    except SpirogradUnsupportedError:
        return


@pytest.mark.parametrize("name", CASES)
def test_skipped_passes_change_no_kernel_of_the_corpus(name: str, skipped: set[str]) -> None:
    for source in kernels_of(CASES[name]):
        for caps in DEVICES.values():
            for kernel in source.kernels(caps):
                _compile(kernel, caps, source.options)
    assert skipped


@pytest.mark.parametrize("seed", range(12))
def test_skipped_passes_change_no_random_kernel(seed: int, skipped: set[str]) -> None:
    for caps in (CPU, GPU, POOR, NO_CAS, IMPATIENT):
        for options in (CompileOptions(), CompileOptions(check_bounds=True, check_overflow=True), CompileOptions(opt_level=0)):
            _compile(random_kernel(seed), caps, options)
    assert skipped


@pytest.mark.parametrize("name", PASSES)
def test_each_pass_has_its_name(name: str) -> None:
    assert PASSES[name].__name__ == name and PASSES[name].load().__name__ == name


def test_importing_the_compiler_imports_no_conditional_pass() -> None:
    modules = [f"spirograd.transforms.{transform.module}" for transform in PASSES.values()]
    code = f"import sys, spirograd.compiler; print([name for name in {modules} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=True)
    assert done.stdout.strip() == "[]"
