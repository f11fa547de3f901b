"""The survey: every kernel of a program, compiled for every device."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial

from spirograd.base.artifact import CompiledKernel
from spirograd.base.errors import SpirogradCompilationError, SpirogradError, SpirogradRuntimeError
from spirograd.base.loc import Loc
from spirograd.base.options import CompileOptions
from spirograd.base.records import replace
from spirograd.base.targets import Generator
from spirograd.compiler import compile_kernel
from spirograd.ir.nodes import Kernel
from spirograd.report.facts import signature
from spirograd.survey.collecting import Source
from spirograd.survey.devices import SurveyCompiler, SurveyDevice
from spirograd.survey.forked import CopyEnded, forked
from spirograd.survey.results import CRASHED, FAILED, REFUSED, Build, Result, Survey

# Called before each source is compiled for a device, with the names of both.
Progress = Callable[[str, str], None]


def survey(devices: Sequence[SurveyDevice], sources: Sequence[Source], progress: Progress = lambda device, kernel: None) -> Survey:
    """Compile ``sources`` for ``devices``. A compiler that fails or crashes fails for one task; the survey goes on."""
    drivers: dict[str, str] = {}
    missing: dict[str, str] = {}
    results: list[Result] = []
    names = labels(sources)
    for device in devices:
        try:
            opened = device.open()
        except SpirogradRuntimeError as error:
            missing[device.name] = str(error)
            continue
        with opened as compiler:
            drivers[device.name] = compiler.driver
            for number, (source, name) in enumerate(zip(sources, names)):
                progress(device.name, name)
                results += _of_source(device.name, compiler, number, source, name)
    return Survey(drivers, missing, tuple(results))


def labels(sources: Sequence[Source]) -> list[str]:
    """Return the names of the sources for readers: those of their kernels, with signatures where several kernels have one name."""
    counts = Counter(source.kernel.name for source in sources)
    return [source.kernel.name if counts[source.kernel.name] == 1 else signature(source.kernel) for source in sources]


def _of_source(device: str, compiler: SurveyCompiler, number: int, source: Source, name: str) -> list[Result]:
    """Return the results of one source, which may be several kernels: those that size a derivative's tapes come before it."""
    try:
        kernels = source.kernels(compiler.caps)
    except Exception as error:  # What is no refusal is a defect of the compiler: the survey goes on.
        return [_failed(error, Result(device, number, name, "", source.kernel.loc, Build()))]
    results: list[Result] = []
    for kernel in kernels:
        label = name if kernel.name == source.kernel.name else kernel.name
        blank = Result(device, number, label, "", kernel.loc, Build())
        work = partial(_of_kernel, compiler, kernel, source.options, blank)
        try:
            results += work() if compiler.caps.target.generator is Generator.SPIRV else forked(work)
        except CopyEnded as ended:
            results.append(replace(blank, build=Build(CRASHED, f"LLVM {ended}")))
    return results


def _of_kernel(compiler: SurveyCompiler, kernel: Kernel, options: CompileOptions, blank: Result) -> list[Result]:
    """Return the results of one kernel; ``blank``: a result with its names."""
    # With stages, LLVM makes one module of all tasks, and assembly is among the stages.
    options = replace(options, keep_stages=compiler.caps.target.generator is not Generator.SPIRV)
    begin = time.perf_counter()
    try:
        compiled = compile_kernel(kernel, compiler.caps, options)
        builds = compiler.build(compiled, time.perf_counter() - begin)
    except Exception as error:
        return [_failed(error, blank)]
    tasks = zip(compiled.tasks, _places(kernel, compiled), builds)
    return [replace(blank, task=task.name, loc=loc, build=build) for task, loc, build in tasks]


def _failed(error: Exception, blank: Result) -> Result:
    """Return the result of a kernel that is refused, or that cannot be compiled because of a defect."""
    if isinstance(error, SpirogradCompilationError):
        return replace(blank, loc=error.loc or blank.loc, build=Build(REFUSED, error.message))
    text = str(error) if isinstance(error, SpirogradError) else f"{type(error).__name__}: {error}"
    return replace(blank, build=Build(FAILED, text))


def _places(kernel: Kernel, compiled: CompiledKernel) -> list[Loc | None]:
    """Return the source line of each task; of the kernel, where a task has none."""
    ops = list(kernel.walk())
    return [ops[task.source].loc if 0 <= task.source < len(ops) else kernel.loc for task in compiled.tasks]
