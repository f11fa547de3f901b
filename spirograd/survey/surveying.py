"""The survey: every kernel of a program, compiled for every device."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Sequence

from spirograd.base.artifact import CompiledKernel
from spirograd.base.errors import SpirogradCompilationError, SpirogradError, SpirogradRuntimeError, SpirogradUnsupportedError
from spirograd.base.loc import Loc
from spirograd.base.records import replace
from spirograd.base.targets import Generator
from spirograd.compiler import compile_kernel
from spirograd.ir.nodes import Kernel
from spirograd.report.facts import signature
from spirograd.survey.collecting import Source
from spirograd.survey.devices import SurveyCompiler, SurveyDevice
from spirograd.survey.results import FAILED, REFUSED, Build, Result, Survey

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
            with device.open() as compiler:
                drivers[device.name] = compiler.driver
                for number, (source, name) in enumerate(zip(sources, names)):
                    progress(device.name, name)
                    results += _of_source(device.name, compiler, number, source, name)
        except SpirogradRuntimeError as error:
            missing[device.name] = str(error)
    return Survey(drivers, missing, tuple(results))


def labels(sources: Sequence[Source]) -> list[str]:
    """Return the names of the sources for readers: those of their kernels, with signatures where several kernels have one name."""
    counts = Counter(source.kernel.name for source in sources)
    return [source.kernel.name if counts[source.kernel.name] == 1 else signature(source.kernel) for source in sources]


def _of_source(device: str, compiler: SurveyCompiler, number: int, source: Source, name: str) -> list[Result]:
    """Return the results of one source, which may be several kernels: those that size a derivative's tapes come before it."""

    def failed(error: Exception, outcome: str, label: str, at: Loc | None) -> Result:
        loc = error.loc if isinstance(error, SpirogradCompilationError) and error.loc is not None else at
        message = error.message if isinstance(error, SpirogradCompilationError) else str(error)
        text = message if isinstance(error, SpirogradError) else f"{type(error).__name__}: {message}"
        return Result(device, number, label, "", loc, Build(outcome, text))

    try:
        kernels = source.kernels(compiler.caps)
    except SpirogradCompilationError as error:
        return [failed(error, REFUSED, name, source.kernel.loc)]
    results: list[Result] = []
    for kernel in kernels:
        label = name if kernel.name == source.kernel.name else kernel.name
        begin = time.perf_counter()
        try:
            compiled = _compiled(kernel, compiler, source)
        except SpirogradUnsupportedError as error:
            results.append(failed(error, REFUSED, label, kernel.loc))
        except Exception as error:  # A defect of the compiler, or an error of LLVM: the survey goes on.
            results.append(failed(error, FAILED, label, kernel.loc))
        else:
            builds = compiler.build(compiled, time.perf_counter() - begin)
            places = _places(kernel, compiled)
            tasks = zip(compiled.tasks, places, builds)
            results += [Result(device, number, label, task.name, loc, build) for task, loc, build in tasks]
    return results


def _compiled(kernel: Kernel, compiler: SurveyCompiler, source: Source) -> CompiledKernel:
    # With stages, LLVM makes one module of all tasks, and assembly is among the stages.
    keep = compiler.caps.target.generator is not Generator.SPIRV
    return compile_kernel(kernel, compiler.caps, replace(source.options, keep_stages=keep))


def _places(kernel: Kernel, compiled: CompiledKernel) -> list[Loc | None]:
    """Return the source line of each task; of the kernel, where a task has none."""
    ops = list(kernel.walk())
    return [ops[task.source].loc if 0 <= task.source < len(ops) else kernel.loc for task in compiled.tasks]
