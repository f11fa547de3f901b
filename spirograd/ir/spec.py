"""The rules of each level of the IR: a table for each, and the verifier that applies them."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import NoReturn

import numpy as np

from spirograd.base.artifact import FaultSite, PrintSite, Slot
from spirograd.base.dtypes import VOID, DType, Lanes, Type, Vec, i32, i64, like, scalar_of, u1, u32, u64
from spirograd.ir import ops
from spirograd.ir.argument_rules import ARGUMENT_RULES
from spirograd.ir.called_accesses import acting
from spirograd.ir.group_rules import in_group, letter, matrix, subgroup, subgroup_barrier, tile
from spirograd.ir.lane_rules import LANE_RULES
from spirograd.ir.nodes import (
    AdstackRef,
    ArrayArg,
    ArrayRef,
    BufferRef,
    ChunkAttr,
    FieldRef,
    Function,
    Kernel,
    Label,
    LoopAttr,
    MemoryCall,
    Op,
    Reduction,
    Ref,
    Region,
    SharedRef,
    TaskAttr,
    TempRef,
    callee_of,
    rank,
)  # fmt: skip
from spirograd.ir.ops import OpCode

# The levels in the order of the pipeline. "lowering": memory and arguments are those of the device, but not all operations are. "loops":
# device IR of the CPU, whose tasks are loops over chunks.
LEVELS = ("kernel", "lowering", "device", "loops")
_VECTORISE = ("", "no", "rest", "vectors")
_ROLES = ("primal", "grad", "dual", "grad_dual")
# "nsw": an address that never wraps; "wrap": wraps on purpose; "reassoc": a reduction, in any order; "exact": rounded as written;
# "f64": divided as numbers of that type.
_FLAGS: dict[OpCode, tuple[str, ...]] = {
    **dict.fromkeys((ops.add, ops.sub, ops.mul), ("nsw", "wrap", "reassoc", "exact")),
    **dict.fromkeys((ops.div, ops.fma), ("exact",)),
    **dict.fromkeys((ops.min_, ops.max_), ("reassoc", "exact")),
    **dict.fromkeys((ops.and_, ops.or_, ops.xor), ("reassoc",)),
    **dict.fromkeys((ops.idiv, ops.irem), ("f64",)),
}

_VALUES = (DType, Vec, Lanes)
_IN_FUNCTIONS = frozenset(("pure", "control", "structure", "read", "write", "atomic", "call", "label"))


class IRError(AssertionError):
    """A violation of a rule of the IR: a defect of the compiler, not of the user's program."""


class _Verifier:
    """A verifier, which walks a kernel with the set of visible values, and applies the rule of each operation."""

    def __init__(self, kernel: Kernel, level: str) -> None:
        self.kernel = kernel
        self.level = level
        self.rules = SPEC[level]
        self.visible: set[Op] = set()
        self.defined: set[Op] = set()
        self.recursive = kernel.recursive()
        self.functions = {f.name: f for f in kernel.functions if f.name in self.recursive}
        self.computing = self.functions.keys() - acting(kernel)  # The functions that `call` may name.
        self.returning = {f.body.ops[-1] for f in kernel.functions if f.body.ops}
        self.path: list[Op] = []

    def fail(self, op: Op, rule: str) -> NoReturn:
        inside = "".join([f" in {outer.code.name}" for outer in reversed(self.path)])
        where = f" ({op.loc})" if op.loc is not None else ""
        operands = ", ".join([str(a.type) for a in op.args])
        attr = "" if op.attr is None else f"[{op.attr!r}]"
        raise IRError(f"{self.kernel.name}, {self.level} IR: {op.code.name}{attr}({operands}) : {op.type}{inside}{where}: {rule}")

    def need(self, condition: bool, op: Op, rule: str) -> None:
        if not condition:
            self.fail(op, rule)

    def function(self, function: Function) -> None:
        """Check a function, which may call functions that were checked before."""
        self.region(function.body, None)
        effects = {op.code.effect for op in function.body.walk()} - {"pure", "control", "structure"}
        outside = ops.OUTSIDE & function.body.codes
        outer = all(isinstance(ref, (FieldRef, ArrayRef, BufferRef)) for _, ref in function.accesses)
        known = self.functions.get(function.name, function)
        effects -= {"check", "print"} if function.name in self.recursive else set()
        if not (effects <= _IN_FUNCTIONS and outside <= ops.ARGUMENTS and outer and known is function):
            raise IRError(f"{self.kernel.name}, {self.level} IR: {function.name!r} does what only kernels do, or has another's name")
        if not effects and not outside and function.body.results:
            self.computing.add(function.name)
        self.functions[function.name] = function

    def define(self, op: Op) -> None:
        if op in self.defined:
            self.fail(op, "is defined twice")
        self.defined.add(op)
        self.visible.add(op)

    def region(self, region: Region, owner: Op | None) -> None:
        """Check a region with everything inside. Values that it defines are visible only there."""
        outer = self.visible
        isolated = owner is not None and owner.code is ops.task
        self.visible = set() if isolated else set(outer)
        for p in region.params:
            self.need(p.code is ops.param and isinstance(p.type, _VALUES), p, "is no proper parameter of a region")
            self.define(p)
        last = region.ops[-1] if region.ops else None
        if last is None or last.code is not ops.yield_:
            raise IRError(f"{self.kernel.name}, {self.level} IR: a region of {owner or 'the kernel'} does not end with a yield")
        for op in region.ops:
            self.operation(op, op is last)
        self.visible = outer

    def operation(self, op: Op, is_last: bool) -> None:
        rule = self.rules.get(op.code)
        if rule is None:
            self.fail(op, f"is no operation of {self.level} IR")
        # The text of a message is built only if a rule is broken, because this runs for each operation after each pass.
        code, visible = op.code, self.visible
        if (code is ops.yield_) != is_last:
            self.fail(op, "a yield ends a region, and stands nowhere else")
        for a in op.args:
            if a not in visible:
                self.fail(op, f"its operand {a!r} is not visible here")
            if not (isinstance(a.type, _VALUES) or (isinstance(a.type, tuple) and code is ops.result)):
                self.fail(op, f"its operand {a!r} is no value")
        if code.arity is not None and len(op.args) != code.arity:
            self.fail(op, f"takes {code.arity} operands")
        if bool(op.regions) != (code.effect == "control"):
            self.fail(op, "control operations have regions, others have none")
        rule(self, op)
        self.path.append(op)
        for region in op.regions:
            self.region(region, op)
        self.path.pop()
        self.define(op)

    # Parts of rules

    def shape_of(self, op: Op, region: Region, params: tuple[Type, ...], results: tuple[Type, ...]) -> None:
        """Check that the region takes ``params`` and yields ``results``."""
        types = tuple([p.type for p in region.params])
        if types != params:
            self.fail(op, f"its region takes {types}, not {params}")
        self.need(bool(region.ops), op, "its region is empty")
        yielded = tuple([v.type for v in region.results])
        if yielded != results:
            self.fail(op, f"its region yields {yielded}, not {results}")

    def index(self, op: Op, value: Op) -> None:
        if value.type not in (i32, i64):
            self.fail(op, f"an index is i32 or i64, not {value.type}")


Rule = Callable[[_Verifier, Op], None]


# --- operations on values ------------------------------------------------------------------------------------------------


def _flags(v: _Verifier, op: Op) -> None:
    if op.attr is None:
        return
    v.need(op.attr in _FLAGS.get(op.code, ()) and isinstance(op.type, (DType, Lanes)), op, "has an attribute that it does not take")
    t = scalar_of(op.type)
    v.need(t.is_int or op.attr not in ("nsw", "wrap"), op, f'"{op.attr}" is for integers')
    v.need(t.is_float or op.attr != "exact", op, '"exact" is for floats')


def _operands(v: _Verifier, op: Op) -> Type:
    """Check that the operands have one type of the operation's domain, scalars or lanes of them, and return that type."""
    first = op.args[0].type
    if not isinstance(first, (DType, Lanes)):
        v.fail(op, "takes scalars")
    for a in op.args:
        v.need(a.type is first or a.type == first, op, "its operands have different types")
    if letter(scalar_of(first)) not in op.code.domain:
        v.fail(op, f"does not take {first}")
    _flags(v, op)
    return first


def _same(v: _Verifier, op: Op) -> None:
    v.need(op.type == _operands(v, op), op, "its result has the type of its operands")


def _compare(v: _Verifier, op: Op) -> None:
    v.need(op.type == like(_operands(v, op), u1), op, "its result is u1")


def _const(v: _Verifier, op: Op) -> None:
    t, value = op.type, op.attr
    if not isinstance(t, DType):
        v.fail(op, "is a scalar")
    if t is u1:
        v.need(isinstance(value, bool), op, "u1 takes True or False")
    elif t.is_float:
        v.need(isinstance(value, float), op, "a float constant is a Python float")
        with np.errstate(all="ignore"):
            v.need(math.isnan(value) or float(t.np.type(value)) == value, op, "is not a value of its type: round it")
    else:
        v.need(isinstance(value, int) and not isinstance(value, bool), op, "an integer constant is a Python int")
        v.need(t.min <= value <= t.max, op, "is out of the range of its type")


def _result(v: _Verifier, op: Op) -> None:
    types = op.args[0].type
    several = op.args[0].code.effect == "control" or op.args[0].code in (ops.call, ops.call_memory)
    v.need(several and isinstance(types, tuple), op, "takes the results of a control operation or call")
    assert isinstance(types, tuple)
    v.need(isinstance(op.attr, int) and 0 <= op.attr < len(types), op, "there is no such result")
    if op.type != types[op.attr]:
        v.fail(op, f"the result has type {types[op.attr]}")


def _select(v: _Verifier, op: Op) -> None:
    condition, a, b = op.args
    v.need(condition.type == like(op.type, u1), op, "the condition is u1")
    v.need(a.type == b.type == op.type, op, "both choices and the result have one type")
    v.need(op.attr in (None, "guard"), op, 'its attribute is None or "guard"')


def _cast(v: _Verifier, op: Op) -> None:
    source = op.args[0].type
    v.need(all(isinstance(t, (DType, Lanes)) for t in (source, op.type)), op, "converts scalars")
    v.need(op.type == like(source, scalar_of(op.type)), op, "converts each lane")
    _plain(v, op)


def _bitcast(v: _Verifier, op: Op) -> None:
    _cast(v, op)
    a, b = scalar_of(op.args[0].type), scalar_of(op.type)
    v.need(a is not u1 and b is not u1 and a.bits == b.bits, op, "both types have the same width, and neither is u1")


def _plain(v: _Verifier, op: Op) -> None:
    v.need(op.attr is None, op, "takes no attribute")


def _vec(v: _Verifier, op: Op) -> None:
    v.need(bool(op.args) and isinstance(op.args[0].type, DType), op, "takes at least one scalar")
    elem = op.args[0].type
    assert isinstance(elem, DType)
    v.need(all(a.type is elem for a in op.args), op, "its elements have different types")
    v.need(op.type == Vec(len(op.args), elem), op, f"its type is {Vec(len(op.args), elem)}")
    _plain(v, op)


def _extract(v: _Verifier, op: Op) -> None:
    vector, index = op.args
    if not isinstance(vector.type, (Vec, Lanes)):
        v.fail(op, "takes a vector")
    v.need(isinstance(index.type, DType) and index.type.is_int, op, "its index is an integer")
    v.need(op.type is vector.type.elem, op, f"its result is {vector.type.elem}")
    _plain(v, op)


def _insert(v: _Verifier, op: Op) -> None:
    vector, index, value = op.args
    if not isinstance(vector.type, Vec):
        v.fail(op, "takes a vector")
    v.need(isinstance(index.type, DType) and index.type.is_int, op, "its index is an integer")
    v.need(value.type is vector.type.elem, op, f"the new element is {vector.type.elem}")
    v.need(op.type == vector.type, op, "its result has the type of the vector")
    _plain(v, op)


def _call(v: _Verifier, op: Op) -> None:
    function = v.functions.get(callee_of(op) or "")
    if function is None:
        v.fail(op, "the kernel has no such function, or it stands further down")
    v.need(op.code is ops.call_memory or function.name in v.computing, op, "the function does more than compute")
    params, t = tuple([p.type for p in function.body.params]), op.type
    if isinstance(t, Lanes):  # A call for each lane.
        v.need(op.code is ops.call and not isinstance(function.result, tuple), op, "a function of lanes computes one value")
        params, result = tuple([like(t, scalar_of(p)) for p in params]), like(t, scalar_of(function.result))
    else:
        result = function.result
    v.need(tuple([a.type for a in op.args]) == params, op, f"the function takes {params}")
    v.need(t == result, op, f"the function gives {result}")


def _call_memory(v: _Verifier, op: Op) -> None:
    v.need(isinstance(op.attr, MemoryCall), op, "takes a MemoryCall")
    _call(v, op)
    changed, touched = _touched(op.attr.accesses)
    own_changed, own_touched = _touched(v.functions[op.attr.name].accesses)
    v.need(own_changed <= changed and own_touched <= touched, op, "the function accesses more than its calls say")


def _touched(accesses: Sequence[tuple[str, Ref]]) -> tuple[set[Ref | Slot], set[Ref | Slot]]:
    """Return the memory that is changed, and all memory that is accessed. In device IR these are the buffers, because lowering accesses
    elements as other types."""
    memory = [(effect, ref.slot if isinstance(ref, BufferRef) else ref) for effect, ref in accesses]
    return {place for effect, place in memory if effect != "read"}, {place for _, place in memory}


# --- control -------------------------------------------------------------------------------------------------------------


def _yield(v: _Verifier, op: Op) -> None:
    v.need(op.type is VOID, op, "is void")
    v.need(bool(v.path) or not op.args or op in v.returning, op, "a kernel yields nothing")


def _if(v: _Verifier, op: Op) -> None:
    v.need(op.args[0].type is u1, op, "the condition is u1")
    v.need(isinstance(op.type, tuple) and len(op.regions) == 2, op, "has two regions and a tuple of results")
    assert isinstance(op.type, tuple)
    v.need(op.attr in (None, ops.UNIFORM), op, "its attribute is None or ops.UNIFORM")
    _uniform(v, op, op.attr is not None)
    for region in op.regions:
        v.shape_of(op, region, (), op.type)


def _uniform(v: _Verifier, op: Op, uniform: bool) -> None:
    """Check that control operations that a workgroup runs together stand in a grouped task."""
    grouped = (outer.attr.grouped for outer in v.path if outer.code is ops.task)
    v.need(not uniform or (v.level != "kernel" and any(grouped)), op, "is uniform in a workgroup only in lowered grouped tasks")


def _for(v: _Verifier, op: Op) -> None:
    v.need(len(op.args) >= 2 and len(op.regions) == 1 and isinstance(op.attr, LoopAttr), op, "takes begin, end, a region and a LoopAttr")
    begin, end = op.args[:2]
    v.need(begin.type in (i32, i64, u32, u64), op, f"it counts in i32, i64, u32 or u64, not {begin.type}")
    v.need(begin.type is end.type, op, "begin and end have one type")
    carried = tuple([a.type for a in op.args[2:]])
    v.need(op.type == carried, op, f"its results are {carried}")
    v.shape_of(op, op.regions[0], (begin.type, *carried), carried)
    if op.attr.parallel:
        inside = any(outer.code is ops.task for outer in v.path)
        v.need(v.level == "kernel" and not (inside or carried), op, "a parallel loop stands in a kernel before offload, without results")
    v.need(not op.attr.grouped or (op.attr.parallel and op.attr.group_size > 0), op, "a grouped loop is parallel, in groups of some size")
    _uniform(v, op, op.attr.uniform)
    if op.attr.over_chunk or op.attr.vectorise not in ("", "rest") or op.attr.row:
        known = v.level == "loops" and op.attr.vectorise in _VECTORISE and op.attr.row >= -1
        v.need(known, op, 'loops over chunks are of the level "loops"')
    if op.attr.over_chunk or op.attr.reductions:
        v.need(tuple([r.dtype for r in op.attr.reductions]) == carried, op, "it carries one accumulator for each of its reductions")


def _outlined(v: _Verifier, op: Op) -> None:
    scalars = isinstance(op.type, tuple) and all(isinstance(t, DType) for t in op.type)
    v.need(scalars and len(op.regions) == 1 and isinstance(op.attr, str), op, "has one region, a name, and a tuple of scalars as results")
    assert isinstance(op.type, tuple)
    v.shape_of(op, op.regions[0], (), op.type)


def _while(v: _Verifier, op: Op) -> None:
    carried = tuple([a.type for a in op.args])
    v.need(op.type == carried and len(op.regions) == 2, op, f"has two regions, and results {carried}")
    v.need(op.attr in (None, ops.UNIFORM), op, "its attribute is None or ops.UNIFORM")
    _uniform(v, op, op.attr is not None)
    # Where loops are planned, the condition may yield more values, which the body takes after the loop-carried values.
    more = tuple([r.type for r in op.regions[0].results[1:]]) if v.level == "loops" and op.regions[0].ops else ()
    v.shape_of(op, op.regions[0], carried, (u1, *more))
    v.shape_of(op, op.regions[1], (*carried, *more), carried)


def _task(v: _Verifier, op: Op) -> None:
    v.need(not v.path, op, "stands directly in the body of a kernel")
    v.need(op.type is VOID or op.type == (), op, "has no results")
    attr = op.attr
    if not isinstance(attr, TaskAttr):
        v.fail(op, "takes a TaskAttr")
    for reduction in attr.reductions:
        fits = isinstance(reduction, Reduction) and reduction.kind in ops.COMBINE
        v.need(fits and letter(reduction.dtype) in ops.COMBINE[reduction.kind].domain, op, f"{reduction} is no reduction")
    if attr.kind == "serial":
        v.need(len(op.regions) == 1 and not attr.reductions, op, "a serial task has one region and no reductions")
        v.shape_of(op, op.regions[0], (), ())
        return
    if attr.kind == "invocations":
        v.need(v.level != "kernel", op, "has been lowered before device IR")
        v.need(len(op.regions) == 1 and not attr.reductions and attr.group_size > 0, op, "has one region and the size of its workgroups")
        v.shape_of(op, op.regions[0], (), ())
        return
    if attr.kind == "chunks":
        _chunks(v, op, attr)
        return
    v.need(attr.kind == "range_for" and v.level != "loops", op, 'a task is "serial" or "range_for", or "invocations", or "chunks"')
    v.need(len(op.regions) == 3 + len(attr.copies), op, "a range_for task has regions bounds, body and finish, and one for each copy")
    bounds, body, finish, *flushes = op.regions
    index = body.params[0].type if body.params else VOID
    v.need(index in (i32, i64, u32, u64), op, f"the index of a task has 32 or 64 bits, not {index}")
    accumulators = tuple([r.dtype for r in attr.reductions])
    slots = (i32,) if len(bounds.results) == 3 else ()
    v.shape_of(op, bounds, (), (index, index, *slots))
    v.shape_of(op, body, (index, *accumulators), accumulators)
    v.shape_of(op, finish, accumulators, ())
    for copy, flush in zip(attr.copies, flushes):
        v.shape_of(op, flush, (i32, copy.shared.dtype), ())


def _chunks(v: _Verifier, op: Op, attr: TaskAttr) -> None:
    v.need(v.level == "loops" and isinstance(attr.chunks, ChunkAttr), op, 'is of the level "loops", with a ChunkAttr')
    v.need(len(op.regions) in (2, 3), op, "has bounds, a body, and maybe an uncontended body")
    bounds, *bodies = op.regions
    types = tuple([value.type for value in bounds.results])
    v.need(types in [(t, t, *slots) for t in (i32, i64, u32, u64) for slots in ((), (i32,))], op, f"its bounds are integers, not {types}")
    v.shape_of(op, bounds, (), types)
    for body in bodies:
        v.shape_of(op, body, (i64, i64), ())


# --- memory --------------------------------------------------------------------------------------------------------------


def _reference(v: _Verifier, op: Op, ref: object) -> Ref:
    """Check that a reference is well-formed at this level, and return it."""
    legal = (FieldRef, ArrayRef, TempRef, AdstackRef, SharedRef) if v.level == "kernel" else (BufferRef, SharedRef)
    if not isinstance(ref, legal):
        v.fail(op, f"{v.level} IR does not access memory through {type(ref).__name__}")
    v.need(isinstance(ref.dtype, DType), op, "memory holds scalars")
    if isinstance(ref, BufferRef):
        v.need(ref.slot.is_buffer, op, "its slot is no buffer")
        v.need(ref.dtype is not u1, op, "memory holds no u1 in device IR")
    elif isinstance(ref, SharedRef):
        v.need(op.code in (ops.load, ops.store, ops.atomic), op, "shared memory is loaded, stored and updated")
        v.need(ref.dtype is not u1 and ref.length > 0, op, "shared memory holds at least one element, and no u1")
    elif isinstance(ref, FieldRef):
        _field(v, op, ref)
    elif isinstance(ref, ArrayRef):
        _array(v, op, ref)
    return ref


def _field(v: _Verifier, op: Op, ref: FieldRef) -> None:
    layout, size = ref.layout, ref.dtype.size
    v.need(ref.role in _ROLES, op, f"{ref.role} is no role")
    v.need(len(layout.components) == math.prod(ref.element_shape), op, "the layout has one offset per component")
    v.need(len(layout.origin) in (0, len(ref.shape)), op, "the origin has one number per axis")
    for term in layout.terms:
        if not (0 <= term.axis < len(ref.shape) and term.div > 0 and term.mod >= 0):
            v.fail(op, f"{term} does not fit the field")
        v.need(term.stride % size == 0, op, "strides are multiples of the size of an element")
    v.need(all(c % size == 0 for c in layout.components), op, "offsets are multiples of the size of an element")


def _array(v: _Verifier, op: Op, ref: ArrayRef) -> None:
    argument = v.kernel.args[ref.arg] if 0 <= ref.arg < len(v.kernel.args) else None
    if not isinstance(argument, ArrayArg):
        v.fail(op, f"argument {ref.arg} is no array")
    v.need(ref.role in _ROLES, op, f"{ref.role} is no role")
    declared = (argument.dtype, argument.ndim, argument.element_shape, argument.wide, argument.layout)
    if (ref.dtype, ref.ndim, ref.element_shape, ref.wide, ref.layout) != declared:
        v.fail(op, f"its reference does not fit the argument: {argument}")


def _indices(v: _Verifier, op: Op, ref: Ref, others: int) -> tuple[Op, ...]:
    """Check the indices. Return the ``others`` operands that follow them."""
    n = rank(ref)
    v.need(len(op.args) == n + others, op, f"takes {n} indices and {others} values")
    for index in op.args[:n]:
        v.index(op, index)
    return op.args[n:]


def _load(v: _Verifier, op: Op) -> None:
    ref = _reference(v, op, op.attr)
    if v.level == "loops" and op.args and isinstance(op.args[0].type, Lanes):  # Indices may be lanes.
        v.need(len(op.args) == 1 and op.args[0].type.elem in (i32, i64), op, "an index is i32 or i64")
        v.need(op.type == like(op.args[0].type, ref.dtype), op, f"the memory holds {ref.dtype}")
        return
    _indices(v, op, ref, 0)
    v.need(op.type is ref.dtype, op, f"the memory holds {ref.dtype}")


def _store(v: _Verifier, op: Op) -> None:
    ref = _reference(v, op, op.attr)
    (value,) = _indices(v, op, ref, 1)
    v.need(value.type is ref.dtype, op, f"the memory holds {ref.dtype}")
    v.need(op.type is VOID, op, "is void")


def _atomic(v: _Verifier, op: Op) -> None:
    v.need(isinstance(op.attr, tuple) and len(op.attr) == 2 and op.attr[0] in ops.ATOMIC_KINDS, op, "takes (kind, reference)")
    ref = _reference(v, op, op.attr[1])
    (value,) = _indices(v, op, ref, 1)
    v.need(value.type is ref.dtype and op.type is ref.dtype, op, f"the memory holds {ref.dtype}")
    kind = op.attr[0]
    v.need(kind == "exchange" or letter(ref.dtype) in ops.COMBINE[kind].domain, op, f"{kind} does not take {ref.dtype}")


def _cas(v: _Verifier, op: Op) -> None:
    ref = _reference(v, op, op.attr)
    values = _indices(v, op, ref, 2)
    v.need(all(x.type is ref.dtype for x in values) and op.type is ref.dtype, op, f"the memory holds {ref.dtype}")
    if v.level in ("device", "loops"):
        v.need(ref.dtype.is_int and ref.dtype.bits >= 32, op, "device IR has cas on 32-bit and 64-bit integers")


def _claim(v: _Verifier, op: Op) -> None:
    ref = _reference(v, op, op.attr)
    _indices(v, op, ref, 0)
    v.need(ref.dtype is i32 and op.type is i32, op, "counts in i32")


def _stream(v: _Verifier, op: Op) -> None:
    pair = op.attr if isinstance(op.attr, tuple) and len(op.attr) == 2 else (None, None)
    v.need(isinstance(pair[0], SharedRef) and isinstance(pair[1], BufferRef), op, "takes the memory of a chunk and a buffer")
    v.need(pair[0].dtype is pair[1].dtype and op.type is VOID, op, "both hold one type, and it is void")  # type: ignore[union-attr]
    v.need(op.args[0].type is op.args[1].type and op.args[0].type in (i32, i64), op, "index and count are i32 or i64")


def _barrier(v: _Verifier, op: Op) -> None:
    v.need(op.type is VOID, op, "is void")
    _plain(v, op)
    in_group(v, op)


# --- diagnostics ---------------------------------------------------------------------------------------------------------


def _report(v: _Verifier, op: Op) -> None:
    checks, site = op.code is ops.check, FaultSite if op.code is ops.check else PrintSite
    v.need(isinstance(op.attr, site) and op.type is VOID, op, f"takes a {site.__name__}, and is void")
    v.need(not checks or (bool(op.args) and op.args[0].type is u1), op, "the condition is u1")
    v.need(tuple([a.type for a in op.args[checks:]]) == op.attr.dtypes, op, f"the site has operands {op.attr.dtypes}")


def _label(v: _Verifier, op: Op) -> None:
    integers = all(isinstance(a.type, DType) and a.type.is_int for a in op.args)
    v.need(isinstance(op.attr, Label) and integers and op.type is VOID, op, "takes a Label and integers, and is void")


# --- the tables ----------------------------------------------------------------------------------------------------------

_SPECIAL: dict[OpCode, Rule] = {
    ops.const: _const, ops.result: _result, ops.yield_: _yield, ops.if_: _if, ops.for_: _for, ops.while_: _while, ops.outlined: _outlined,
    ops.task: _task,
    ops.call: _call, ops.select: _select, ops.cast: _cast, ops.bitcast: _bitcast, ops.vec: _vec, ops.extract: _extract, ops.insert: _insert,
    ops.load: _load, ops.store: _store,
    ops.atomic: _atomic, ops.cas: _cas, ops.claim: _claim, ops.barrier: _barrier, ops.check: _report, ops.print_: _report,
    ops.label: _label, ops.stream: _stream, ops.workgroup_barrier: _barrier, ops.call_memory: _call_memory,
    **dict.fromkeys((ops.subgroup_reduce, ops.subgroup_scan, ops.subgroup_shuffle, ops.subgroup_read, ops.subgroup_ballot), subgroup),
    **dict.fromkeys((ops.tile_entries, ops.tile_rows, ops.tile_product), tile),
    **dict.fromkeys((ops.matrix_load, ops.matrix_store, ops.matrix_product), matrix),
    ops.subgroup_barrier: subgroup_barrier, **LANE_RULES, **ARGUMENT_RULES,
}  # fmt: skip
_BY_RULE: dict[str, Rule] = {"same": _same, "compare": _compare}


def _table(level: str) -> dict[OpCode, Rule]:
    """Return the rule of every operation that is legal inside regions at ``level`` (parameters stand outside of them)."""
    legal = [code for code in ops.ALL if level in code.levels and code is not ops.param]
    return {code: _SPECIAL[code] if code.rule == "special" else _BY_RULE[code.rule] for code in legal}


SPEC: dict[str, dict[OpCode, Rule]] = {level: _table(level) for level in LEVELS}


def _check_kernel(kernel: Kernel, level: str) -> None:
    """Check the kernel as a whole: tasks and other code do not mix, and return values are scalars."""
    if kernel.body.params:
        raise IRError(f"{kernel.name}: the body of a kernel has no parameters")
    body = kernel.body.ops[:-1]
    tasks = [op for op in body if op.code is ops.task]
    if (tasks or level != "kernel") and len(tasks) != len(body):
        stray = next(op for op in body if op.code is not ops.task)
        raise IRError(f"{kernel.name}, {level} IR: {stray!r} stands beside tasks: a kernel with tasks holds nothing else")
    for ref in kernel.returns:
        if not isinstance(ref, TempRef) or ref.shape:
            raise IRError(f"{kernel.name}: a return value is a TempRef of a scalar, not {ref!r}")


def verify(kernel: Kernel, level: str) -> None:
    """Check that ``kernel`` is legal IR of ``level``, one of `LEVELS`. Raise `IRError`, which names operation and rule."""
    if level not in LEVELS:
        raise ValueError(f"no such level of IR: {level!r}; there are {', '.join(LEVELS)}")
    verifier = _Verifier(kernel, level)
    for function in kernel.functions:
        verifier.function(function)
    verifier.region(kernel.body, None)
    _check_kernel(kernel, level)
