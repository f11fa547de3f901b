"""Merge equal values: pure operations, and loads with no write in between."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from spirograd.analysis.effects import others_may_alias
from spirograd.ir import ops
from spirograd.ir.nodes import Kernel, Op, Ref, Region, TapeRef, TempRef, accesses_of, ref_of
from spirograd.ir.rewrite import Rewriter
from spirograd.transforms.pass_context import PassContext

_WRITING = frozenset(("write", "atomic"))
_OF_A_LAUNCH = (TempRef, TapeRef)  # which only equal references may alias


def cse(kernel: Kernel, ctx: PassContext) -> Kernel:
    """Let one operation stand for all that compute the same, within a region and those nested in it.

    A load takes the value of an earlier load of, or store to, the same element where nothing in between may have written it. Memory that
    other invocations write at the same time is not a concern: such a program has no defined order.
    """
    return _Cse().kernel(kernel)


def _key(op: Op, args: tuple[Op, ...]) -> tuple[Any, ...]:
    code = op.code
    if code is ops.const:
        value = op.attr
        if not value or value != value:
            value = repr(value)  # which tells -0.0 from 0.0 and lets NaN equal itself
        return (code, op.type, value)
    if code.commutative and len(args) == 2 and id(args[0]) > id(args[1]):
        args = (args[1], args[0])
    return (code, op.type, op.attr, args)


class _Cse(Rewriter):
    def __init__(self) -> None:
        super().__init__()
        self.known: dict[tuple[Any, ...], Op] = {}
        self.added: list[list[tuple[Any, ...]]] = []  # the keys of ``known`` that are of each open region, innermost last
        self.loaded: dict[tuple[int, tuple[Op, ...]], tuple[int, Op, int]] = {}
        self.epochs: list[int] = []  # by number of a reference: how often it may have been written
        self.refs: list[Ref] = []
        self.numbers: dict[int | Ref, int] = {}
        self.aliases: dict[int, tuple[list[int], int]] = {}  # by number of a reference: those that may alias it, among the first so many
        self.written_in: dict[Op, frozenset[int] | None] = {}
        self.depth_ids: list[int] = []
        self.next_region = 0

    def visit_all(self, body: Sequence[Op]) -> None:
        """Most operations are pure: these are merged here, without a call for each."""
        known, added, done, env = self.known, self.added[-1], self.b.ops, self.env
        is_unchanged = env.keys().isdisjoint
        for op in body:
            if op.code.effect != "pure":
                self.visit(op)
                continue
            args = op.args if is_unchanged(op.args) else self.args(op)
            key = _key(op, args)
            new = known.get(key)
            if new is None:
                new = op if args is op.args else Op(op.code, op.type, args, op.attr, (), op.loc, op.primal)
                known[key] = new
                added.append(key)
                done.append(new)
            if new is not op:
                env[op] = new

    def visit(self, op: Op) -> None:
        """An operation that is not pure."""
        effect = op.code.effect
        if effect == "read":
            self._load(op)
        else:
            if op.code is ops.for_ or op.code is ops.while_:
                written = self._written(op)
                self._forget(range(len(self.refs)) if written is None else written)
            new = self.copy(op)
            if new is not op:
                self.env[op] = new
            if effect in _WRITING:
                self._write(op, new)
            elif effect == "call":
                self._forget([self._number(ref) for done, ref in accesses_of(op) if done in _WRITING])
            elif effect == "barrier":
                self._forget(range(len(self.refs)))

    def region(self, region: Region) -> Region:
        self.added.append([])
        self.next_region += 1
        self.depth_ids.append(self.next_region)
        new = super().region(region)
        for key in self.added.pop():
            del self.known[key]
        self.depth_ids.pop()
        return new

    # --- memory ------------------------------------------------------------------------------------------------------------

    def _number(self, ref: Ref) -> int:
        """A small number for ``ref``; equal references share it. Hashing one is slow, so objects are remembered."""
        number = self.numbers.get(id(ref))
        if number is None:
            number = self.numbers.setdefault(ref, len(self.refs))
            if number == len(self.refs):
                self.refs.append(ref)
                self.epochs.append(0)
            self.numbers[id(ref)] = number
        return number

    def _aliases(self, number: int) -> list[int]:
        mine = self.refs[number]
        if isinstance(mine, _OF_A_LAUNCH):
            return [number]
        found, seen = self.aliases.get(number, ([], 0))
        if seen < len(self.refs):
            found += [k for k in range(seen, len(self.refs)) if k == number or others_may_alias(self.refs[k], mine)]
            self.aliases[number] = found, len(self.refs)
        return found

    def _written(self, op: Op) -> frozenset[int] | None:
        """The numbers of what ``op``, or anything inside, writes. None if there is a barrier inside: anything may change there."""
        if op not in self.written_in:
            self.written_in[op] = self._find_written(op)
        return self.written_in[op]

    def _find_written(self, op: Op) -> frozenset[int] | None:
        numbers: set[int] = set()
        for region in op.regions:
            for inner in region.ops:
                effect = inner.code.effect
                if inner.regions:
                    within = self._written(inner)
                    if within is None:
                        return None
                    numbers |= within
                elif effect in _WRITING or effect == "call":
                    numbers.update([self._number(ref) for done, ref in accesses_of(inner) if done in _WRITING])
                elif effect == "barrier":
                    return None
        return frozenset(numbers)

    def _forget(self, numbers: Iterable[int]) -> None:
        for number in numbers:
            for k in self._aliases(number):
                self.epochs[k] += 1

    def _load(self, op: Op) -> None:
        args = self.args(op)
        number = self._number(op.attr)
        found = self.loaded.get((number, args))
        if found is not None and found[0] == self.epochs[number] and found[2] in self.depth_ids and found[1].type == op.type:
            self.env[op] = found[1]
            return
        new = self.copy(op)
        if new is not op:
            self.env[op] = new
        self.loaded[number, args] = (self.epochs[number], new, self.depth_ids[-1])

    def _write(self, op: Op, new: Op) -> None:
        ref = ref_of(op)
        assert ref is not None
        number = self._number(ref)
        self._forget((number,))
        if op.code is ops.store:
            *indices, value = new.args
            self.loaded[number, tuple(indices)] = (self.epochs[number], value, self.depth_ids[-1])
