"""Loops of the interpreter, as generators of the steps that run next.

A loop runs at once (`interp_steps`), or in a group of threads, whose steps may wait (`interp_groups`). Both follow the same generator: it
passes values between iterations, yields the steps of a region, and continues when these have run. Branches have no generator: it would
take longer than the branch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from spirograd.base.dtypes import DType
from spirograd.ir import ops
from spirograd.ir.interp_state import Compiler, Env
from spirograd.ir.nodes import Op, Region

Steps = list[Any]  # of the kind that the caller runs: `interp_state.Step`, or steps that may wait
# A function of the values of an invocation that yields the steps of each region in the order of execution.
Loop = Callable[[Env], Iterator[Steps]]
# A compiled region: the entries of its parameters, its steps, the entries of its results.
CompileRegion = Callable[[Region], tuple[list[int], Steps, list[int]]]


def _for(c: Compiler, op: Op, region: CompileRegion) -> Loop:
    out, begin, end, *initial = [c.entry(op), *c.args(op)]
    (index, *carried), steps, results = region(op.regions[0])
    t = op.args[0].type
    assert isinstance(t, DType)
    convert = t.np.type

    def independent(env: Env) -> Iterator[Steps]:
        for i in range(int(env[begin]), int(env[end])):
            env[index] = convert(i)
            yield steps
        env[out] = ()

    def loop(env: Env) -> Iterator[Steps]:
        values = [env[s] for s in initial]
        for i in range(int(env[begin]), int(env[end])):
            env[index] = convert(i)
            for s, value in zip(carried, values):
                env[s] = value
            yield steps
            values = [env[s] for s in results]
        env[out] = tuple(values)

    return loop if carried else independent


def _while(c: Compiler, op: Op, region: CompileRegion) -> Loop:
    out, initial = c.entry(op), c.args(op)
    tested, condition, (verdict, *more) = region(op.regions[0])
    carried, steps, results = region(op.regions[1])

    def loop(env: Env) -> Iterator[Steps]:
        values = [env[s] for s in initial]
        while True:
            for s, value in zip(tested, values):
                env[s] = value
            yield condition
            if not env[verdict]:
                break
            for s, value in zip(carried, [*values, *[env[s] for s in more]]):
                env[s] = value
            yield steps
            values = [env[s] for s in results]
        env[out] = tuple(values)

    return loop


LOOPS: dict[ops.OpCode, Callable[[Compiler, Op, CompileRegion], Loop]] = {ops.for_: _for, ops.while_: _while}
