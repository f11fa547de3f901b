"""Launch plans: a kernel call is specialised once, then packed and launched in microseconds."""

from __future__ import annotations

import contextlib
import functools
import itertools
import struct
import sys
import threading
import weakref
from collections.abc import Callable, Container, Iterator, Sequence
from operator import attrgetter
from threading import get_ident
from typing import TYPE_CHECKING, Any

import numpy as np

from spirograd.base import once, validity
from spirograd.base.arguments import ALLOCATION_NAMES, Arguments, PreparedLaunch
from spirograd.base.artifact import LOCK_WORDS, CompiledKernel
from spirograd.base.device import CallsNatively, Device, LaunchWork, Step
from spirograd.base.errors import AdStackOverflow, OutOfDeviceMemory, SpirogradRuntimeError, SpirogradRuntimeTypeError
from spirograd.base.loc import Loc
from spirograd.base.sizes.size_nodes import Add, Size
from spirograd.base.spans import span
from spirograd.base.validity import NotPrepared, Record
from spirograd.runtime import allocations, graph_recording, stream_order
from spirograd.runtime.adstack_heap import AdstackHeap, AdstackSizes, HeapPlan
from spirograd.runtime.allocations import Memory
from spirograd.runtime.array_overlap import overlap_test
from spirograd.runtime.conflicts import Part, exclusively, memory_of
from spirograd.runtime.faults_and_prints import Diagnostics
from spirograd.runtime.generations import observe, observed, tick
from spirograd.runtime.graph_recording import NumberedLaunch
from spirograd.runtime.packing import build_counter, build_packer, build_size, fit_scalars, results_record
from spirograd.runtime.pools import Pool
from spirograd.runtime.space_checks import space_check

if TYPE_CHECKING:
    from spirograd.base.device import TakesWork
    from spirograd.base.protocols import Scalar
    from spirograd.runtime.tuning import Tuning

_NO_SIZES = AdstackSizes()
_NO_WORDS: tuple[tuple[int, ...], None] = ((), None)
_PLANS_KEPT = 16  # By a kernel with adstacks.


class Launcher:
    """The preparation and count of launches of one device, and the collection of kernel reports.

    ``on_print`` receives the text of each kernel print; by default it goes to ``sys.stdout``. ``seed``: the base of the random seeds.
    """

    def __init__(
        self,
        device: Device,
        memory: Memory,
        on_print: Callable[[str], None] | None = None,
        seed: int = 0,
        adstack_budget: int | None = None,
    ) -> None:
        self.device = device
        self.memory = memory
        self.seed = seed
        self.diagnostics = Diagnostics(memory, on_print)
        self.next_number = itertools.count().__next__  # Atomic: launch numbers are unique across threads.
        self.lock = threading.RLock()
        self._locks: allocations.Allocation | None = None
        self.adstacks = AdstackHeap(device, memory, adstack_budget)
        self.pools: weakref.WeakSet[Pool] = weakref.WeakSet()
        self.plans: weakref.WeakValueDictionary[int, LaunchPlan] = weakref.WeakValueDictionary()  # By the `id` of their executables.

    def prepare(self, compiled: CompiledKernel) -> LaunchPlan:
        """Load ``compiled`` on the device and build its launch plan. Raises the device's errors on an invalid module."""
        with graph_recording.paused(), span(f"load {compiled.name}", "load"):
            plan = LaunchPlan(self, compiled)
        other = compiled.overlapping
        if other is not None:
            plan.make_sibling = lambda: self.prepare(other)
        self.plans[id(plan.executable)] = plan
        return plan

    def relay(self) -> None:
        """Have all plans launch by the current `Device.launch`, after a profiler has replaced or restored it."""
        for plan in list(self.plans.values()):
            plan.relay()

    @contextlib.contextmanager
    def without_prints(self) -> Iterator[None]:
        """Drop the prints of launches in this block, which repeat earlier launches."""
        before, self.diagnostics.muted = self.diagnostics.muted, True
        try:
            yield
        finally:
            self.diagnostics.muted = before

    def locks_address(self) -> int:
        """Return the address of the lock table, one for all kernels: every task leaves its locks open."""
        with self.lock:
            if self._locks is None:
                self._locks = self.memory.allocate(4 * LOCK_WORDS)
            return self._locks.address

    def synchronize(self) -> None:
        """Wait for all launches, write pending kernel prints in launch order, raise the first pending fault.

        Raises SpirogradAssertionError (a failed assert or check), AdStackOverflow, or the device's errors. After a fault the device is
        usable, and the fault is cleared.
        """
        with self.lock:  # No kernel that reports may start between the wait and the reading.
            if stream_order.active is not None:
                stream_order.active.join()
            self.device.synchronize()
            if self.adstacks.reports:
                self.adstacks.print_reports()
            if not self.diagnostics.pending:
                return
            with graph_recording.paused():
                fault = self.diagnostics.drain()
        if fault is not None:
            if isinstance(fault, AdStackOverflow):
                self.adstacks.epoch += 1
                validity.renew()
            if isinstance(fault, OutOfDeviceMemory):
                with graph_recording.paused():
                    hint = "; ".join(filter(None, [pool.shortage() for pool in tuple(self.pools)]))
                fault = OutOfDeviceMemory(f"{fault}\n  hint: {hint}" if hint else str(fault))
            raise fault


class LaunchPlan:
    """A plan of launches of one compiled kernel: a packer for its argument block, its iteration counts, its writes.

    If the code assumes some arrays to be disjoint, launches in which they overlap are those of another plan, the sibling.
    """

    __slots__ = (
        "__weakref__", "_activates", "_arrays_written", "_claimed", "_count", "_exclusive", "_first_result",
        "_heap_plan", "_heap_plans", "_last_number", "_last_numbers", "_launch", "_launcher", "_limited",
        "_locked", "_next", "_numbered", "_overlap", "_pack", "_placement", "_placement_of_sibling",
        "_places", "_reports", "_results", "_sibling", "_temps", "_temps_bytes", "_trees_written", "_tuning", "_words", "adstack_bytes",
        "compared", "compiled", "diagnosed", "executable", "launched", "locations", "make_sibling",
    )  # fmt: skip

    def __init__(self, launcher: Launcher, compiled: CompiledKernel) -> None:
        self.compiled = compiled
        self._launcher = launcher
        self._next = launcher.next_number
        self._launch = launcher.device.launch
        self._tuning: Tuning | None = None
        self.executable = launcher.device.load(compiled)
        self._temps = launcher.memory.allocate(compiled.temps_size) if compiled.temps_size or compiled.temps_growth else None
        self._exclusive = threading.RLock()
        writes = compiled.effects.all_written()
        self._trees_written = tuple([(index, part) for kind, index, part in writes if kind == "tree"])
        arrays = [(index, name) for kind, index, part in writes if kind == "array" for name in ALLOCATION_NAMES[part]]
        self._arrays_written = tuple([(index, attrgetter(name)) for index, name in arrays])
        kinds = {slot.kind for slot in compiled.args.slots}
        self._numbered = bool(kinds & {"seed", "launch"})
        self.diagnosed = bool(kinds & {"fault", "print"} or compiled.faults or compiled.prints)
        self._reports = self.diagnosed or bool(compiled.returns)
        self._activates = any(fault.code == "cells" for fault in compiled.faults)
        self._first_result = min((offset for _, offset in compiled.returns), default=0)
        self._results = results_record(compiled, self._first_result)
        self._pack = build_packer(compiled, self._buffer_addresses(kinds), launcher)
        self._temps_bytes = build_size(Add(compiled.temps_size, compiled.temps_growth)) if compiled.temps_growth else None
        self._count = build_counter(compiled) if compiled.adstacks else None
        self._locked = self._count is not None or self._temps is not None
        self._limited = space_check(compiled)
        self._overlap = overlap_test(compiled.disjoint)
        self.compared = compiled.disjoint
        self.make_sibling: Callable[[], LaunchPlan] | None = None  # Prepares code for arrays that overlap.
        self._sibling: LaunchPlan | None = None
        self.launched: LaunchPlan | None = None  # The sibling, if its code ran last.
        self._places = next((k for k, task in enumerate(compiled.tasks) if task.places), None)
        self._placement: dict[str, tuple[int, ...] | None] = {"words": None}  # The inputs by which the adstacks were placed.
        self._placement_of_sibling: dict[str, tuple[int, ...] | None] = {}
        self._claimed = any(adstack.claimed for adstack in compiled.adstacks)  # From thread slots that are counted anew in each launch.
        # With their words, by their inputs: sizes that change often recur.
        self._heap_plans: dict[object, tuple[HeapPlan, tuple[int, ...]]] = {}
        self._heap_plan: HeapPlan | None = None  # The last one.
        self._words: tuple[int, ...] = ()  # Of the last one.
        self.adstack_bytes = 0  # Of the last launch.
        self._last_number: int | None = None
        self._last_numbers: dict[int, int] | None = {} if "seed" in kinds else None  # By thread.
        self.locations: Callable[[], Sequence[Loc | None]] | None = None  # The place of each task in the source.

    def tune(self, tuning: Tuning) -> None:
        """Have ``tuning`` choose the executable of each launch from now on."""
        self._tuning = tuning
        self.relay()

    def relay(self) -> None:
        """Launch by the current `Device.launch`, or by the tuning, which launches by that."""
        self._launch = self._launcher.device.launch if self._tuning is None else self._tuning.launch

    def measured_choices(self) -> list[str]:
        """Return a sentence for each choice between candidates that was made by measurement."""
        return [] if self._tuning is None else self._tuning.lines()

    def _buffer_addresses(self, kinds: set[str]) -> dict[str, int]:
        diagnostics = self._launcher.diagnostics
        return {
            "temps": self._temps.address if self._temps is not None else 0,
            "fault": diagnostics.fault_address() if "fault" in kinds else 0,
            "print": diagnostics.print_address() if "print" in kinds else 0,
            "locks": self._launcher.locks_address() if "locks" in kinds else 0,
        }

    @property
    def last_number(self) -> int | None:
        """The number of the last launch (of this thread if the kernel draws random numbers). Another launch with it draws the same ones."""
        return self._last_number if self._last_numbers is None else self._last_numbers.get(get_ident())

    @last_number.setter
    def last_number(self, number: int) -> None:
        self._last_number = number
        if self._last_numbers is not None:
            self._last_numbers[get_ident()] = number

    def launch(
        self, arguments: Arguments, sizes: AdstackSizes = _NO_SIZES, drawn: int | None = None, number: int | None = None
    ) -> tuple[Scalar, ...] | None:
        """Run the kernel. Return at once, unless the kernel returns values; then wait and return them.

        ``sizes``: the sizes of its adstacks. ``drawn``: the `last_number` of a launch whose random numbers this launch draws again.
        ``number``: the number of the launch, if the caller has taken the locks that the kernel needs. Raises
        SpirogradRuntimeTypeError for a scalar that its type cannot hold, OutOfDeviceMemory if the adstacks do not fit,
        SpirogradRuntimeError for an index space that is too large.
        """
        if number is None:
            if self._overlap is not None:
                if self._overlap(arguments.arrays):
                    return self._launch_sibling(arguments, sizes, drawn)
                self.launched = None
            if self._limited is not None:
                self._limited(arguments.scalars, arguments.arrays)
            if self._reports:
                return self._launch_reporting(arguments, sizes, drawn)
            if self._locked:
                self._launch_locked(arguments, sizes, drawn)
                return None
            number = self._next()
        if drawn is None:
            drawn = self._last_number = number
            if self._last_numbers is not None:
                self._last_numbers[get_ident()] = number
        scalars, arrays, trees = arguments.scalars, arguments.arrays, arguments.trees
        words, adstack_counts = _NO_WORDS if self._count is None else self._adstack_words(arguments, sizes)
        try:
            block, counts = self._pack(scalars, arrays, trees, number, drawn, words)
        except (struct.error, OverflowError):
            arguments = self._fitted(arguments, words)
            block, counts = self._pack(arguments.scalars, arrays, trees, number, drawn, words)
        if adstack_counts is not None:
            counts = adstack_counts
        recorder = None if graph_recording.current is None else graph_recording.active()
        try:
            if recorder is None and stream_order.active is None:
                self._launch(self.executable, block, counts)
            else:
                self._launch_in_order(recorder, block, counts, arguments)
        finally:  # A launch that fails may have written.
            for index, part in self._trees_written:
                trees[index].generations[part] = now = tick()  # Does the same as `generations.write`, without the call.
                if observed:
                    observe(now)
            for index, allocation_of in self._arrays_written:
                allocation = allocation_of(arrays[index])
                if allocation is not None:
                    allocation.generations[""] = now = tick()
                    if observed:
                        observe(now)
        if recorder is not None:
            self._note(recorder, block, drawn, Arguments.of(arguments.scalars, arrays, trees), words, counts)
        return None

    def sibling_for(self, arguments: Arguments) -> LaunchPlan | None:
        """Return the sibling, compiled if necessary, if arrays overlap that the code of this plan assumes to be disjoint; else None."""
        if self._overlap is None or not self._overlap(arguments.arrays):
            return None
        with once.lock:
            if self._sibling is None:
                if self.make_sibling is None:
                    raise SpirogradRuntimeError(f"kernel {self.compiled.name} was compiled for arrays that do not overlap: pass copies")
                sibling = self.make_sibling()
                sibling.compared = self.compared
                self._placement_of_sibling, sibling._placement_of_sibling = sibling._placement, self._placement
                self._sibling = sibling
        return self._sibling

    def _launch_sibling(self, arguments: Arguments, sizes: AdstackSizes, drawn: int | None) -> tuple[Scalar, ...] | None:
        sibling = self.sibling_for(arguments)
        assert sibling is not None
        self.launched = sibling
        values = sibling.launch(arguments, sizes, drawn)
        if drawn is None and sibling.last_number is not None:
            self.last_number = sibling.last_number
        return values

    def _launch_locked(self, arguments: Arguments, sizes: AdstackSizes, drawn: int | None) -> None:
        """Launch a kernel with adstacks, which lie where those of an earlier launch were, or with temporaries, which hold the values of one
        launch, while the CPU runs launches of several threads at once."""
        with self._exclusive if self._count is None else self._launcher.lock:
            self._fit_temps(arguments)
            self.launch(arguments, sizes, drawn, self._next())

    def _fit_temps(self, arguments: Arguments) -> None:
        """Allocate temporaries anew if arrays are larger. The kernel has cleared those that grow with arrays, so nothing is lost."""
        nbytes = 0 if self._temps_bytes is None else self._temps_bytes(arguments.scalars, arguments.arrays)
        if self._temps is not None and nbytes > self._temps.nbytes:
            self._temps, kinds = self._launcher.memory.allocate(nbytes), {slot.kind for slot in self.compiled.args.slots}
            self._pack = build_packer(self.compiled, self._buffer_addresses(kinds), self._launcher)

    def _adstack_words(self, arguments: Arguments, sizes: AdstackSizes) -> tuple[tuple[int, ...], tuple[int | None, ...]]:
        """Place the adstacks of a launch. Return the words that describe them, and the counts of iterations."""
        assert self._count is not None
        plan = self._heap_plan_for(self._count(arguments.scalars, arguments.arrays), sizes)
        words, counts, self.adstack_bytes = self._words, plan.counts, plan.nbytes
        if self._places is not None:
            if sizes.resized:
                self._placement_of_sibling["words"] = None
            if words != self._placement["words"]:
                self._placement["words"] = words
            elif not sizes.resized and not self._claimed:
                counts = self._placed(counts, self._places)
        return words, counts

    def _fitted(self, arguments: Arguments, words: tuple[int, ...]) -> Arguments:
        """Return arguments that could not be packed, with scalars as their types hold them. Raises an error if that does not help."""
        if any(tree.freed for tree in arguments.trees.values()):
            raise SpirogradRuntimeError(
                f"kernel {self.compiled.name} uses a field whose tree was destroyed: declare the field anew, and call the kernel with that"
            ) from None
        fitted = Arguments.of(fit_scalars(self.compiled, arguments.scalars), arguments.arrays, arguments.trees)
        try:
            self._pack(fitted.scalars, fitted.arrays, fitted.trees, 0, 0, words)
        except (struct.error, OverflowError) as error:
            raise SpirogradRuntimeTypeError(f"an argument of {self.compiled.name} does not fit its type: {error}") from error
        return fitted

    def prepared(self, native: CallsNatively, arguments: Arguments, record: Record, sizes: AdstackSizes = _NO_SIZES) -> PreparedLaunch:
        """Return launches like one with these arguments, for compiled code.

        If the kernel has adstacks, the launches have the same inputs of their ``sizes`` and of the counts of iterations. Raises NotPrepared
        for launches that need more than packing and running.
        """
        sibling = self.sibling_for(arguments)
        if sibling is not None:
            return sibling.prepared(native, arguments, record, sizes)
        from spirograd.runtime.native.launch_preparation import LaunchSteps  # Many processes record no launch.

        kinds = {slot.kind for slot in self.compiled.args.slots}
        code = native.native_code()
        if "seed" in kinds or code is None:
            raise NotPrepared
        words: tuple[int, ...] = ()
        counts: list[Size | None] = []
        adstack_counts: tuple[int | None, ...] | None = None
        if self._count is not None:
            words, adstack_counts = self._adstacks_of(native, self._count(arguments.scalars, arguments.arrays), sizes)
            counts = [size for task in self.compiled.tasks for size in (task.begin, task.end)]
        self._fit_temps(arguments)
        try:
            block, packed_counts = self._pack(arguments.scalars, arguments.arrays, arguments.trees, 0, 0, words)
        except (struct.error, OverflowError) as error:  # A number that was converted to its type, or a destroyed tree.
            raise NotPrepared from error
        if not native.on_host:
            if self.compiled.returns or self._activates:
                raise NotPrepared
            counts = [size for task in self.compiled.tasks for size in (task.begin, task.end)]
            packed_counts = packed_counts if adstack_counts is None else adstack_counts
        launch_counts = packed_counts if adstack_counts is None else adstack_counts
        executable = self._tuning.chosen(launch_counts) if self._tuning else self.executable
        entry = None if executable is None else native.entry(executable, packed_counts)
        if entry is None:
            raise NotPrepared
        recording = LaunchSteps(self.compiled, code.steps, block, record, native.on_host, self.compared)
        recording.keep_sizes([*counts, self.compiled.temps_growth, *(size for limit in self.compiled.space_limits for size in limit.sizes)])
        record.steps(recording)
        recording.compare(arguments.arrays, overlap=self._overlap is None)
        if self._places is not None:
            recording.item(self._placement, "words")
        asynchronous = self.diagnosed and not native.on_host
        recording.numbered(self._next, self._recorded if asynchronous else None)
        for generations, part in self._written(arguments, recording.fixed):
            recording.wrote(generations, part)
        if record.step is not None:
            recording.advanced(record.step)
        if self.compiled.returns and record.result is not None:
            recording.returned(self._returned(record.result))
        for address in self._launcher.diagnostics.addresses() if self.diagnosed and native.on_host else ():
            recording.reported(address, self._report)
        if entry.report is not None:
            recording.reported(entry.failed, entry.report)
        shared = self._reports or self._count is not None
        outer = self._launcher.lock if shared else self._exclusive if self._temps is not None and native.on_host else None
        return recording.finish((entry.function, entry.context), (self, executable, entry.kept, self._temps), outer, entry.lock)

    def _adstacks_of(
        self, native: CallsNatively, counts: tuple[int | None, ...], sizes: AdstackSizes
    ) -> tuple[tuple[int, ...], tuple[int | None, ...]]:
        """Return where the adstacks of launches by compiled code lie, and how many iterations of each task these run."""
        if (self._places is not None and native.on_host) or self._launcher.adstacks.reports:
            raise NotPrepared
        plan = self._heap_plan_for(counts, sizes)
        if self._places is None or self._claimed:
            return self._words, plan.counts
        if self._words != self._placement["words"]:
            raise NotPrepared
        return self._words, self._placed(plan.counts, self._places)

    def _returned(self, result: Callable[[tuple[Scalar, ...]], object]) -> Callable[[], object]:
        """Return a function that makes the result from the returned values of a launch, on a device whose memory the host sees."""
        assert self._temps is not None
        view = self._launcher.device.host_view(self._temps.buffer)
        if view is None:
            raise NotPrepared
        values: Callable[[], Any] = np.frombuffer(view[self._first_result :], self._results, count=1).item
        bools = [k for k, (dtype, _) in enumerate(self.compiled.returns) if dtype.kind == "bool"]
        if not bools:
            return lambda: result(values())
        return lambda: result(tuple([bool(v) if k in bools else v for k, v in enumerate(values())]))

    def _recorded(self, number: int) -> bool:
        """Record the owner of a launch number before a launch by compiled code, with the launcher's lock held.

        Returns False if earlier reports must be read first.
        """
        diagnostics = self._launcher.diagnostics
        if diagnostics.full:
            return False
        diagnostics.record(number, self.compiled)
        return True

    def _report(self, number: int) -> None:
        """Handle reports after a launch by compiled code. Raises the kernel's errors."""
        self._launcher.diagnostics.record(number, self.compiled)
        self._launcher.synchronize()

    def _written(self, arguments: Arguments, indices: Container[int] = range(sys.maxsize)) -> Iterator[tuple[dict[str, int], str]]:
        """Return the generations that a launch increases, with their parts: those of trees, and of array arguments among ``indices``."""
        for index, part in self._trees_written:
            yield arguments.trees[index].generations, part
        for index, allocation_of in self._arrays_written:
            allocation = allocation_of(arguments.arrays[index]) if index in indices else None
            if allocation is not None:
                yield allocation.generations, ""

    @staticmethod
    def _placed(counts: tuple[int | None, ...], places: int) -> tuple[int | None, ...]:
        """Return ``counts`` for a launch whose adstacks have the same layout: the task that places them has nothing to do."""
        return (*counts[:places], 0, *counts[places + 1 :])

    def _launch_in_order(
        self,
        recorder: graph_recording.GraphRecording | None,
        block: bytes,
        counts: Sequence[int | None],
        arguments: Arguments,
    ) -> None:
        """Launch while there is a recorder, or several streams: after work that uses the same memory."""
        order = stream_order.active
        if recorder is not None and recorder.plans:
            return  # The device receives it later.
        if order is None:
            self._launch(self.executable, block, counts)
        else:
            order.run(functools.partial(self._launch, self.executable, block, counts), *self._uses(arguments))

    def _uses(self, arguments: Arguments) -> tuple[list[Part], list[Part]]:
        """Return the memory that a launch reads, and the memory that it writes, with the parts; None for memory of other libraries."""
        effects, launcher = self.compiled.effects, self._launcher
        own = () if self._temps is None else (self._temps,)
        adstacks = () if self._count is None else launcher.adstacks.backing
        reports = launcher.diagnostics.buffers if self.diagnosed else ()  # Launches add to them; the host, which empties them, writes.
        reads, writes = memory_of(effects.all_read(), arguments), memory_of(effects.all_written(), arguments)
        return [*reads, *((memory, "") for memory in reports)], [*writes, *((memory, "") for memory in (*own, *adstacks))]

    def _note(
        self,
        recorder: graph_recording.GraphRecording,
        block: bytes,
        drawn: int,
        arguments: Arguments,
        words: tuple[int, ...],
        counts: tuple[int | None, ...],
    ) -> None:
        """Record the launch that was just sent. ``words``: the words about adstacks in its block."""
        recorder.keep(self, self._temps, *arguments.arrays, *arguments.trees.values())
        if self._count is not None:
            recorder.keep(*self._launcher.adstacks.backing)
            recorder.afterwards(self, self._forget_placement)
        for tree in arguments.trees.values():
            recorder.uses_tree(tree)
        for generations, part in self._written(arguments):
            recorder.wrote(generations, part)
        if self.diagnosed or self._numbered:
            recorder.launched(NumberedLaunch(lambda number, drawn: self._repeat(number, drawn, arguments, words, counts), drawn))
            return
        executable = self._tuning.current(counts) if self._tuning else self.executable
        work: Callable[[TakesWork], None] = LaunchWork(executable, block, counts)
        if self._temps is not None and self._count is None and not recorder.plans:
            work = functools.partial(exclusively, self._exclusive, work)
        recorder.launched(Step(work, *self._uses(arguments)))

    def _repeat(self, number: int, drawn: int, arguments: Arguments, words: tuple[int, ...], counts: tuple[int | None, ...]) -> None:
        """Repeat the launch with other numbers. The launcher's lock is held."""
        launcher = self._launcher
        if self.diagnosed:
            if launcher.diagnostics.full:
                launcher.synchronize()
            launcher.diagnostics.record(number, self.compiled)
        self.last_number = drawn
        block, _ = self._pack(arguments.scalars, arguments.arrays, arguments.trees, number, drawn, words)
        with self._exclusive:
            self._launch(self.executable, block, counts)

    def _forget_placement(self) -> None:
        self._placement["words"] = self._placement_of_sibling["words"] = None

    def check_spaces(self, arguments: Arguments) -> None:
        """Raise SpirogradRuntimeError if an index space is too large, as `launch` would."""
        if self._limited is not None:
            self._limited(arguments.scalars, arguments.arrays)

    def plan_adstacks(self, arguments: Arguments, sizes: AdstackSizes) -> HeapPlan:
        """Return how a launch of a kernel with adstacks would use their heap, without touching it. Arguments are those of `launch`.

        Raises OutOfDeviceMemory if the adstacks do not fit.
        """
        sibling = self.sibling_for(arguments)
        if sibling is not None:
            return sibling.plan_adstacks(arguments, sizes)
        assert self._count is not None, self.compiled.name
        heap = self._launcher.adstacks
        counts = self._count(arguments.scalars, arguments.arrays)
        if self._places is None:
            return heap.plan(self.compiled, counts, sizes.entries, ample=sizes.ample)
        return heap.plan_on_device(self.compiled, counts, sizes)

    @property
    def last_heap_plan(self) -> HeapPlan | None:
        """The heap plan of the last launch."""
        return self._heap_plan

    def _heap_plan_for(self, counts: tuple[int | None, ...], sizes: AdstackSizes) -> HeapPlan:
        """Return the heap plan of a launch, which is an earlier plan if its inputs are equal."""
        heap = self._launcher.adstacks
        alike = (counts, sizes.entries, sizes.certain, sizes.ample)
        planned = None if heap.reports else self._heap_plans.get((alike, heap.address, heap.nbytes))
        if planned is None:
            if self._places is None:
                plan = heap.reserve(self.compiled, counts, sizes)
            else:
                plan = heap.reserve_on_device(self.compiled, counts, sizes)
            planned = plan, plan.words.flat(heap.address)
            if len(self._heap_plans) >= _PLANS_KEPT:
                self._heap_plans.clear()
            self._heap_plans[alike, heap.address, heap.nbytes] = planned  # The heap may have grown.
        self._heap_plan, self._words = planned
        return planned[0]

    def _launch_reporting(
        self,
        arguments: Arguments,
        sizes: AdstackSizes,
        drawn: int | None,
    ) -> tuple[Scalar, ...] | None:
        """Launch a kernel that prints, can fail, or returns values. Numbers are recorded in order, and results are read back."""
        launcher = self._launcher
        with launcher.lock:  # One lock from launch to read-back: another thread's launch would overwrite the results.
            if launcher.diagnostics.full:
                launcher.synchronize()
            number = self._next()
            if self.diagnosed:
                launcher.diagnostics.record(number, self.compiled)
            self._fit_temps(arguments)
            pools = {tree.pool for tree in arguments.trees.values() if tree.pool is not None} if self._activates else ()
            for pool in pools:
                pool.before_launch()
            self.launch(arguments, sizes, drawn, number)
            for pool in pools:
                pool.after_launch()
            if not self.compiled.returns:
                return None
            values = self._read_returns()  # Waits, too, and in one submission with the launch.
            launcher.synchronize()
            return values

    def _read_returns(self) -> tuple[Scalar, ...]:
        if self._temps is None:
            raise SpirogradRuntimeError(f"kernel {self.compiled.name} returns values but has no temporaries to hold them")
        raw = bytearray(self._results.itemsize)
        self._temps.read_into(self._first_result, memoryview(raw))
        values = np.frombuffer(raw, self._results)[0].item()
        return tuple([bool(v) if dtype.kind == "bool" else v for v, (dtype, _) in zip(values, self.compiled.returns)])
