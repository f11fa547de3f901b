"""A kernel compiled for one signature: types of arrays, values of template arguments, attributes of these that the kernel read."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any
from weakref import WeakValueDictionary

from spirograd.base.arguments import Plan
from spirograd.base.once import once
from spirograd.base.tracebacks import frames_hidden
from spirograd.base.validity import NotPrepared, StepRecorder
from spirograd.ir import nodes
from spirograd.lang import leaves
from spirograd.lang.data.batches import of_each_environment
from spirograd.lang.data.field import StructField
from spirograd.lang.data.ndarray import Ndarray
from spirograd.lang.data.tree import trees_of
from spirograd.lang.frontend.fingerprints import fingerprint, named_by
from spirograd.lang.frontend.guards import guards
from spirograd.lang.frontend.kernel_tracing import TracedKernel
from spirograd.lang.frontend.parameters import array_signature
from spirograd.lang.frontend.steps import Array, Captured, Packer, Step, follow, packing_function, record_constant
from spirograd.lang.scalar import Number

if TYPE_CHECKING:
    from spirograd.lang.frontend.stored_traces import RecalledTrace


class Specialization:
    """A kernel traced for one signature, and compiled when it is first launched (`prepare` gives its launch plan). A kernel of which only
    derivatives are launched is never compiled. ``key``: by which its kernel finds it. ``guards``: attributes of template arguments that
    were constants of the compilation. ``steps``: for the arguments of a call; the steps of arrays that the kernel names follow them.
    ``unpacked``: the arguments of all launches if there are no flat arguments, else None. ``traced_anew``: why each process traces the
    kernel, even if the offline cache has it, or "".

    Fields that the key or a guard names are not kept alive: without them nothing can launch it. Fields that the kernel names are kept.
    """

    def __init__(
        self, traced: TracedKernel | RecalledTrace, prepare: Callable[..., Plan], key: object = (), steps: Sequence[Step] = ()
    ) -> None:
        captures = traced.captures
        self._kernel = traced.kernel
        self._prepare = prepare
        self.returns = traced.returns
        self.fields = WeakValueDictionary(traced.fields)
        named = named_by((key, *map(fingerprint, captures.guarded.values())))
        mortal = {id(field) for obj in named for field in _with_members(obj)}
        self._kept = [field for field in traced.fields.values() if id(field) not in mortal]
        self.traced_anew = "" if captures.reads is None else captures.reads.refused
        self.footprint: Any = None  # what a tape knows of it
        self.trees = trees_of(self.fields.values(), self)
        self.forget: Callable[[], None] = lambda: None  # has its kernel forget it
        self.derivatives: dict[str, Any] = {}  # by mode: see `gradients.specialized`
        self._own_steps = steps
        self.captures = [Captured(array) if path is None else Array(path, array) for array, path in captures.arrays]
        self.steps = (*steps, *self.captures)
        self.pack = packing_function(self.steps)
        self.unpacked: Packer | None = None
        self._guarded = tuple(captures.guarded)
        self.guards = guards(captures.guarded)
        self.signatures = [(path.getter(), array_signature(array)) for array, path in captures.arrays if path is not None]
        self.outside = captures.outside
        self.batch = next((field.batch for field in traced.fields.values() if field.batch is not None), None)
        self.results = captures.results  # Of each environment of the batch; the fields are kept.
        self._masked = self.batch is not None and self.batch.masked
        self.constant = not self.guards and not self.signatures and self.batch is None

    @property
    def kernel(self) -> nodes.Kernel:
        """The kernel as IR."""
        kernel = self._kernel
        return kernel if isinstance(kernel, nodes.Kernel) else kernel.parsed

    @once
    def plan(self) -> Plan:
        with frames_hidden():
            return self._prepare(self._kernel)

    def record(self, args: Sequence[object], into: StepRecorder) -> None:
        """Record how compiled code checks and packs arguments like ``args``: what `holds` compares, and then what `pack` does. Raises
        NotPrepared if that is for Python only, as where it must see the class of an object with members."""
        if self.results or any(step.path.names for step in self._own_steps):
            raise NotPrepared
        for step in self._own_steps:
            step.record(args, into)
        for path in self._guarded:
            record_constant(follow(path, args, into), into)
        if self.batch is not None:
            into.given(self.batch)
            into.member("masked")
            into.same(self._masked)
        self.outside.record(into)
        for step in self.captures:
            step.record(args, into)

    @functools.cached_property
    def writes(self) -> set[int]:
        """The numbers of the array arguments that are written."""
        return {index for kind, index in self.plan.compiled.effects.writes if kind == "array"}

    def measured_choices(self) -> list[str]:
        """Return a sentence for each choice of code that launches have made by its time."""
        plan = self.__dict__.get("plan")
        return [] if plan is None else list(plan.measured_choices())

    def finish(self, packer: Packer) -> None:
        """After a launch: copy back what it wrote to arrays of other libraries, and raise what it reports."""
        if packer.transfers is not None:
            packer.transfers.finish(self.writes)
        if self.plan.diagnosed:
            packer.session.launched()

    def release(self) -> None:
        """Give back what was compiled, when one of its field trees was destroyed or collected. Nothing can launch it any more, but a tape
        that recorded it, which then finds that the memory is gone. Takes no lock: the collector may call this at any time, in any
        thread."""
        self.forget()
        self.__dict__.pop("plan", None)
        for derivative in list(self.derivatives.values()):
            derivative.release()

    @property
    def last_number(self) -> int | None:
        """The number of the last launch, if there was one; see `LaunchPlan`."""
        return self.plan.last_number if "plan" in self.__dict__ else None

    def holds(self, args: Sequence[object]) -> bool:
        """Return whether what was constant when this was compiled still is what it was."""
        try:
            for argument, look, checks in self.guards:
                for is_same, now in zip(checks, look(args[argument])):
                    if not is_same(now):
                        return False
            for get, signature in self.signatures:
                array = get(args)
                if not isinstance(array, Ndarray) or array_signature(array) != signature:
                    return False
            if self.batch is not None and self.batch.masked is not self._masked:
                return False
        except AttributeError:
            return False
        return True

    def result(self, values: tuple[Number, ...] | None) -> object:
        if self.results and self.batch is not None:
            return of_each_environment(self.returns, self.results, self.batch.mask)
        if self.returns is None or values is None:
            return None
        return self.make_result(values)

    @functools.cached_property
    def make_result(self) -> Callable[[tuple[Number, ...]], object]:
        """Makes what a call returns from the values that the kernel returns; it does not refer to this object."""
        returns = self.returns
        if returns is None:
            return lambda values: None
        kinds = leaves.host_types(returns)
        if not any(kinds):
            return lambda values: leaves.build(returns, values)
        return lambda values: leaves.build(returns, [value if kind is None else kind(value) for kind, value in zip(kinds, values)])


def _with_members(obj: object) -> Iterator[object]:
    """Return ``obj``, and if it is a field of structs, the fields of its members."""
    yield obj
    for member in obj.members.values() if isinstance(obj, StructField) else ():
        yield from _with_members(member)
