"""Data races, detected by the interpreter: two iterations of a parallel loop access one element of memory, one of them by a store that is
not atomic, and no barrier stands in between. In shared memory a load beside an atomic update is a race, too. In outer memory it is none,
since loops around ``cas`` begin with such a load.

The iterations of a loop are in no order, with two exceptions. In a group of threads all accesses before a barrier come before all accesses
after it. A barrier of a subgroup orders the accesses of the threads that wait at it together: a vector clock (Mattern, "Virtual time and
global states of distributed systems", 1989) records for each thread which accesses of the others come before. The interpreter keeps the
last access of each thread to an element since the last barrier of the group, because earlier ones come before all later accesses of the
group. Groups run one after the other, so one access is enough for all groups that have ended.

Accesses to outer memory are compared where a ``label`` says which element they access. The front end labels the accesses of the program,
and none of its own, such as those to the tables of sparse fields.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NamedTuple

from spirograd.base import artifact
from spirograd.base.artifact import FaultSite
from spirograd.base.records import dataclass
from spirograd.ir.interp_loops import Loop, Steps
from spirograd.ir.interp_reports import record_fault
from spirograd.ir.interp_state import FAULT, ITERATION, LAUNCH, Compiler, Env, Step
from spirograd.ir.nodes import ArrayRef, FieldRef, Label, Op, Ref, SharedRef

# A function of the values of an invocation that returns the number of an element, or -1 if it is out of range.
Locate = Callable[[Env], int]

_RIVALS = {"read": ("write",), "write": ("write", "read", "atomic"), "atomic": ("write",)}
_RIVALS_SHARED = _RIVALS | {"read": ("write", "atomic"), "atomic": ("write", "read")}
_VERBS = {"read": "reads", "write": "writes", "atomic": "updates"}


@dataclass(slots=True, eq=False)
class Iteration:
    """An iteration of a parallel loop. ``group``: the number of its group of threads; without groups each iteration has its own.
    ``thread``: its number in the group. ``barriers``: the number of barriers that it has passed. ``index``: its index in the program.
    ``subgroup``: its number; ``lane``: the number of the thread in it. ``clock``: for each lane, the number of barriers of subgroups before
    which all its accesses come before those of this thread. Its own entry counts the barriers that it has passed. If empty, all are 0."""

    group: int
    index: tuple[int, ...]
    thread: int = 0
    subgroup: int = 0
    lane: int = 0
    barriers: int = 0
    clock: tuple[int, ...] = ()


def wait_together(iterations: Sequence[Iteration], lanes: int) -> None:
    """Record that these threads of a subgroup of ``lanes`` pass a barrier: accesses before it, of any of them, come before those after
    it."""
    clocks = [iteration.clock for iteration in iterations if iteration.clock]
    merged = [max(counts) for counts in zip(*clocks)] if clocks else [0] * lanes
    for iteration in iterations:
        merged[iteration.lane] += 1
    clock = tuple(merged)
    for iteration in iterations:
        iteration.clock = clock


class _Access(NamedTuple):
    iteration: Iteration
    barriers: int  # The number of barriers that the iteration had passed.
    clock: tuple[int, ...]  # The clock of the iteration.
    op: Op
    effect: str

    def before(self, later: _Access) -> bool:
        """Return whether a barrier orders this access before ``later``, which is no earlier."""
        mine, other = self.iteration, later.iteration
        if mine.group != other.group:
            return False
        if self.barriers < later.barriers:
            return True
        passed = self.clock[mine.lane] if self.clock else 0
        return mine.subgroup == other.subgroup and bool(later.clock) and passed < later.clock[mine.lane]

    def races(self, later: _Access) -> bool:
        """Return whether this access and ``later``, of another iteration, are unordered."""
        return self.iteration is not later.iteration and not self.before(later)


class _Kept:
    """The accesses of one kind to one element with which a later one may race. ``earlier``: one by a group that has ended. ``latest``: by
    thread, those of ``group`` since its last barrier, before which it had passed ``barriers``."""

    __slots__ = ("barriers", "earlier", "group", "latest")

    def __init__(self) -> None:
        self.earlier: _Access | None = None
        self.group = self.barriers = -1
        self.latest: dict[int, _Access] = {}

    def rival(self, access: _Access) -> _Access | None:
        return self.earlier or next((old for old in self.latest.values() if old.races(access)), None)

    def add(self, access: _Access) -> None:
        here = access.iteration
        if here.group != self.group or access.barriers != self.barriers:
            if here.group != self.group and self.earlier is None:
                self.earlier = next(iter(self.latest.values()), None)
            self.group, self.barriers, self.latest = here.group, access.barriers, {}
        self.latest[here.thread] = access


class Races:
    """The race detector of one kernel. While the kernel is compiled, ``label`` holds the element of the next accesses and the entries of
    its index, and ``labelled`` counts the accesses that it still describes."""

    def __init__(self) -> None:
        self.label: tuple[Label, list[int]] = Label(), []
        self.labelled = 0
        self.elements: dict[object, dict[str, _Kept]] = {}

    def rival(self, key: object, access: _Access, rivals: Mapping[str, Sequence[str]]) -> _Access | None:
        """Return an earlier access to the element ``key`` with which this one races, or None, and keep this one for later accesses.
        ``rivals``: for each kind of access, the kinds that it races with."""
        held = self.elements.setdefault(key, {})
        for effect in rivals[access.effect]:
            other = held[effect].rival(access) if effect in held else None
            if other is not None:
                return other
        if access.effect not in held:
            held[access.effect] = _Kept()
        held[access.effect].add(access)
        return None


def watched_loop(races: Races, loop: Loop, index: int) -> Loop:
    """Return ``loop`` with the current iteration recorded in ``env``. ``index``: the entry of the index."""

    def watched(env: Env) -> Iterator[Steps]:
        races.elements.clear()
        for number, steps in enumerate(loop(env)):
            env[ITERATION] = Iteration(number, (int(env[index]),))
            yield steps
        env[ITERATION] = None

    return watched


def label(c: Compiler, op: Op) -> Step | None:
    """Return the step of a label. The label of an iteration sets its index; the label of an element describes the accesses that are
    compiled next."""
    index = c.args(op)
    if c.races is None:
        return None
    if op.attr.of is not None:
        c.races.label, c.races.labelled = (op.attr, index), op.attr.count
        return None

    def step(env: Env) -> None:
        if env[ITERATION] is not None:
            env[ITERATION].index = tuple([int(env[k]) for k in index])

    return step


def locate_access(c: Compiler, op: Op, ref: Ref, indices: Sequence[int]) -> Locate:
    """Return the function that locates the element of ``op``, as `Compiler.locate` does. It compares the access with earlier ones if races
    are detected."""
    locate = c.locate(op, ref, list(indices))
    if c.races is None:
        return locate
    if isinstance(ref, SharedRef):
        return _watched_shared(c, c.races, op, ref, locate)
    if c.races.labelled == 0 or c.races.label[0].of != ref:
        return locate
    c.races.labelled -= 1
    return _watched(c, c.races, op, ref, indices, locate)


def _watched_shared(c: Compiler, races: Races, op: Op, ref: Ref, locate: Locate) -> Locate:
    view = c.view(ref)[0]

    def watched(env: Env) -> int:
        n, here = locate(env), env[ITERATION]
        if n >= 0:
            access = _Access(here, here.barriers, here.clock, op, op.code.effect)
            rival = races.rival((view, here.group, n), access, _RIVALS_SHARED)
            if rival is not None:
                threads = f"thread {here.thread} of a group", f"thread {rival.iteration.thread}"
                _report(c, env, access, rival, threads, f"element {n} of a shared array", " without a barrier in between")
        return n

    return watched


def _watched(c: Compiler, races: Races, op: Op, ref: Ref, indices: Sequence[int], locate: Locate) -> Locate:
    assert isinstance(ref, (FieldRef, ArrayRef))
    view, (about, index) = c.view(ref)[0], races.label
    effect = "atomic" if about.atomic else op.code.effect
    components = indices[len(indices) - len(ref.element_shape) :]

    def watched(env: Env) -> int:
        n, here = locate(env), env[ITERATION]
        if n < 0 or here is None:
            return n
        memory = env[view]
        access = _Access(here, here.barriers, here.clock, op, effect)
        rival = races.rival(memory.__array_interface__["data"][0] + n * memory.itemsize, access, _RIVALS)
        if rival is not None:
            iterations = f"iteration {_index(here.index)}", f"iteration {_index(rival.iteration.index)}"
            _report(c, env, access, rival, iterations, _element(ref, env, index, components), ": the order of the two is undefined")
        return n

    return watched


def _index(index: Sequence[int]) -> str:
    return str(index[0]) if len(index) == 1 else str(tuple(index))


def _element(ref: FieldRef | ArrayRef, env: Env, index: Sequence[int], components: Sequence[int]) -> str:
    """Return the text of an element in the terms of the program."""
    parts = [", ".join([str(env[k]) for k in entries]) for entries in (index, components)]
    return f"`{ref.name}[{parts[0] or None}]" + (f"[{parts[1]}]`" if components else "`")


def _report(c: Compiler, env: Env, access: _Access, rival: _Access, by: tuple[str, str], element: str, why: str) -> None:
    """Record a race if no fault came before. Its site is created on detection, because the message contains the numbers of both
    iterations."""
    record = env[FAULT]
    if record is not None and record[artifact.FAULT_FLAG]:
        return
    text = f"race: {by[0]} {_VERBS[access.effect]} {element}, which {by[1]} {_VERBS[rival.effect]} ({rival.op.loc}){why}"
    site = FaultSite("race", text.replace("{", "{{").replace("}", "}}"), (), access.op.loc)
    record_fault(record, env[LAUNCH], c.fault(site), site, [])
