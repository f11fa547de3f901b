"""A session joins language, compiler and runtime: one device, its memory, what was compiled for it."""

from __future__ import annotations

import contextlib
import functools
import logging
import math
import random
import sys
from collections.abc import Callable, Hashable, Sequence
from pathlib import Path
from time import perf_counter_ns
from typing import TYPE_CHECKING

from spirograd import kernel_coverage
from spirograd.base import knobs, spans
from spirograd.base.arguments import Arguments, ArrayBinding
from spirograd.base.artifact import CompiledKernel, Stage
from spirograd.base.caps import Capabilities
from spirograd.base.device import (
    Assembler,
    CallsNatively,
    HasClock,
    HasStreams,
    KeepsCode,
    RecordsLoops,
    ReportsFaults,
    SharesMemory,
    ShowsMachineCode,
)
from spirograd.base.dtypes import DType
from spirograd.base.errors import SpirogradRuntimeError, SpirogradUnsupportedError
from spirograd.base.loc import Loc
from spirograd.base.once import once, one_at_a_time
from spirograd.base.options import LOOPS, CompileOptions
from spirograd.base.python_limits import gc_paused
from spirograd.base.records import replace
from spirograd.base.spans import span
from spirograd.base.targets import TARGETS, Target
from spirograd.config import Config, set_option
from spirograd.dumps import Compilation, listeners, observers, with_overrides, write_stages
from spirograd.ir import nodes
from spirograd.kernel_key import kernel_key, trace_name
from spirograd.lang import context
from spirograd.lang.data.ndarray import Ndarray
from spirograd.lang.data.regions import CellRegion
from spirograd.lang.frontend.parameters import array_signature
from spirograd.lang.language_options import LanguageOptions, options_of_device
from spirograd.runtime import graph_recording, stream_order
from spirograd.runtime.allocations import Allocation, Memory
from spirograd.runtime.device_loops import DeviceLoops
from spirograd.runtime.generations import OwnWrites
from spirograd.runtime.graph_recording import GraphRecording
from spirograd.runtime.launcher import Launcher, LaunchPlan
from spirograd.runtime.loader import open_device
from spirograd.runtime.native.array_words import kind_numbers, packed
from spirograd.runtime.offline_cache import Cache
from spirograd.runtime.pools import Pool, PoolExtent, PoolPlan
from spirograd.runtime.stream_order import Order
from spirograd.transfers import Transfers

if TYPE_CHECKING:
    from spirograd.base import protocols
    from spirograd.lang.session_protocol import OnOp
    from spirograd.runtime.profiling import Profile
    from spirograd.runtime.tuning import Tuner

logger = logging.getLogger("spirograd")

# The key of kernels that no cache keeps.
_NOT_KEPT = "not kept"


class Session:
    """What lies between `init` and `reset`."""

    def __init__(self, config: Config) -> None:
        self.cfg = config
        self.arch = config.arch
        self.plain = config.arch == "python"  # kernels run as plain Python
        limit, threads = _bytes(config.device_memory_GB), config.cpu_max_num_threads
        options = {"debug": config.debug, "max_threads": threads, "device_memory_bytes": limit}
        self.device = open_device(config.arch, config.device, config.profile, **options)
        if config.detect_races and (self.plain or not self.caps.target.checks_accesses):
            self.device.close()
            raise SpirogradRuntimeError(f"`detect_races` works on `sg.interpreter` only, not on `sg.{config.arch}`")
        # Optional abilities of the device, looked up once, because a look-up takes microseconds.
        self.assembler = self.device if isinstance(self.device, Assembler) else None
        self.sharing: SharesMemory | None = self.device if isinstance(self.device, SharesMemory) else None
        self.native: CallsNatively | None = self.device if isinstance(self.device, CallsNatively) else None
        self._kinds: dict[object, int] = {}
        self.memory = Memory(self.device)
        seed = config.random_seed if config.random_seed >= 0 else random.SystemRandom().getrandbits(32)
        self.launcher = Launcher(self.device, self.memory, seed=seed, adstack_budget=_bytes(config.ad_memory_GB))
        self.language = _language_options(config, self.caps, self.device.caps)
        self.compile_options = CompileOptions(
            fast_math=config.fast_math and not config.deterministic,
            deterministic=config.deterministic,
            free_contraction=config.contraction == "free",
            flush_subnormals=config.subnormals == "flush",
            unfused_by=config.unfused_by(),
            disjoint_by=knobs.switched_off("SG_FUSE_TASKS_RAW", "QD_AGGRESSIVE_KERNEL_FUSION_RAW"),
            check_bounds=config.check_out_of_bound or config.debug,
            check_overflow=config.debug,
            warn_of_overflow=config.overflow == "warn",
            locate_nan=config.debug,
            detect_races=config.detect_races,
            optimize=config.advanced_optimization,
            opt_level=config.opt_level if config.cfg_optimization else min(config.opt_level, 1),
            group_size=config.default_gpu_block_dim,
            verify=config.debug or knobs.flag("SG_VERIFY"),
            interpret_as=_interpreted_target(self.caps.target, config.deterministic),
        )
        self.cache = Cache(config.offline_cache_file_path, config.offline_cache_max_size_of_files) if config.offline_cache else None
        if isinstance(self.device, KeepsCode):
            self.device.keep_code(self.cache)
        self._builtins: dict[Hashable, LaunchPlan] = {}
        self.compiled = 0
        self.prepared = 0  # kernels that were compiled, or taken from the offline cache
        self.probes = kernel_coverage.new_probes()
        self.warned: set[Hashable] = set()  # what the user was warned of while kernels were traced
        self.closed = False
        self.bandwidth: float | None = None  # bytes a second of copies, once that was measured
        self._profile: Profile | None = None
        if config.kernel_profiler or spans.sinks:
            self._measure()

    @property
    def caps(self) -> Capabilities:
        """What the device can do."""
        return self.device.caps

    @property
    def broken_chains(self) -> str:
        """What happens where a gradient cannot flow on."""
        return self.cfg.ad_broken_chain

    @property
    def reports_pending(self) -> bool:
        """Whether kernels that can fail or print were launched since `sync`."""
        return self.launcher.diagnostics.pending

    def set_default_type(self, option: str, dtype: object) -> None:
        """What Python's ``float`` (``default_fp``) or ``int`` (``default_ip``) means in kernels and fields that are made from now on."""
        set_option(self.cfg, option, dtype)
        self.language = replace(self.language, default_fp=self.cfg.default_fp, default_ip=self.cfg.default_ip)

    def _measure(self) -> None:
        """Measure launches from the first one on."""
        try:
            for _ in range(self.cfg.kernel_profiler):
                self.profile().start()
            for sink in spans.sinks:
                sink.measure(self.profile())
        except BaseException:
            self.device.close()
            raise

    @one_at_a_time
    def profile(self) -> Profile:
        """The `Profile` of this session, made at the first call. Raises SpirogradUnsupportedError if the device cannot be measured."""
        if self._profile is None:
            from spirograd.runtime.profiling import Profile

            self._profile = Profile(self.launcher, self.arch)
        return self._profile

    # --- compiling -------------------------------------------------------------------------------------------------------

    @one_at_a_time
    def prepare(
        self, kernel: nodes.Kernel, on_op: OnOp | None = None, opt_level: int | None = None, overlapping: bool = False
    ) -> LaunchPlan:
        """Compile a kernel, or take it from the offline cache, and load it. ``on_op``: see `Kernel.step`. ``opt_level``: another than the
        session's, for code that is small and not run often. ``overlapping``: see `CompileOptions`; by default such code is compiled when a
        launch first needs it."""
        self.prepared += 1
        if on_op is not None:
            return self.launcher.prepare(_compile_kernel(kernel, self.device.caps, self.compile_options, on_op=on_op))
        options = replace(self.compile_options, overlapping=overlapping)
        options = options if opt_level is None else replace(options, opt_level=opt_level)
        plan = self._prepared(kernel, options)
        if plan.compiled.disjoint:
            plan.make_sibling = lambda: self._prepared(kernel, replace(options, overlapping=True))
        return plan

    def _prepared(self, kernel: nodes.Kernel, options: CompileOptions) -> LaunchPlan:
        begin = perf_counter_ns()
        with span(f"compile {kernel.name}", "compile"):
            compiled = self._compile(kernel, options)
        compilation = perf_counter_ns() - begin
        folder = knobs.get("SG_OVERRIDE")
        if folder:
            compiled = with_overrides(compiled, Path(folder), self.device.caps, self.compile_options)
        return self._loaded(compiled, lambda: kernel, options, functools.partial(_locations, kernel, compiled), compilation)

    def keeps_traces(self) -> bool:
        """Whether the offline cache keeps traces of kernels. It does not where stages are shown or replaced, or coverage is measured."""
        return (
            self.cache is not None
            and self.probes is None
            and not self.caps.target.interpreted
            and not self._shows_stages()
            and not observers
            and not knobs.get("SG_OVERRIDE")
        )

    def name_of_trace(self, text: str) -> str:
        """The name of a trace in the offline cache: what it depends on of device, options and compiler, and ``text``."""
        assert self.cache is not None
        return trace_name(text, self.device.caps, self.compile_options, self.cache.code)

    def stored_trace(self, name: str) -> bytes | None:
        return None if self.cache is None else self.cache.trace(name)

    def store_trace(self, name: str, data: bytes) -> None:
        if self.cache is not None:
            self.cache.keep_trace(name, data)

    @one_at_a_time
    def recall(self, key: str, locations: Sequence[Loc | None], kernel: Callable[[], nodes.Kernel]) -> LaunchPlan | None:
        """Load a kernel from the offline cache by its key; None if it is not there. ``locations``: of its tasks; ``kernel``: gives its IR,
        which is needed for other code only."""
        begin, options = perf_counter_ns(), self.compile_options
        compiled = None if self.cache is None else self.cache.get(key)
        if compiled is None:
            return None
        self.prepared += 1
        plan = self._loaded(compiled, kernel, options, lambda: list(locations), perf_counter_ns() - begin)
        if compiled.disjoint:
            plan.make_sibling = lambda: self._prepared(kernel(), replace(options, overlapping=True))
        return plan

    def _loaded(
        self,
        compiled: CompiledKernel,
        kernel: Callable[[], nodes.Kernel],
        options: CompileOptions,
        locations: Callable[[], list[Loc | None]],
        compilation: int,
    ) -> LaunchPlan:
        """Load a compiled kernel. ``kernel``: gives its IR; ``compilation``: the nanoseconds that it took to compile."""
        plan = self.launcher.prepare(compiled)
        plan.locations = locations
        if isinstance(self.device, ReportsFaults):
            self.device.locate(plan.executable, plan.locations())
        if compiled.alternatives and self.tuner is not None and not knobs.get("SG_OVERRIDE"):
            self.tuner.tune(plan, lambda name: self._alternative(kernel(), options, name), compilation)
        return plan

    def _shows_stages(self) -> bool:
        """Whether something sees every compilation."""
        return bool(knobs.get("SG_DUMP") or self.cfg.print_ir or self._tells_fusion() or listeners)

    @staticmethod
    def _tells_fusion() -> bool:
        return knobs.flag("SG_FUSE_TASKS_DIAG") or knobs.flag("QD_AGGRESSIVE_KERNEL_FUSION_DIAG")

    def measured_choices(self) -> list[str]:
        """Return a line for each choice of code that launches of a kernel have made by its time."""
        tunings = [] if self.tuner is None else sorted(self.tuner.tunings, key=lambda tuning: tuning.compiled.name)
        return [f"{tuning.compiled.name}, {line}" for tuning in tunings for line in tuning.lines()]

    @once
    def tuner(self) -> Tuner | None:
        """What measures alternatives to the code of the cost model; None if the device cannot time its work, or under checks, where
        alternatives differ in what they report first. GPUs tune if asked to: the compiler, in a thread, takes time of Python from programs
        whose launches keep it busy."""
        target, config = self.caps.target, self.cfg
        tunes = config.tune_gpu if target.invocations else config.tune
        if not tunes or config.debug or self.plain or target.interpreted:
            return None
        from spirograd.runtime.tuning import Tuner

        try:
            return Tuner(self.launcher, f"{self.device.info.name} {self.device.info.detail}", self.cache)
        except SpirogradUnsupportedError:
            return None

    def _alternative(self, kernel: nodes.Kernel, options: CompileOptions, name: str) -> CompiledKernel:
        """Compile ``kernel`` with an alternative to a decision of the cost model, or take it from the offline cache."""
        options = replace(options, alternative=name)
        key = _NOT_KEPT if self.cache is None else kernel_key(kernel, self.device.caps, options, self.cache.code)
        found = None if self.cache is None else self.cache.get(key)
        if found is None:
            found = _compile_kernel(kernel, self.device.caps, options, key)
            if self.assembler is not None:  # Loading text would keep other threads from launching while the driver compiles it.
                found = self.assembler.assemble(found)
            if self.cache is not None:
                self.cache.put(key, found)
        return found

    def _compile(self, kernel: nodes.Kernel, options: CompileOptions) -> CompiledKernel:
        dump, telling, shown = knobs.get("SG_DUMP"), self._tells_fusion(), self._shows_stages()
        for observer in observers:
            observer(kernel, options)
        shown = shown or bool(knobs.get("SG_OVERRIDE"))
        if shown or self.cache is None or self.caps.target.interpreted:
            key = None if shown else _NOT_KEPT  # files of stages have it in their names
            compiled = _compile_kernel(kernel, self.device.caps, replace(options, keep_stages=shown), key)
            if self.assembler is not None and len(compiled.binaries) > 1:  # several at the same time
                compiled = self.assembler.assemble(compiled)
            if shown:
                compiled.stages |= self._code_stages(compiled)
            for listener in listeners:
                listener(Compilation(compiled, kernel, self.device.caps, options, self.arch))
            if dump:
                write_stages(compiled, Path(dump))
            if self.cfg.print_ir:
                print(compiled.stages["kernel.ir"])
            if telling:
                print(f"kernel {kernel.name}", compiled.stages.get("tasks.txt", ""), sep="\n", file=sys.stderr, end="")
            self.compiled += 1
            return compiled
        with span(f"look up {kernel.name}", "cache"):
            key = kernel_key(kernel, self.device.caps, options, self.cache.code)
            found = self.cache.get(key)
        if found is not None:
            return found
        compiled = _compile_kernel(kernel, self.device.caps, options, key)
        if self.assembler is not None:
            compiled = self.assembler.assemble(compiled)
        self.compiled += 1
        with span(f"store {kernel.name}", "cache"):
            self.cache.put(key, compiled)
        return compiled

    def stages(self, kernel: nodes.Kernel, generate: bool = True) -> dict[str, Stage]:
        """All stages of compiling ``kernel`` for this device; without ``generate`` those before code is generated, which takes most of the
        time."""
        compiled = _compile_kernel(kernel, self.device.caps, replace(self.compile_options, keep_stages=True), generate=generate)
        if generate:
            compiled.stages |= self._code_stages(compiled)
        return compiled.stages

    def _code_stages(self, compiled: CompiledKernel) -> dict[str, Stage]:
        """The stages that only the device's driver knows."""
        return self.device.code_stages(compiled) if isinstance(self.device, ShowsMachineCode) else {}

    # --- launching -------------------------------------------------------------------------------------------------------

    def bind(self, array: Ndarray) -> ArrayBinding:
        """The binding of an ndarray, made once."""
        binding = array._sg_binding
        if binding is None or not array.is_of(self):
            allocation = array.allocation
            roles = (array.grad, array.dual, array.grad.dual if array.grad is not None else None)
            parts = [None if part is None else part.allocation for part in roles]
            grad, dual, grad_dual = [0 if part is None else part.address for part in parts]
            binding = ArrayBinding(allocation.address, array.extents_in_memory, grad, dual, allocation, grad_dual)
            binding.grad_allocation, binding.dual_allocation, binding.grad_dual_allocation = parts
            array._sg_packed = packed(self._kind(array_signature(array)), binding)
            array._sg_binding = binding  # last: other threads look at it
        return binding

    def field_memory(self, nbytes: int) -> Allocation:
        """Memory of zeros for a field tree. A graph that is recorded at its first use does not set it to zero again."""
        with graph_recording.paused():
            return self.memory.allocate(nbytes)

    def cells_memory(self, region: CellRegion) -> Pool:
        """Memory of zeros for the cells of a region of a sparse tree."""
        parts = tuple([PoolExtent(cells.offset, cells.cell_size) for cells in region.growing])
        used, capacity = [field.addresses.components[0] for field in (region.used, region.capacity)]
        plan = PoolPlan(parts, region.reserved, region.first, region.most, used, capacity, repr(region.node), region.call)
        with graph_recording.paused():
            pool = Pool(self.memory, plan)
        self.launcher.pools.add(pool)
        return pool

    def _kind(self, signature: object) -> int:
        """A number for the ndarrays of this session with a signature."""
        kind = self._kinds.get(signature)
        if kind is None:
            kind = self._kinds.setdefault(signature, kind_numbers())
        return kind

    def scratch(self, dtype: DType, shape: tuple[int, ...], allocation: protocols.Allocation | None = None) -> ArrayBinding:
        """A new array of zeros that only launches see, or the array in ``allocation``."""
        if allocation is None:
            allocation = self.memory.allocate(max(math.prod(shape) * dtype.size, 1))
        return ArrayBinding(allocation.address, shape, 0, 0, allocation)

    def transfers_by_kernel(self, allocation: protocols.Allocation) -> bool:
        """Whether it is for a kernel to change memory with strides: the memory is that of a GPU, or a graph is being recorded. Drivers that
        run on the CPU take ten times as long for it as the host."""
        if allocation.device is not self.device or allocation.freed:
            return False
        caps = self.device.caps
        return (caps.target.asynchronous and not caps.cpu_driver) or graph_recording.active() is not None

    def launch_builtin(
        self,
        key: Hashable,
        make: Callable[[], nodes.Kernel],
        arrays: Sequence[tuple[protocols.Allocation, DType]],
        part: str,
        numbers: Sequence[int],
    ) -> None:
        """Launch a kernel of spirograd's own, which ``make`` makes at the first launch with this ``key``. Its arguments are allocations as
        arrays of one axis with these types, then ``numbers``; it writes to ``part`` of the first allocation."""
        plan = self._builtins.get(key) or self._prepare_builtin(key, make)
        bindings = [ArrayBinding(memory.address, (memory.nbytes // t.size,), 0, 0, memory) for memory, t in arrays]
        bindings[0].allocation = None  # not all of it is written
        target = arrays[0][0]
        plan.launch(Arguments.of([*(0 for _ in arrays), *numbers], [*bindings, *(None for _ in numbers)], {}))
        target.wrote(part)

    @one_at_a_time
    def _prepare_builtin(self, key: Hashable, make: Callable[[], nodes.Kernel]) -> LaunchPlan:
        if key not in self._builtins:
            options = replace(self.compile_options, check_bounds=False, check_overflow=False, locate_nan=False, overlapping=True)
            self._builtins[key] = self.launcher.prepare(self._compile(make(), options))
        return self._builtins[key]

    def transfers(self, gradients: bool = False) -> Transfers:
        return Transfers(self, gradients)

    def launched(self) -> None:
        """After the launch of a kernel that prints or can fail: where launches run at once, what it has to say comes at once too."""
        if not self.caps.target.asynchronous:
            self.launcher.synchronize()

    @once
    def streams(self) -> Order | None:
        """The streams beside the one that all work goes to; None on devices with one queue."""
        return Order(self.device) if isinstance(self.device, HasStreams) and self.device.several_queues else None

    @once
    def device_loops(self) -> DeviceLoops | None:
        """The loops that the device repeats by itself; None where the host reads their conditions."""
        device = self.device
        return DeviceLoops(self.launcher, device) if isinstance(device, RecordsLoops) and device.reads_flags else None

    def without_prints(self) -> contextlib.AbstractContextManager[None]:
        """Return a block whose launches repeat earlier ones: what they print is dropped."""
        return self.launcher.without_prints()

    def adstack_sizings(self, reset: bool) -> dict[str, int]:
        """Return how often the sizes of adstacks were found in which way. ``reset``: start counting anew."""
        with self.launcher.lock:
            sized = self.launcher.adstacks.sized
            found = dict(sized)
            if reset:
                sized.clear()
        return found

    def own_writes(self) -> OwnWrites:
        """Keep track of what the calling thread writes from now on."""
        return OwnWrites()

    def clock_hz(self) -> int | None:
        """How often the clock that kernels read ticks in a second; None if that is not known."""
        return self.device.clock_hz() if isinstance(self.device, HasClock) else None

    def do_sections(self, works: Sequence[Callable[[], None]]) -> None:
        """Do ``works``, which may be done at the same time; a graph that is recorded has them as branches."""
        recorder = graph_recording.active()
        if recorder is not None:
            recorder.sections(works)
            return
        for work in works:
            work()

    def new_recording(self) -> GraphRecording:
        """Something to record work with: see `GraphRecording.open`."""
        return GraphRecording(self.launcher)

    def unrecorded(self) -> contextlib.AbstractContextManager[None]:
        """Return a block whose work no graph repeats that the calling thread records."""
        return graph_recording.paused()

    def sync(self) -> None:
        """Wait for all launches; prints, and raises what kernels reported."""
        self.launcher.synchronize()

    def raise_reported(self) -> None:
        """As `sync`, if a kernel that can fail or print was launched since the last time."""
        if self.reports_pending:
            self.launcher.synchronize()

    def close(self) -> None:
        if not self.closed:
            self.closed = True
            tuner = self.__dict__.get("tuner")
            if tuner is not None:
                tuner.close()
            with contextlib.suppress(Exception):
                self.launcher.synchronize()
            if self._profile is not None:
                with contextlib.suppress(Exception):
                    self._profile.end()
            stream_order.close(self.__dict__.get("streams"))
            self.device.close()


def running() -> Session:
    """Return the running session. Raises SpirogradRuntimeError before `init`."""
    session = context.session()
    assert isinstance(session, Session)
    return session


def _language_options(config: Config, caps: Capabilities, of_device: Capabilities) -> LanguageOptions:
    """Return the options of the front end for a session with the capabilities ``caps``, on a device with those of ``of_device``."""
    return LanguageOptions(
        config.default_fp,
        config.default_ip,
        config.debug,
        config.check_out_of_bound or config.debug or caps.target.checks_accesses,
        config.short_circuit_operators,
        config.unrolling_limit,
        prints_fixed=config.number_format == "fixed",
        ignores_sign_of_powers=config.negative_powers == "ignore_sign",
        casts_float_bounds=config.float_bounds == "cast",
        group_size=config.default_gpu_block_dim,
        **options_of_device(of_device),
        detect_races=config.detect_races,
    )


def _interpreted_target(target: Target, deterministic: bool) -> str:
    """The target whose tasks the interpreter runs, if SG_INTERPRET_AS names one, or the loops of the CPU, whose bits it computes if
    ``deterministic``. Raises SpirogradRuntimeError if there is no such target."""
    name = (knobs.get("SG_INTERPRET_AS") or LOOPS * deterministic) if target.interpreted else ""
    if name not in ("", LOOPS) and (name not in TARGETS or TARGETS[name].interpreted):
        known = ", ".join([*[known for known, other in TARGETS.items() if not other.interpreted], LOOPS])
        raise SpirogradRuntimeError(f"SG_INTERPRET_AS={name}: there is no such target; set it to one of {known}")
    return name


def _bytes(gibibytes: float | None) -> int | None:
    """Return an amount of memory in bytes, if it is given."""
    return int(gibibytes * 2**30) if gibibytes else None


def _locations(kernel: nodes.Kernel, compiled: CompiledKernel) -> list[Loc | None]:
    """Where each task of ``compiled`` stands in the source of ``kernel``, as it is now: the artifact may be older."""
    places = [op.loc for op in kernel.walk()]
    return [kernel.loc if task.source < 0 else places[task.source] for task in compiled.tasks]


def _compile_kernel(
    kernel: nodes.Kernel,
    caps: Capabilities,
    options: CompileOptions,
    key: str | None = None,
    on_op: OnOp | None = None,
    generate: bool = True,
) -> CompiledKernel:
    """See `compile_kernel`, which is imported when something must be compiled: what comes out of the offline cache does without it."""
    with gc_paused():  # what is imported stays: to look for garbage in it takes a sixth of the time
        from spirograd.compiler import compile_kernel

        return compile_kernel(kernel, caps, options, key, on_op, generate)
