"""Runs of a Python function that launches kernels, as a function from the memory of its inputs to the memory of its outputs.

A run sets inputs and state, clears outputs, and draws the random numbers of the first run, so that equal inputs give equal outputs. The
tape of the last run stays, so that its gradient need not run the function again. The gradient of an earlier run does.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Protocol

import numpy as np

from spirograd.ad.entries import Launch
from spirograd.ad.exposed import Exposed
from spirograd.ad.memory_keys import FieldOrArray, Generation, Key, Returned
from spirograd.ad.program_memory import MemoryRecorder, RandomRepeater, Tree, Used, generations, is_changed
from spirograd.ad.second_order import first_derivatives, second_derivatives
from spirograd.ad.tape import Tape
from spirograd.ad.versions import Saved, Stored, memory_identity
from spirograd.base.arrays import Array
from spirograd.base.errors import SpirogradRuntimeError, render
from spirograd.base.records import dataclass
from spirograd.lang import context

Static = Mapping[str, object]  # arguments of the function that are no inputs
Load = Callable[[FieldOrArray, object], None]  # copies a value of some library to memory


class ProgramFunction(Protocol):
    """A function of Python that launches kernels."""

    def __call__(self, **static: object) -> object: ...


class _RunTape(Tape):
    """The tape of a run. ``numbers``: of launches, by which they draw random numbers. ``follows``: whether it may follow the sequence of
    launches of an earlier run, whose gradient went from ``output``."""

    def __init__(self, numbers: Sequence[int | None], options: Mapping[str, object], output: Key, follows: bool) -> None:
        super().__init__(clear_gradients=False, **options)  # type: ignore[arg-type]
        self.numbers: list[int | None] = []
        self._given, self._numbered = numbers, iter(numbers)
        self._output, self._follows, self._has_reversed = output, follows, False

    def _begin_recording(self) -> None:
        super()._begin_recording()
        if self._follows:
            self._may_repeat()

    def _end(self, kind: type[BaseException] | None) -> None:
        if kind is None and self._following is not None and self._following.is_complete:
            self._following.close()
            self._left = {}
        else:
            super()._end(kind)

    def _generations(self) -> dict[Key, Generation]:
        """Return nothing for a tape that follows a sequence: `ProgramRuns` looks for writes."""
        return super()._generations() if self._following is None else {}

    def grad(self) -> None:
        sequence = None if self._has_reversed else self._end_sequence(self._output)
        self._has_reversed = True
        super().grad()
        self._repeat_later(sequence)

    def close(self) -> None:
        """Give back the memory of copies for the next run."""
        if self._following is not None:
            self._following.end()

    @property
    def drawn(self) -> int | None:  # type: ignore[override]
        return next(self._numbered, None)

    def _drawn_by(self, number: int) -> int | None:
        return self._given[number] if number < len(self._given) else None

    def _launch(self, launch: Launch, exposed: Exposed) -> Returned:
        returned = super()._launch(launch, exposed)
        self.numbers.append(launch.number)
        return returned

    def memory(self) -> dict[Key, Used]:
        """Return the memory that it has used."""
        used = self._used() if self._following is None else self._following.sequence.used_memory()
        return {memory_identity(m)[0]: Used(getattr(m, "name", "an ndarray"), memory_identity(m)[1]) for m in used}


@dataclass(slots=True, eq=False)
class Run:
    """A run with a gradient. ``values``, ``load``: its inputs; ``static``: its other arguments. ``used``: the memory that it used.
    ``tape``: None once another run has taken its place."""

    values: Sequence[object]
    load: Load
    static: Static
    used: dict[Key, Used]
    tape: _RunTape | None


class ProgramRuns:
    """Runs of ``function``, from ``inputs`` to ``outputs``. ``state``: memory that each run finds as the first one did. ``options``: of
    `Tape`: how it saves memory. One run at a time: other threads wait."""

    def __init__(
        self, function: ProgramFunction, inputs: Tree, outputs: Tree, state: Tree, check: bool, options: Mapping[str, object]
    ) -> None:
        self.function, self.name = function, getattr(function, "__name__", "the function")
        self.inputs, self.outputs, self.options = inputs, outputs, options
        self._state, self._checks = state, check
        self._initial: list[Saved] | None = None  # of the state, from the first run on
        self._written: dict[Key, bool] = {}  # by memory that checked runs used
        self._checked: list[Static] = []  # the other arguments whose runs depend on inputs only
        self._numbers: list[int | None] = []  # of launches: those of the first run, and what longer runs add
        self._draws = False  # whether launches draw random numbers
        self._last: Run | None = None
        self._lock = threading.RLock()
        known = {memory_identity(leaf)[0] for leaf in inputs.leaves}
        self._cleared = [leaf for leaf in outputs.leaves if memory_identity(leaf)[0] not in known]

    def exclusive(self) -> contextlib.AbstractContextManager[object]:
        """Return a block in which other threads do not run the function, so that memory is as the run left it."""
        return self._lock

    # --- runs ------------------------------------------------------------------------------------------------------------

    def run(self, values: Sequence[object], load: Load, static: Static) -> None:
        """Run the function without a gradient. The results are in the memory of the outputs."""
        with self._lock:
            self._prepare(values, load, static)
            self._drop()
            if self._draws:
                self._repeat(RandomRepeater(self._numbers), static)
            else:
                self.function(**static)

    def record(self, values: Sequence[object], load: Load, static: Static) -> Run:
        """Run the function with a tape."""
        with self._lock:
            self._prepare(values, load, static)
            self._drop()
            self._last = run = Run(values, load, static, {}, None)
            self._record(run)
            return run

    def _record(self, run: Run) -> None:
        follows = all(option is None for option in self.options.values())
        tape = _RunTape(self._numbers, self.options, memory_identity(self.outputs.leaves[0])[0], follows)
        with tape:
            self.function(**run.static)
        self._numbers += tape.numbers[len(self._numbers) :]
        run.tape, run.used = tape, tape.memory()
        for key, written in self._written.items():
            if key in run.used:
                run.used[key].written = written
        generations(run.used)

    def _drop(self) -> None:
        """Release the tape of the last run."""
        if self._last is not None and self._last.tape is not None:
            self._last.tape.close()
            self._last.tape = None
        self._last = None

    def _prepare(self, values: Sequence[object], load: Load, static: Static) -> None:
        """Set the memory that the function finds."""
        if context.recorder() is not None:
            hint = f"call `{self.name}` itself, whose launches are then part of it"
            raise SpirogradRuntimeError(render("a program cannot run inside of a tape or of a `FwdMode`", None, hint))
        if self._initial is None:
            self._initial = [Saved(Stored(getattr(m, "name", "state"), memory_identity(m)[1]), None) for m in self._state.leaves]
        if not any(same_arguments(static, known) for known in self._checked):
            self._set(values, load)
            self._first_run(values, load, static)
            self._checked.append(dict(static))
        self._set(values, load)

    def _set(self, values: Sequence[object], load: Load) -> None:
        for saved in self._initial or ():
            saved.put()
        for leaf, value in zip(self.inputs.leaves, values):
            load(leaf, value)
        for leaf in self._cleared:
            leaf.fill(0)

    # --- whether it is a function of its inputs ---------------------------------------------------------------------------

    def _first_run(self, values: Sequence[object], load: Load, static: Static) -> None:
        """Find out what memory the function writes with these other arguments, and whether the outputs depend on what that held before."""
        first = self._observed(static)
        self._written.update({key: used.written or self._written.get(key, False) for key, used in first.used.items()})
        declared = {memory_identity(m)[0] for tree in (self.inputs, self._state) for m in tree.leaves}
        declared |= {memory_identity(m)[0] for m in self._cleared}
        hidden = {key: used for key, used in first.used.items() if used.written and key not in declared}
        try:
            if self._checks and hidden:
                self._check(hidden, first, values, load, static)
        finally:
            for used in hidden.values():
                assert used.before is not None
                used.before.put()

    def _check(self, hidden: Mapping[Key, Used], first: _Observed, values: Sequence[object], load: Load, static: Static) -> None:
        """Raise if the outputs depend on what ``hidden`` memory held before: then floats are NaN, and integers what the
        first run left."""

        def again(changed: Mapping[Key, Used]) -> list[Array]:
            for key, used in hidden.items():
                assert used.before is not None
                if key not in changed:
                    used.before.put()
                elif used.storage.dtype.is_float:
                    used.storage.fill(float("nan"))
            self._set(values, load)
            return self._observed(static).outputs

        if _same(first.outputs, again(hidden)) or not _same(first.outputs, again({})):
            return  # in the second case, equal runs differ: sums of floats in another order, for example
        guilty = [used.name for key, used in hidden.items() if not _same(first.outputs, again({key: used}))]
        names = _listed(guilty or [used.name for used in hidden.values()])
        problem = f"the outputs of program `{self.name}` depend on what {names} held before the call"
        hint = "set it in the function before it is read, or name it: in `inputs`, or in `state=[...]`, which each call finds as now"
        raise SpirogradRuntimeError(render(problem, None, hint))

    def _observed(self, static: Static) -> _Observed:
        """Run the function, and note what memory it uses."""
        recorder = MemoryRecorder(self._numbers)
        self._repeat(recorder, static)
        self._draws |= recorder.draws
        return _Observed(recorder.used, [leaf.to_numpy() for leaf in self.outputs.leaves])

    def _repeat(self, recorder: RandomRepeater, static: Static) -> None:
        """Run the function with the random numbers of the first run."""
        before = context.set_recorder(recorder)
        try:
            self.function(**static)
        finally:
            context.set_recorder(before)
        self._numbers += recorder.numbers[len(self._numbers) :]

    # --- derivatives -----------------------------------------------------------------------------------------------------

    def gradient(self, run: Run, adjoints: Sequence[object], load: Load) -> None:
        """Compute the gradients of the inputs of a run, from those of the outputs, into the ``grad`` of their memory."""
        with self._lock:
            changed = [used for used in run.used.values() if is_changed(used)]
            constant = [used.name for used in changed if not used.written and not self._is_input(used)]
            if constant:
                problem = f"{_listed(constant)} was written after the call of program `{self.name}` whose gradient is to be computed"
                raise SpirogradRuntimeError(render(problem, None, "compute the gradient before the write, or name the memory in `inputs`"))
            if run is not self._last or run.tape is None or changed:
                self._prepare(run.values, run.load, run.static)
                self._drop()
                self._last = run
                self._record(run)
            assert run.tape is not None
            for memory in (*(used.storage for used in run.used.values()), *self.inputs.leaves, *self.outputs.leaves):
                if memory.has_grad():
                    memory.grad.fill(0)
            for leaf, adjoint in zip(self.outputs.leaves, adjoints):
                load(leaf.grad, adjoint)
            run.tape.grad()
            generations(run.used)

    def is_last(self, run: Run) -> bool:
        """Return whether no run came after this one, so that its gradient needs none."""
        return run is self._last

    def _is_input(self, used: Used) -> bool:
        return any(memory_identity(leaf)[1] is used.storage for leaf in self.inputs.leaves)

    @contextlib.contextmanager
    def tangent(self, values: Sequence[object], directions: Sequence[object], load: Load, static: Static) -> Iterator[None]:
        """Run the function with tangents, from those of the inputs. In the block, those of the outputs are in their ``dual``."""
        with self._lock, first_derivatives(*self._along(values, directions, load, static)):
            yield

    @contextlib.contextmanager
    def second(
        self, values: Sequence[object], directions: Sequence[object], adjoints: Sequence[object], load: Load, static: Static
    ) -> Iterator[None]:
        """Do the same, then run the gradients with their tangents, from the adjoints of the outputs. In the block, the gradients are in
        ``grad`` of the inputs, and the derivatives of these along ``directions`` in ``grad.dual``."""
        with self._lock, second_derivatives(*self._along(values, directions, load, static)) as reverse:
            for leaf, adjoint in zip(self.outputs.leaves, adjoints):
                load(leaf.grad, adjoint)
            reverse()
            yield

    def _along(
        self, values: Sequence[object], directions: Sequence[object], load: Load, static: Static
    ) -> tuple[Callable[[], object], Sequence[FieldOrArray], Callable[[], None], Sequence[int | None]]:
        """Set the memory that the function finds; return arguments of `first_derivatives`."""
        self._prepare(values, load, static)
        self._drop()

        def seed() -> None:
            for leaf, direction in zip(self.inputs.leaves, directions):
                load(leaf.dual, direction)

        return lambda: self.function(**static), [*self.inputs.leaves, *self.outputs.leaves], seed, self._numbers


@dataclass(slots=True, eq=False)
class _Observed:
    """What a run used, and its outputs."""

    used: dict[Key, Used]
    outputs: list[Array]


def same_arguments(some: Static, others: Static) -> bool:
    """Return whether the function gets the same arguments: the same objects, or numbers and text of one type that print alike. 1, 1.0 and
    True are equal, and so are 0.0 and -0.0, but kernels distinguish them."""
    plain = (int, float, complex, str, bytes)
    return some.keys() == others.keys() and all(
        a is b or (type(a) is type(b) and isinstance(a, plain) and repr(a) == repr(b)) for a, b in zip(some.values(), map(others.get, some))
    )


def _same(some: Sequence[Array], others: Sequence[Array]) -> bool:
    """Return whether arrays hold equal numbers, or NaN both."""
    return all(np.array_equal(a, b, equal_nan=a.dtype.kind == "f") for a, b in zip(some, others))


def _listed(names: Sequence[str]) -> str:
    return ", ".join(f"`{name}`" for name in names)
