"""Saved values: the saving kernel does what the primal does, and the replaying one computes the same from any memory."""

from __future__ import annotations

import random
from dataclasses import replace

import numpy as np
import pytest
from ir_random_memory import memory_arguments, memory_kernel

from spirograd.analysis.trial import run
from spirograd.autodiff.residuals import residuals
from spirograd.autodiff.reverse import reverse
from spirograd.autodiff.saved_values import save_loads
from spirograd.autodiff.unread_adstacks import clean
from spirograd.base.caps import Capabilities
from spirograd.base.errors import SpirogradUnsupportedError
from spirograd.base.options import CompileOptions
from spirograd.base.sizes.size_nodes import Add, Arg, Max, Mul, Sub
from spirograd.ir import ops
from spirograd.ir.nodes import AdstackRef, ArrayRef, FieldRef, TempRef, ref_of
from spirograd.ir.spec import verify
from spirograd.ir.text import parse
from spirograd.transforms.pass_context import PassContext

CTX = PassContext(Capabilities("vulkan"), CompileOptions())
COUNT = 75


def _traced(kernel, args, tree, skip=()):
    """The outcome, and what was put into memory, in order."""
    trace = []

    def on_op(op, values):
        if op.code.effect in ("write", "atomic") and ref_of(op) not in skip:
            trace.append((ref_of(op), [values[a] for a in op.args]))

    return run(kernel, args, {0: tree}, on_op=on_op), trace


def _same(a, b, seed):
    assert len(a) == len(b), seed
    for (ref, values), (other, others) in zip(a, b):
        assert ref == other, seed
        np.testing.assert_array_equal(values, others, err_msg=f"seed {seed}")


def _empty(saved, kernel, seed):
    """Buffers of the sizes that the counting kernel gives, or large ones where it cannot tell; and whether it could."""
    counting = saved.counting
    sizes = None
    if counting is not None and not any(op.code is ops.load and isinstance(op.attr, (ArrayRef, FieldRef)) for op in counting.walk()):
        args, tree = memory_arguments(seed)
        before = [np.copy(a) for a in (*args, tree)]
        sizes = run(counting, args, {0: tree}).returns
        np.testing.assert_equal([*args, tree], before)
    sizes_of = [(3, 20000)] * len(saved.buffers) if sizes is None else list(zip(sizes[::2], sizes[1::2]))
    return [np.full(size, 77, buffer.ref.dtype.np) for size, buffer in zip(sizes_of, saved.buffers)], sizes is not None


def _needed(kernel):
    used = {a for op in kernel.walk() for a in op.args}
    for op in kernel.walk():
        ref = ref_of(op)
        if isinstance(ref, (ArrayRef, FieldRef)) and (op.code is ops.load or (op.code is ops.atomic and op in used)):
            yield op


@pytest.mark.parametrize("first", [0, *[pytest.param(k * COUNT, marks=pytest.mark.long) for k in (1, 2, 3)]])
def test_random_kernels_replay_from_any_memory(first):
    compared = counted = 0
    for seed in range(first, first + COUNT):
        kernel = memory_kernel(seed)
        loads = list(_needed(kernel))
        try:
            saved = save_loads(kernel, loads, CTX)
        except SpirogradUnsupportedError:
            continue
        for k in (saved.saving, saved.replaying, *([saved.counting] if saved.counting else [])):
            verify(k, "kernel")
        args, tree = memory_arguments(seed)
        done, trace = _traced(kernel, args, tree)
        if done.fault is not None:
            continue
        buffers, known = _empty(saved, kernel, seed)
        counted += known
        refs = {buffer.ref for buffer in saved.buffers}
        new_args, new_tree = memory_arguments(seed)
        now, same = _traced(saved.saving, [*new_args, *buffers], new_tree, refs)
        assert now.fault is None, (seed, now.fault)
        _same(trace, same, seed)
        np.testing.assert_equal([*new_args, new_tree], [*args, tree])
        garbage, junk = memory_arguments(seed + 1000)
        garbage[2] = args[2]
        kept = [np.copy(buffer) for buffer in buffers]
        again, replayed = _traced(saved.replaying, [*garbage, *buffers], junk, refs)
        assert again.fault is None, (seed, again.fault)
        _same(trace, replayed, seed)
        assert again.returns == done.returns or np.isnan(done.returns).any()
        np.testing.assert_equal(buffers, kept)
        compared += bool(loads)
    assert compared > COUNT // 4 and counted > COUNT // 10, (compared, counted)


def test_only_what_is_asked_for_is_logged():
    """Of random subsets: the saving kernel still does what the primal does."""
    for seed in range(COUNT // 2):
        kernel = memory_kernel(seed)
        r = random.Random(seed)
        loads = [op for op in _needed(kernel) if r.random() < 0.3]
        try:
            saved = save_loads(kernel, loads, CTX)
        except SpirogradUnsupportedError:
            continue
        assert sorted(map(id, loads)) == sorted(id(op) for buffer in saved.buffers for op in buffer.loads)
        args, tree = memory_arguments(seed)
        done, trace = _traced(kernel, args, tree)
        if done.fault is None:
            new_args, new_tree = memory_arguments(seed)
            buffers = [np.zeros((3, 20000), buffer.ref.dtype.np) for buffer in saved.buffers]
            _, same = _traced(saved.saving, [*new_args, *buffers], new_tree, {buffer.ref for buffer in saved.buffers})
            _same(trace, same, seed)


HEAD = """kernel "k"
arg ArrayArg("x", f32, 1)
arg ScalarArg("n", i32)
arg ScalarArg("m", i32)
ref x = ArrayRef("x", 0, f32, 1)
ref t = TempRef("t", f32)
return t
{
  %n = arg[1]() : i32
  %m = arg[2]() : i32
  %z = const[0]() : i32
  %h = const[0.5]() : f32
"""
SCAN = (
    HEAD
    + """
  %q = load[x](%z) : f32
  store[t](%q)
  for[LoopAttr(parallel=True)](%m, %n) : () { (%i: i32)
    for[LoopAttr()](%z, %m) : () { (%j: i32)
      %a = load[x](%j) : f32
      %b = load[x](%i) : f32
      %c = add(%a, %b) : f32
      store[x](%i, %c)
      yield()
    }
    yield()
  }
  yield()
}
"""
)


def test_sizes_and_derivatives():
    kernel = parse(SCAN)
    loads = [op for op in kernel.walk() if op.code is ops.load]
    saved = save_loads(kernel, loads, CTX)
    serial, rows = saved.buffers
    n, m = Arg(1), Arg(2)
    assert (serial.loop, serial.rows, serial.loads) == (None, 1, (loads[0],))
    trips = Max(0, Sub(m, 0))
    each = Mul(1, trips)
    assert (rows.rows, rows.capacity) == (Max(0, Sub(n, m)), Add(Add(0, each), each))
    x = np.arange(7, dtype=np.float32)
    assert run(saved.counting, [x, 6, 4]).returns == (1, 1, 2, 8)
    assert not any(op.code is ops.load and not isinstance(op.attr, TempRef) for op in saved.counting.walk())
    a, b = np.zeros((1, 1), np.float32), np.zeros((2, 8), np.float32)
    run(saved.saving, [x, 6, 4, a, b])
    np.testing.assert_array_equal(b, [[0, 4, 1, 4, 2, 5, 3, 7], [0, 5, 1, 5, 2, 6, 3, 8]])
    # What takes the place of a load has its derivatives.
    recalls = [op for op in saved.replaying.walk() if op.code is ops.recall]
    assert [op.args[1].attr for op in recalls] == [load.attr for load in loads]
    assert [op.args[0].attr for op in recalls] == [serial.ref, rows.ref, rows.ref]


SWEEPS = """kernel "k"
arg ArrayArg("x", f64, 1)
arg ScalarArg("n", i32)
ref x = ArrayRef("x", 0, f64, 1)
{
  %n = arg[1]() : i32
  %z = const[0]() : i32
  %one = const[1]() : i32
  for[LoopAttr()](%z, %n) : () { (%i: i32)
    for[LoopAttr()](%z, %n) : () { (%j: i32)
      %p = add(%j, %one) : i32
      %a = load[x](%j) : f64
      %b = load[x](%p) : f64
      %c = mul(%a, %b) : f64
      %d = sin(%c) : f64
      store[x](%p, %d)
      yield()
    }
    yield()
  }
  yield()
}
"""


def test_gradients_from_logs_alone():
    """In-place sweeps: the gradient kernel reads no primal memory, keeps no adstacks, and agrees with finite differences."""
    kernel, n = parse(SWEEPS), 3
    _, conflicts = residuals(kernel, [op for op in kernel.walk() if op.code is ops.load])
    saved = save_loads(kernel, [c.load for c in conflicts], CTX)
    gradient = clean(reverse(saved.replaying, lambda r: replace(r, role="grad") if r.arg == 0 else None).kernel, CTX)
    verify(gradient, "kernel")
    assert not any(isinstance(ref_of(op), AdstackRef) for op in gradient.walk())
    start, weights = np.array([0.3, 1.2, -0.7, 0.9]), np.array([1.0, -2.0, 0.5, 3.0])

    def end(x):
        run(kernel, [x, n])
        return x @ weights

    x, buffer = start.copy(), np.zeros(run(saved.counting, [start, n]).returns)
    run(saved.saving, [x, n, buffer])
    adjoint = weights.copy()
    assert run(gradient, [np.full(4, np.nan), n, buffer], grads={(0, "grad"): adjoint}).fault is None
    steps = 1e-6 * np.eye(4)
    expected = [(end(start + step) - end(start - step)) / 2e-6 for step in steps]
    np.testing.assert_allclose(adjoint, expected, rtol=1e-7, atol=1e-9)


def test_conditions_have_entries_of_their_own():
    body = """
  while() : () {
    %a = load[x](%z) : f32
    %c = gt(%a, %h) : u1
    yield(%c)
  } {
    %b = load[x](%z) : f32
    %d = mul(%b, %h) : f32
    store[x](%z, %d)
    yield()
  }
  %e = load[x](%n) : f32
  store[t](%e)
  yield()
}
"""
    kernel = parse(HEAD + body)
    saved = save_loads(kernel, [op for op in kernel.walk() if op.code is ops.load], CTX)
    assert saved.buffers[0].capacity is None and saved.counting is not None
    x, buffer = np.array([3, 7], np.float32), np.zeros((1, 8), np.float32)
    assert run(saved.saving, [x, 1, 0, buffer]).returns == (7,)
    np.testing.assert_array_equal(buffer, [[3, 3, 1.5, 1.5, 0.75, 0.75, 0.375, 7]])
    x[:] = np.nan
    assert run(saved.replaying, [x, 1, 0, buffer]).returns == (7,)
    assert x[0] == 0.375


def test_a_loop_in_a_condition_is_refused():
    body = """
  while() : () {
    for[LoopAttr()](%z, %n) : () { (%j: i32)
      %a = load[x](%j) : f32
      store[x](%j, %a)
      yield()
    }
    %c = lt(%n, %z) : u1
    yield(%c)
  } {
    yield()
  }
  yield()
}
"""
    kernel = parse(HEAD + body)
    with pytest.raises(SpirogradUnsupportedError, match="condition of a `while`"):
        save_loads(kernel, [op for op in kernel.walk() if op.code is ops.load], CTX)
