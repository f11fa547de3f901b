"""Races, found by the interpreter: two iterations of a parallel loop access one element of memory, one of them by a store that is not
atomic, and no barrier stands in between. In shared memory a load beside an atomic update is a race, too; in outer memory it is none,
since loops around ``cas`` begin with such a load.

The iterations of a loop are in no order, except that in a group of threads all accesses before a barrier come before all accesses after it,
and that a barrier of a subgroup orders the accesses of those threads that wait at it together: what each thread knows of the others is a
vector clock (Mattern, "Virtual time and global states of distributed systems", 1989). Of each element the last access of each thread since
the last barrier of the group is kept: earlier ones come before all later accesses of the group. Groups run one after the other, so of the
groups that have ended one access is enough.

Accesses to outer memory are compared where a ``label`` says which element they are to: the front end labels those of the program, and none
of its own, such as those to the tables of sparse fields.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from spirograd.base import artifact
from spirograd.base.artifact import FaultSite
from spirograd.base.records import dataclass
from spirograd.ir.interp_loops import Loop
from spirograd.ir.interp_reports import record_fault
from spirograd.ir.interp_state import FAULT, ITERATION, LAUNCH, Compiler, Env, Step
from spirograd.ir.nodes import Label, Op, Ref, SharedRef

# Given the values of an invocation, the number of an element; -1 if it is out of range.
Locate = Callable[[Env], int]

_RIVALS = {"read": ("write",), "write": ("write", "read", "atomic"), "atomic": ("write",)}
_RIVALS_SHARED = _RIVALS | {"read": ("write", "atomic"), "atomic": ("write", "read")}
_VERBS = {"read": "reads", "write": "writes", "atomic": "updates"}


@dataclass(slots=True, eq=False)
class Iteration:
    """An iteration of a parallel loop. ``group``: of threads; without groups each iteration is one. ``thread``: its number there.
    ``barriers``: that it has passed. ``index``: as the program has it. ``subgroup``: its number; ``lane``: that of the thread there.
    ``clock``: for each lane, the number of barriers of subgroups before which all its accesses come before those of this thread; its own
    entry counts those that it has passed. Empty: all are 0."""

    group: int
    index: tuple[int, ...]
    thread: int = 0
    subgroup: int = 0
    lane: int = 0
    barriers: int = 0
    clock: tuple[int, ...] = ()


def wait_together(iterations: Sequence[Iteration], lanes: int) -> None:
    """These threads of a subgroup of ``lanes`` pass a barrier: all that each of them knew or did before, all of them know after it."""
    clocks = [iteration.clock for iteration in iterations if iteration.clock]
    merged = [max(counts) for counts in zip(*clocks)] if clocks else [0] * lanes
    for iteration in iterations:
        merged[iteration.lane] += 1
    clock = tuple(merged)
    for iteration in iterations:
        iteration.clock = clock


class _Access(NamedTuple):
    iteration: Iteration
    barriers: int  # that the iteration had passed
    clock: tuple[int, ...]  # of the iteration
    op: Op
    effect: str

    def before(self, later: _Access) -> bool:
        """Whether a barrier says that ``later``, which is no earlier, comes after it."""
        mine, other = self.iteration, later.iteration
        if mine.group != other.group:
            return False
        if self.barriers < later.barriers:
            return True
        passed = self.clock[mine.lane] if self.clock else 0
        return mine.subgroup == other.subgroup and bool(later.clock) and passed < later.clock[mine.lane]

    def races(self, later: _Access) -> bool:
        """Whether nothing says that ``later``, which is by another iteration, comes after it."""
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
    """Of one kernel. ``label``: while it is compiled, what the next accesses are to, and the entries of the index; ``labelled``: how many
    more accesses it is about."""

    def __init__(self) -> None:
        self.label: tuple[Label, list[int]] = Label(), []
        self.labelled = 0
        self.elements: dict[Any, dict[str, _Kept]] = {}

    def rival(self, key: object, access: _Access, rivals: Mapping[str, Sequence[str]]) -> _Access | None:
        """An earlier access to the element ``key`` with which this one races; else it is kept for later ones. ``rivals``: with what each
        kind of access races."""
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
    """``loop``, with its iterations known. ``index``: the entry of the index."""

    def watched(env: Env) -> Iterator[list[Any]]:
        races.elements.clear()
        for number, steps in enumerate(loop(env)):
            env[ITERATION] = Iteration(number, (int(env[index]),))
            yield steps
        env[ITERATION] = None

    return watched


def label(c: Compiler, op: Op) -> Step | None:
    """The step of a label: of an iteration it sets the index; one of an element is for the accesses that are compiled next."""
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
    """As `Compiler.locate`; the access of ``op`` is compared with earlier ones if that is wanted."""
    found = c.locate(op, ref, list(indices))
    if c.races is None:
        return found
    if isinstance(ref, SharedRef):
        return _watched_shared(c, op, ref, found)
    if c.races.labelled == 0 or c.races.label[0].of != ref:
        return found
    c.races.labelled -= 1
    return _watched(c, op, ref, indices, found)


def _watched_shared(c: Compiler, op: Op, ref: Ref, found: Locate) -> Locate:
    view = c.view(ref)[0]

    def watched(env: Env) -> int:
        n, here = found(env), env[ITERATION]
        if n >= 0:
            access = _Access(here, here.barriers, here.clock, op, op.code.effect)
            rival = c.races.rival((view, here.group, n), access, _RIVALS_SHARED)
            if rival is not None:
                threads = f"thread {here.thread} of a group", f"thread {rival.iteration.thread}"
                _report(c, env, access, rival, threads, f"element {n} of a shared array", " without a barrier in between")
        return n

    return watched


def _watched(c: Compiler, op: Op, ref: Any, indices: Sequence[int], found: Locate) -> Locate:
    view, races, (about, index) = c.view(ref)[0], c.races, c.races.label
    effect = "atomic" if about.atomic else op.code.effect
    components = indices[len(indices) - len(ref.element_shape) :]

    def watched(env: Env) -> int:
        n, here = found(env), env[ITERATION]
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


def _element(ref: Any, env: Env, index: Sequence[int], components: Sequence[int]) -> str:
    """An element in the words of the program."""
    parts = [", ".join([str(env[k]) for k in entries]) for entries in (index, components)]
    return f"`{ref.name}[{parts[0] or None}]" + (f"[{parts[1]}]`" if components else "`")


def _report(c: Compiler, env: Env, access: _Access, rival: _Access, by: tuple[str, str], element: str, why: str) -> None:
    """Put a race on record, if no fault came first. Its site is made when it is found, since the message has numbers of both iterations."""
    record = env[FAULT]
    if record is not None and record[artifact.FAULT_FLAG]:
        return
    text = f"race: {by[0]} {_VERBS[access.effect]} {element}, which {by[1]} {_VERBS[rival.effect]} ({rival.op.loc}){why}"
    site = FaultSite("race", text.replace("{", "{{").replace("}", "}}"), (), access.op.loc)
    record_fault(record, env[LAUNCH], c.fault(site), site, [])
