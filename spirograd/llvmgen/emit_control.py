"""Emitters of control flow: `if`, `for`, `while` as basic blocks with phis; calls and their results."""

from __future__ import annotations

from collections.abc import Sequence

from spirograd.base.dtypes import DType, Lanes, Type
from spirograd.ir.chunk_loops import note_ranges
from spirograd.ir.nodes import LoopAttr, Op, Region
from spirograd.llvmgen.function import FunctionEmitter, Phis
from spirograd.llvmgen.local_arrays import copied_array, copy_text, new_array
from spirograd.llvmgen.module import is_array, returned_type, type_name


def emit_result(e: FunctionEmitter, op: Op) -> None:
    e.env[op] = e.env[op.args[0]][op.attr]


def emit_call(e: FunctionEmitter, op: Op) -> None:
    callee, attributes = e.module.callee(op.attr, op.type.n if isinstance(op.type, Lanes) else 1)
    _call(e, op, callee, [e.typed(a) for a in op.args], attributes)


def emit_call_memory(e: FunctionEmitter, op: Op) -> None:
    """Emit a call. The function takes the entries of the argument block that it uses as further arguments: each caller loads them once."""
    callee, entries = e.module.memory_callee(op.attr.name)
    _call(e, op, callee, [*[e.typed(a) for a in op.args], *[f"{entry.type} {e.slot_value(*entry)}" for entry in entries]])


def _call(e: FunctionEmitter, op: Op, callee: str, operands: Sequence[str], attributes: str = "") -> None:
    args = ", ".join(operands)
    if op.type == ():
        e.line(f"call void {callee}({args})")
        return
    if not isinstance(op.type, tuple):
        e.set(op, f"call {type_name(op.type)} {callee}({args}){attributes}")
        return
    returned = returned_type(op.type)
    returned_value = e.value(f"call {returned} {callee}({args})")
    e.env[op] = [e.value(f"extractvalue {returned} {returned_value}, {k}") for k in range(len(op.type))]


# --- branches ---


def emit_if(e: FunctionEmitter, op: Op) -> None:
    assert isinstance(op.type, tuple)
    e.env[op] = branches(e, op, op.type)


def branches(e: FunctionEmitter, op: Op, types: Sequence[Type]) -> list[str]:
    """Emit the `if` ``op``, whose results have these ``types``. Return the results."""
    then, orelse, done = e.new_labels("then", "else", "if.end")
    e.line(f"br i1 {e.env[op.args[0]]}, label %{then}, label %{orelse}")
    arms: list[tuple[str, list[str], int]] = []
    for label, region in zip((then, orelse), op.regions):
        e.start(label)
        values = e.region(region)
        arms.append((e.label, values, len(e.lines)))
        e.lines.append("")  # Copies of arrays are inserted here later, because their targets are known only after both arms.
        e.goto(done)
    e.start(done)
    (l0, v0, _), (l1, v1, _) = arms
    return [
        _merge_arrays(e, op, k, t, arms) if is_array(t) else e.value(f"phi {type_name(t)} [ {a}, %{l0} ], [ {b}, %{l1} ]")
        for k, (t, a, b) in enumerate(zip(types, v0, v1))
    ]


def _merge_arrays(e: FunctionEmitter, op: Op, number: int, t: Type, arms: Sequence[tuple[str, list[str], int]]) -> str:
    """Return the memory of result ``number`` of an `if`: the memory where both arms leave it, if that is free, else new memory."""
    places = [values[number] for _, values, _ in arms]
    ends = [region.ops[-1] for region in op.regions]
    if places[0] == places[1] and all(e.last_uses.is_last(end, end.args[number]) for end in ends):
        return places[0]
    target = new_array(e, t)
    for place, (_, _, hole) in zip(places, arms):
        e.lines[hole] += f"{copy_text(e, target, place, t)}\n"
    return target


# --- loops ---


# The transformations that LLVM omits, for each value of `LoopAttr.vectorise`.
_PROPERTIES: dict[str, tuple[str, ...]] = {
    "": (),
    "no": ('vectorize.enable", i1 false',),
    "rest": ('vectorize.enable", i1 false', 'unroll.disable"', 'disable_nonforced"'),
    "vectors": (),
}


def emit_for(e: FunctionEmitter, op: Op, suffix: str = "") -> None:
    """Emit a `for`. ``suffix``: as in `counted_loop`."""
    assert isinstance(op.type, tuple)
    begin, end = (e.env[a] for a in op.args[:2])
    initial = _initial(e, op, op.args[2:])
    note_ranges(e.ranges, op)
    outer, (accesses, branch) = e.memory_suffix, _loop_metadata(e, op.attr)
    if op.attr.over_chunk:
        e.memory_suffix = accesses
    e.env[op] = counted_loop(e, op.args[0].type, begin, end, op.type, initial, op.regions[0], suffix or branch)
    e.memory_suffix = outer


def _loop_metadata(e: FunctionEmitter, attr: LoopAttr) -> tuple[str, str]:
    """Return the metadata of accesses in a loop, and of its branch back."""
    if not attr.independent and not _PROPERTIES[attr.vectorise]:
        return "", ""
    node, accesses, properties = e.module.node, "", []
    if attr.independent:
        group = node("distinct !{}")
        accesses = f", !llvm.access.group {group}"
        properties += [node(f'!{{!"llvm.loop.parallel_accesses", {group}}}')]
    properties += [node(f'!{{!"llvm.loop.{text}}}') for text in _PROPERTIES[attr.vectorise]]
    return accesses, f", !llvm.loop {node('distinct !{' + ', '.join(['{self}', *properties]) + '}')}"


def _initial(e: FunctionEmitter, op: Op, args: Sequence[Op]) -> list[str]:
    """Return the initial values of a loop. The loop overwrites arrays, which are copied unless this is their last use."""
    kept = [not is_array(a.type) or e.last_uses.is_last(op, a) for a in args]
    return [e.env[a] if keep else copied_array(e, e.env[a], a.type) for a, keep in zip(args, kept)]


def _next(e: FunctionEmitter, types: Sequence[Type], places: Sequence[str], values: Sequence[str]) -> None:
    """Move the arrays that an iteration yields to their memory, through other memory if one array is the source of another."""
    moves = [(p, v, t) for t, p, v in zip(types, places, values) if is_array(t) and p != v]
    targets = {p for p, _, _ in moves}
    moves = [(p, copied_array(e, v, t) if v in targets else v, t) for p, v, t in moves]
    e.lines += [copy_text(e, p, v, t) for p, v, t in moves]


def counted_loop(
    e: FunctionEmitter,
    index: Type,
    begin: str,
    end: str,
    types: Sequence[Type],
    initial: Sequence[str],
    body: Region,
    suffix: str = "",
    stride: str = "1",
) -> list[str]:
    """Emit a loop in rotated form (tested before, then after each iteration). Return the final loop-carried values.

    ``suffix`` is the metadata of the branch back; ``stride`` divides the distance from ``begin`` to ``end``.
    Loop-carried arrays stay where ``initial`` has them.
    """
    assert isinstance(index, DType)
    it = type_name(index)
    less, step = ("slt", "add nsw") if index.is_signed else ("ult", "add nuw")
    loop, done = e.new_labels("for", "for.end")
    some = e.value(f"icmp {less} {it} {begin}, {end}")
    before = e.label
    e.line(f"br i1 {some}, label %{loop}, label %{done}")
    e.start(loop)
    scalars = [k for k, t in enumerate(types) if not is_array(t)]
    phis = Phis(e, [it, *[type_name(types[k]) for k in scalars]])
    counter, *names = phis.names
    carried = _with(initial, scalars, names)
    e.bind(body.params, [counter, *carried])
    loc = e.loc
    values = e.region(body)
    e.at(loc)
    _next(e, types, carried, values)
    following = e.value(f"{step} {it} {counter}, {stride}")
    again = e.value(f"icmp {less} {it} {following}, {end}")
    back = e.label
    e.line(f"br i1 {again}, label %{loop}, label %{done}{suffix}")
    phis.fill(([begin, *[initial[k] for k in scalars]], before), ([following, *[values[k] for k in scalars]], back))
    e.start(done)
    return [
        a if is_array(t) else e.value(f"phi {type_name(t)} [ {a}, %{before} ], [ {b}, %{back} ]") for t, a, b in zip(types, initial, values)
    ]


def _with(values: Sequence[str], positions: Sequence[int], replaced: Sequence[str]) -> list[str]:
    """Return ``values`` with those at ``positions`` replaced."""
    result = list(values)
    for k, value in zip(positions, replaced):
        result[k] = value
    return result


def emit_while(e: FunctionEmitter, op: Op) -> None:
    assert isinstance(op.type, tuple)
    head, body, done = e.new_labels("while", "do", "done")
    initial = _initial(e, op, op.args)
    before = e.label
    e.goto(head)
    e.start(head)
    scalars = [k for k, t in enumerate(op.type) if not is_array(t)]
    phis = Phis(e, [type_name(op.type[k]) for k in scalars])
    carried = _with(initial, scalars, phis.names)
    condition, step = op.regions
    e.bind(condition.params, carried)
    test, *more = e.region(condition)
    e.line(f"br i1 {test}, label %{body}, label %{done}")
    e.start(body)
    e.bind(step.params, [*carried, *more])
    values = e.region(step)
    _next(e, op.type, carried, values)
    back = e.label
    e.goto(head)
    phis.fill(([initial[k] for k in scalars], before), ([values[k] for k in scalars], back))
    e.start(done)
    e.env[op] = carried
