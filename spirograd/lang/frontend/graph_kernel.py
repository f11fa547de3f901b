"""Kernels with the structure of a graph: parts that are kernels, run in the order that flags on the device say.

The host goes through the structure, and reads a flag where it must decide; a session whose driver decides by itself is given whole loops.
"""

from __future__ import annotations

import ast
import contextlib
import copy
import functools
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from spirograd.base.arguments import Arguments
from spirograd.base.dtypes import i32
from spirograd.base.errors import SpirogradRuntimeError, SpirogradRuntimeTypeError, SpirogradUnsupportedError, render
from spirograd.base.once import once
from spirograd.base.records import dataclass
from spirograd.base.validity import NotPrepared
from spirograd.ir import nodes
from spirograd.lang import context, streams
from spirograd.lang.data.ndarray import BufferView, Ndarray
from spirograd.lang.data.scalar_field import ScalarField
from spirograd.lang.frontend import graph_structure, source
from spirograd.lang.frontend.graph_structure import Checkpoint, Loop, Node, Part, Sections, Structure
from spirograd.lang.frontend.kernel import Kernel
from spirograd.lang.frontend.syntax_facts import object_of
from spirograd.lang.graph_statements import GraphStatus
from spirograd.lang.scalar import describe

if TYPE_CHECKING:
    from spirograd.base.arguments import PreparesLaunches
    from spirograd.base.validity import StepRecorder
    from spirograd.lang.session_protocol import OnOp, PlannedLoop, Session


class PartKernel(Kernel):
    """One part of a kernel, with the parameters of the whole."""

    def __init__(self, function: Callable[..., object], unfused_by: str, part: Part) -> None:
        super().__init__(function, unfused_by)
        self._statements = part.statements

    def traced_part(self) -> str:
        return "\n".join([ast.dump(statement, include_attributes=True) for statement in self._statements])

    def source(self) -> source.Source:
        where = super().source()
        tree = copy.copy(where.tree)
        tree.body = self._statements
        return source.Source(where.function, tree, where.file, where.line_offset, where.name, where.of_library)


class _Yielded(Exception):
    """The kernel ends at a checkpoint."""

    def __init__(self, label: int) -> None:
        super().__init__()
        self.label = label


@dataclass(slots=True, eq=False)
class _Run:
    """One call: its session, its arguments by name, how a part is launched, the checkpoint up to which nothing is done, the plan of a
    loop that the device is to repeat, while that is made, and the last loop that it has repeated."""

    session: Session
    named: dict[str, object]
    launch: Callable[[Part], None]
    skipped_to: object = None
    plan: PlannedLoop | None = None
    repeated: PreparesLaunches | None = None


class GraphKernel(Kernel):
    """A kernel of ``@sg.kernel(graph=True)``, or with `stream_parallel` blocks. ``parts``: the kernels that it is made of, if it has the
    structure of a graph; otherwise it is a kernel like others."""

    def __init__(self, function: Callable[..., object], unfused_by: str, is_graph: bool, checkpoints: bool) -> None:
        super().__init__(function, unfused_by)
        self._is_graph, self._checkpoints = is_graph, checkpoints

    @once
    def _structure(self) -> Structure:
        return graph_structure.structure_of(self.source(), self._is_graph, self._checkpoints)

    @once
    def parts(self) -> tuple[PartKernel, ...]:
        parts = () if self._structure.plain else self._structure.parts
        return tuple([PartKernel(self.function, self._unfused_by, part) for part in parts])

    @once
    def grad(self) -> object:
        if not self._structure.plain:
            problem = f"kernel `{self.function.__name__}` is a graph of several launches, and has no gradient as a whole"
            raise SpirogradUnsupportedError(problem, None, "call it in `with sg.ad.Tape(loss):`, which records each of its launches")
        return context.services().gradient_of(self)

    def __call__(self, *args: object, **kwargs: object) -> object:
        if self._structure.plain:
            return super().__call__(*args, **kwargs)
        launch = self._native.launch
        if launch is not None:
            if kwargs:
                args, kwargs = self.ordered(args, kwargs)
            if not kwargs and launch(args) is not NotImplemented:
                return None
        return self._start_run(args, kwargs, None)

    def resume(self, *args: object, from_checkpoint: object, **kwargs: object) -> GraphStatus:
        """Go on at a checkpoint: run its block again, and what comes after. The arguments are those of the call.

        Raises SpirogradRuntimeError if the kernel has no such checkpoint."""
        labels = self._structure.labels
        if from_checkpoint not in labels:
            there = f"its checkpoints are {', '.join(map(repr, labels))}" if labels else "it has none"
            raise SpirogradRuntimeError(f"kernel `{self.function.__name__}` has no checkpoint {from_checkpoint!r}; {there}")
        status = self._start_run(args, kwargs, from_checkpoint)
        assert status is not None
        return status

    def _compiled_last(self) -> nodes.Kernel | None:
        launched = [part._last for part in self.parts if part._last is not None]
        return launched[-1].kernel if launched else super()._compiled_last()

    def explain(self, *args: object, **kwargs: object) -> str:
        """See `Kernel.explain`: of all parts."""
        return super().explain(*args, **kwargs) if not self.parts else "".join(part.explain(*args, **kwargs) for part in self.parts)

    def step(self, on_op: OnOp, *args: object, **kwargs: object) -> object:
        """See `Kernel.step`."""
        if self.parts:
            hint = "step through one of its `parts`, which are kernels with the same arguments"
            raise SpirogradUnsupportedError(
                f"kernel `{self.function.__name__}` is a graph of several launches, which cannot be stepped through as a whole", None, hint
            )
        return super().step(on_op, *args, **kwargs)

    # --- running ---------------------------------------------------------------------------------------------------------

    def _start_run(self, args: tuple[object, ...], kwargs: dict[str, object], skipped_to: object) -> GraphStatus | None:
        if kwargs and (stream := streams.taken_from(kwargs, self._parameter_names)) is not None:
            with stream:
                return self._start_run(args, kwargs, skipped_to)
        session = context.session()
        if session is not self._in_session.session:
            self._start(session)
        bound = self._bind(args, kwargs)
        assert self._signature is not None
        parameters = self._signature.parameters.values()
        split = sum(1 for p in parameters if p.kind is not p.KEYWORD_ONLY)
        named = {p.name: value for p, value in zip(parameters, bound)}
        by_name = dict(list(named.items())[split:])
        parts = self.parts

        def launch(part: Part) -> None:
            if part.number >= 0:
                parts[part.number](*bound[:split], **by_name)

        run = _Run(session, named, launch, skipped_to)
        try:
            self._nodes(self._structure.nodes, run)
        except _Yielded as end:
            return GraphStatus(True, end.label)
        if self._structure.labels:
            return GraphStatus(False)
        native, loop = self._native, self._structure.only_loop
        if run.repeated is not None and loop is not None and native.device is not None and native.is_due():
            native.prepare(run.repeated, Arguments.of((), (), {}), bound, functools.partial(self._record, loop))
        return None

    def _record(self, loop: Loop, args: Sequence[object], into: StepRecorder) -> None:
        """Record how compiled code checks that a call runs ``loop`` as the one with ``args`` did: each part is the same, and each flag."""
        into.keep_all()
        for part in self.parts:
            part.specialized(tuple(args), {})[1].record(args, into)
        for path in loop.flags():
            self._record_flag(path, args, into)

    def _record_flag(self, path: ast.expr, args: Sequence[object], into: StepRecorder) -> None:
        assert self._signature is not None
        parameters = list(self._signature.parameters)
        memory = self._flag_memory(path, dict(zip(parameters, args)))
        members: list[str] = []
        while isinstance(path, ast.Attribute):
            members.append(path.attr)
            path = path.value
        if not isinstance(path, ast.Name) or path.id not in parameters:
            raise NotPrepared
        into.argument(parameters.index(path.id))
        for name in reversed(members):
            into.member(name)
        into.same(memory, mortal=True)

    def _nodes(self, nodes: Sequence[Node], run: _Run) -> None:
        for node in nodes:
            if isinstance(node, Loop):
                self._loop(node, run)
            elif isinstance(node, Checkpoint):
                self._checkpoint(node, run)
            elif run.skipped_to is not None:
                continue
            elif isinstance(node, Sections):
                self._sections(node, run)
            else:
                run.launch(node)

    def _sections(self, node: Sections, run: _Run) -> None:
        if run.plan is not None:
            run.plan.sections([functools.partial(self._nodes, section, run) for section in node.sections])
            return
        order = run.session.streams

        def do(number: int, section: Sequence[Node]) -> None:
            with contextlib.nullcontext() if order is None else order.on(order.section(number)):
                self._nodes(section, run)

        run.session.do_sections([functools.partial(do, number, section) for number, section in enumerate(node.sections)])

    def _loop(self, loop: Loop, run: _Run) -> None:
        if run.skipped_to is not None and run.skipped_to not in loop.labels:
            return
        memory = self._flag_memory(loop.flag, run.named)
        if run.plan is not None:
            with run.plan.loop(_address(memory)):
                self._nodes(loop.body, run)
            return
        if not self._on_device(loop, run):
            while True:
                self._nodes(loop.body, run)
                if not memory[None]:
                    return

    def _on_device(self, loop: Loop, run: _Run) -> bool:
        """Have the device run the loop, if it can."""
        loops = run.session.device_loops
        if loops is None or loop.labels or context.recorder() is not None:
            return False

        def plan(value: PlannedLoop) -> None:
            run.plan = value
            try:
                self._loop(loop, run)
            finally:
                run.plan = None

        run.repeated = loops.run(plan)
        return run.repeated is not None

    def _checkpoint(self, checkpoint: Checkpoint, run: _Run) -> None:
        if run.skipped_to is not None:
            if run.skipped_to != checkpoint.label:
                return
            run.skipped_to = None
        flag = self._flag_memory(checkpoint.flag, run.named)
        self._nodes(checkpoint.body, run)
        if flag[None]:
            raise _Yielded(checkpoint.label)

    def _flag_memory(self, path: ast.expr, named: Mapping[str, object]) -> ScalarField | Ndarray:
        """Return the field or ndarray that decides. ``named``: the arguments by name."""
        memory = object_of(path, lambda name: named[name] if name in named else self.source().names().get(name))
        if not isinstance(memory, (Ndarray, ScalarField)) or memory.shape != () or memory.dtype is not i32 or memory.element_shape:
            label = f"kernel `{self.function.__name__}`: `{ast.unparse(path)}`"
            problem = f"{label} decides how the graph goes on: it must be a field or ndarray of i32 with no axes, got {describe(memory)}"
            raise SpirogradRuntimeTypeError(render(problem, self.source().loc(path, None), "make it with `sg.ndarray(sg.i32, ())`"))
        return memory


def _address(memory: ScalarField | Ndarray) -> int:
    """Return where the only element of a field or ndarray lies."""
    if isinstance(memory, ScalarField):
        return int(memory.tree.allocation.address + memory._addresses(None)[0])
    array, index = (memory.arr, memory._index(None)) if isinstance(memory, BufferView) else (memory, None)
    return int(array.allocation.address + array._address(index))
