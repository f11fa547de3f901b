"""The interface to llvmlite: the host's capabilities, LLVM IR text -> object code, object code -> addresses in this process."""

from __future__ import annotations

import ctypes
import functools
import itertools
import os
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from typing import Any, ParamSpec, TypeVar

import llvmlite
import llvmlite.binding as llvm
from llvmlite.binding import ffi, newpassmanagers

from spirograd.base.caps import COMMON, Capabilities
from spirograd.base.concurrently import map_concurrently
from spirograd.base.errors import SpirogradRuntimeError
from spirograd.base.options import CompileOptions
from spirograd.base.records import dataclass, replace
from spirograd.base.spans import span
from spirograd.llvmgen import vector_math

P = ParamSpec("P")
R = TypeVar("R")

# The SLP vectoriser takes nine tenths of the optimiser's time on large functions (460 ms at 8,000 instructions), and pays on small ones.
SLP_LIMIT = 1500
# For modules with more instructions, level 1 runs only a few passes: see `_clean`. In smaller ones, such as loops over the neighbours of
# particles, the other passes save a tenth of the time of a step (Genesis' SPH) and take milliseconds.
_FEW_INSTRUCTIONS = 1000
# Gathers: one load for each lane is a tenth faster on CPUs whose gathers are slow, by design (AMD) or for the sake of security (Intel up
# to the 11th generation). Later server CPUs of Intel have arithmetic in f16, and sum up neighbours in half the time if they gather.
_NO_GATHER, _GATHERS_FAST = ",+prefer-no-gather", "+avx512fp16"
# An LLJIT keeps 9 KiB of each library for ever, even after it is unloaded, and is freed only with its last library (LLVM 22). Therefore
# libraries share one, which takes 170 KiB, in groups of this size.
_LIBRARIES_PER_JIT = 64
# JITLink maps all sections of an object together. RuntimeDyld, the other linker, maps each by itself, and aborts the process if two lie
# more than 2 GiB apart, as happens if large mappings, such as those of CUDA, leave only small gaps nearby.
JIT_LINK = not sys.platform.startswith("win")
_link_lock = threading.Lock()
_link_numbers = itertools.count()


@dataclass(frozen=True, slots=True)
class MachineCode:
    """Machine code of a module. ``binary``: for the CPU a relocatable object file of the host, for CUDA the text of PTX. ``optimized_ir``
    and ``assembly`` are empty unless the options keep stages."""

    binary: bytes
    optimized_ir: str = ""
    assembly: str = ""


@dataclass(slots=True, eq=False)
class Library:
    """Linked code: ``addresses`` by symbol. The code lives as long as this object."""

    addresses: dict[str, int]
    tracker: object


@functools.cache
def _target() -> llvm.Target:
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    llvm.initialize_native_asmparser()
    return llvm.Target.from_triple(llvm.get_process_triple())


def version() -> str:
    """Return everything that object code depends on besides its source and the CPU, for cache keys."""
    return f"llvmlite {llvmlite.__version__} LLVM {'.'.join(map(str, llvm.llvm_version_info))} {llvm.get_process_triple()}"


@functools.cache
def _has_libmvec() -> bool:
    if not sys.platform.startswith("linux"):
        return False
    try:
        library = ctypes.CDLL(vector_math.LIBMVEC_FILE)
    except OSError:
        return False
    return all(hasattr(library, name) for name in vector_math.all_symbols())


def _memory_size() -> int:
    """Return the bytes of physical memory."""
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, ValueError, OSError):
        return 1 << 62


@functools.cache
def host_caps() -> Capabilities:
    """Return the capabilities of this machine."""
    _target()
    features = llvm.get_host_cpu_features().flatten()
    return replace(
        COMMON,
        target_name="cpu",
        atomic_narrow=True,
        atomic_f32_minmax=True,
        atomic_f64_minmax=True,
        max_allocation=_memory_size(),
        toolchain=version(),
        cpu_name=llvm.get_host_cpu_name(),
        cpu_features=features,
        vector_library=vector_math.LIBMVEC if "+avx2" in features and _has_libmvec() else "",
    )


def by_thread(make: Callable[P, R]) -> Callable[P, R]:
    """Return ``make`` with a cache for each thread, for target machines, in which LLVM keeps derived data."""
    own = threading.local()

    @functools.wraps(make)
    def cached(*args: P.args, **kwargs: P.kwargs) -> R:
        results: dict[object, R] = own.__dict__.setdefault("results", {})
        if args not in results:
            results[args] = make(*args, **kwargs)
        return results[args]

    return cached


@by_thread
def _target_machine(cpu: str, features: str, level: int) -> llvm.TargetMachine:
    return _target().create_target_machine(cpu, features, opt=level, reloc="pic", codemodel="default", jit=True)


def _instructions(text: str) -> int:
    return text.count("\n  ")


def compile_modules(texts: Sequence[str], caps: Capabilities, options: CompileOptions, need: int = 3) -> tuple[bytes, ...]:
    """Return the object files of several modules, compiled at the same time. Raises what `compile_module` raises."""
    slp = sum(map(_instructions, texts)) < SLP_LIMIT
    return tuple(map_concurrently(lambda text: compile_module(text, caps, options, need, slp).binary, texts))


def compile_module(text: str, caps: Capabilities, options: CompileOptions, need: int = 3, slp: bool = True) -> MachineCode:
    """Optimise and compile a module for the CPU that ``caps`` describes. The level is the least of ``need`` and that of ``options``: 3, or
    1 if the code is vectors already, or 0 if only instructions and registers remain to be selected. ``slp``: False if straight-line code is
    not to be vectorised.

    Raises SpirogradRuntimeError with LLVM's message if the text is no valid module: a defect of the emitter.
    """
    allowed = max(options.opt_level, 0) if options.optimize else 0
    level = min(allowed, need)
    features = caps.cpu_features
    if need <= 1 and "+avx2" in features and _GATHERS_FAST not in features.split(","):
        features += _NO_GATHER
    machine = _target_machine(caps.cpu_name, features, min(allowed, max(need, 1)))
    with closing(parse(text, machine)) as module:
        size = _instructions(text)
        if allowed == 1 and size > _FEW_INSTRUCTIONS:
            _clean(module, machine)
        elif level > 0:  # The passes of level 0 change nothing in emitted code.
            optimise(module, machine, level, vectorise=level > 1, slp=slp and level > 1 and size < SLP_LIMIT, unroll=allowed > 1)
        if not options.keep_stages:
            return MachineCode(emitted(module, machine))
        # Code generation changes the module, so the text comes from a clone.
        return MachineCode(emitted(module.clone(), machine), str(module), machine.emit_assembly(module.clone()))


def _unlocked(function: object) -> Any:
    """Return ``function`` of llvmlite without its lock, which admits one thread of the process to LLVM at a time. LLVM itself needs no lock
    if threads have contexts and target machines of their own."""
    return getattr(function, "_cfn", function)


def emitted(module: object, machine: object, assembly: bool = False) -> bytes:
    """Emit the object file of a module, or its assembly."""
    with span("emit machine code", "llvm"), ffi.OutputString() as message:
        buffer = _unlocked(ffi.lib.LLVMPY_TargetMachineEmitToMemory)(machine, module, 0 if assembly else 1, message)
        if not buffer:
            raise SpirogradRuntimeError(f"LLVM cannot compile the generated code: {message}")
    try:
        return ctypes.string_at(ffi.lib.LLVMPY_GetBufferStart(buffer), ffi.lib.LLVMPY_GetBufferSize(buffer))
    finally:
        ffi.lib.LLVMPY_DisposeMemoryBuffer(buffer)


def parse(text: str, machine: llvm.TargetMachine) -> llvm.ModuleRef:
    """Return the module with this text, for ``machine``. Raises SpirogradRuntimeError with LLVM's message if the text is invalid.

    The caller closes the module. An exception may keep it alive until the garbage collector runs, which frees a module and its context in
    any order, and the wrong order aborts the process.
    """
    try:
        with span("parse", "llvm", bytes=len(text)):
            module = llvm.parse_assembly(text, llvm.create_context())
    except RuntimeError as error:
        raise SpirogradRuntimeError(f"LLVM rejects the generated code: {error}") from error
    module.triple = machine.triple
    module.data_layout = str(machine.target_data)
    return module


def optimise(module: object, machine: object, level: int, vectorise: bool, slp: bool, unroll: bool = True) -> None:
    """Run LLVM's passes of this level. ``vectorise``: vectorise loops; ``slp``: vectorise straight-line code; ``unroll``: unroll loops,
    also partially."""
    tuning = llvm.create_pipeline_tuning_options(speed_level=level)
    tuning.loop_vectorization = vectorise
    tuning.slp_vectorization = slp
    tuning.loop_unrolling = unroll
    # llvmlite 0.50 never frees the callbacks of a pass builder, 1.4 KiB, and a builder serves one module, because running passes adds
    # callbacks that refer to that run.
    builder = llvm.create_pass_builder(machine, tuning)
    _run(builder.getModulePassManager(), module, builder)


def _clean(module: object, machine: object) -> None:
    """Run the passes of LLVM's level 1 that improve simplified code most: stack memory becomes values, address arithmetic is combined,
    branches are merged. They take a tenth of the time of all passes."""
    passes = llvm.create_new_module_pass_manager()
    passes.add_sroa_pass()
    passes.add_simplify_cfg_pass()
    passes.add_instruction_combine_pass()
    passes.add_simplify_cfg_pass()
    _run(passes, module, llvm.create_pass_builder(machine, llvm.create_pipeline_tuning_options(speed_level=1)))


def _run(passes: object, module: object, builder: object) -> None:
    with span("optimise", "llvm"):
        _unlocked(ffi.lib.LLVMPY_RunNewModulePassManager)(passes, module, builder)
    _dispose(passes)


def _dispose(passes: newpassmanagers.NewPassManager) -> None:
    """Free the passes, 57 KiB for each module. llvmlite 0.50 does not: a method of another base class hides the one that would."""
    kind = type(passes)
    if kind._dispose is ffi.ObjectRef._dispose and hasattr(newpassmanagers.NewPassManager, "_dispose"):
        newpassmanagers.NewPassManager._dispose(passes)


@functools.lru_cache(maxsize=1)
def _jit(group: int) -> llvm.LLJIT:
    """Return the LLJIT of a group of libraries. The libraries keep it alive when the next group has begun."""
    if host_caps().vector_library == vector_math.LIBMVEC:
        llvm.load_library_permanently(vector_math.LIBMVEC_FILE)
    machine = _target().create_target_machine(jit=True, reloc="pic", codemodel="default")
    return llvm.create_lljit_compiler(machine, use_jit_link=JIT_LINK)


def link(code: bytes | Sequence[bytes], exports: Sequence[str], imports: Mapping[str, int]) -> Library:
    """Load object code, of which there may be several files. ``imports``: addresses of symbols that the process does not have.

    Raises SpirogradRuntimeError if a symbol is missing.
    """
    builder = llvm.JITLibraryBuilder()
    for file in [code] if isinstance(code, bytes) else code:
        builder.add_object_img(file)
    builder.add_current_process()
    for name, address in imports.items():
        builder.import_symbol(name, address)
    for name in exports:
        builder.export_symbol(name)
    with _link_lock:
        number = next(_link_numbers)
        try:
            tracker = builder.link(_jit(number // _LIBRARIES_PER_JIT), f"spirograd.{number}")
        except RuntimeError as error:
            raise SpirogradRuntimeError(f"cannot link generated code: {error}") from error
    return Library({name: tracker[name] for name in exports}, tracker)
