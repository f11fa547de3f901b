"""Emitters of operations on lanes: LLVM vectors with a value for each of several iterations, masks, and memory accesses of all lanes."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from spirograd.base.dtypes import DType, Lanes, Type, i8, scalar_of, u1
from spirograd.ir.nodes import Op
from spirograd.llvmgen.function import FunctionEmitter, Phis, overload
from spirograd.llvmgen.interleaved_loads import interleaved_load
from spirograd.llvmgen.module import literal, splat, type_name

# A register of AVX-512, whose instructions compress elements of 32 and 64 bits.
_REGISTER_BYTES, _LEAST_COMPRESSED = 64, 4
_NOT_UNROLLED = '!{!"llvm.loop.unroll.disable"}'


def _lanes(t: Type) -> Lanes:
    assert isinstance(t, Lanes), t
    return t


def mask_type(n: int) -> str:
    return type_name(Lanes(n, u1))


def emit_splat(e: FunctionEmitter, op: Op) -> None:
    t, text = _lanes(op.type), e.operand(op.args[0])
    if not text.startswith("%"):
        e.env[op] = splat(text, t)
        return
    first = e.value(f"insertelement {type_name(t)} poison, {type_name(t.elem)} {text}, i32 0")
    e.set(op, f"shufflevector {type_name(t)} {first}, {type_name(t)} poison, <{t.n} x i32> zeroinitializer")


def emit_lane_const(e: FunctionEmitter, op: Op) -> None:
    t = _lanes(op.type)
    if len(set(op.attr)) == 1:
        e.env[op] = literal(op.attr[0], t)
    else:
        e.env[op] = f"<{', '.join([f'{type_name(t.elem)} {literal(x, t.elem)}' for x in op.attr])}>"


def emit_lane_slots(e: FunctionEmitter, op: Op) -> None:
    """Use the parameter of tasks that holds the thread slots."""
    e.env[op] = "%lanes"


# --- masks ---


def emit_widen_mask(e: FunctionEmitter, op: Op) -> None:
    e.set(op, f"sext {e.typed(op.args[0])} to {type_name(op.type)}")


def emit_narrow_mask(e: FunctionEmitter, op: Op) -> None:
    e.set(op, f"icmp slt {e.typed(op.args[0])}, zeroinitializer")


def emit_any_lane(e: FunctionEmitter, op: Op) -> None:
    """Test the lower and the upper half together, so that one AVX2 instruction takes the signs."""
    t, mask = _lanes(op.args[0].type), e.typed(op.args[0])
    half = t.n // 2
    low, high = (
        e.value(f"shufflevector {mask}, {type_name(t)} poison, <{half} x i32> <{', '.join([f'i32 {k}' for k in part])}>")
        for part in (range(half), range(half, t.n))
    )
    either = e.value(f"or <{half} x i32> {low}, {high}")
    signs = e.value(f"icmp slt <{half} x i32> {either}, zeroinitializer")
    e.set(op, f"icmp ne i{half} {e.value(f'bitcast <{half} x i1> {signs} to i{half}')}, 0")


def emit_ballot(e: FunctionEmitter, op: Op) -> None:
    e.env[op] = _bits(e, op.args[0])


def _bits(e: FunctionEmitter, mask: Op) -> str:
    """Return a bit for each lane, as an i64."""
    n = _lanes(mask.type).n
    return e.value(f"zext i{n} {e.value(f'bitcast {e.typed(mask)} to i{n}')} to i64")


def emit_lanes_of_bits(e: FunctionEmitter, op: Op) -> None:
    n = _lanes(op.type).n
    e.set(op, f"bitcast i{n} {e.value(f'trunc i64 {e.operand(op.args[0])} to i{n}')} to {type_name(op.type)}")


def emit_reduce(e: FunctionEmitter, op: Op) -> None:
    """Emit a reduction of integers, or a sum of floats."""
    t = _lanes(op.args[0].type)
    elem, vector = type_name(t.elem), e.typed(op.args[0])
    if t.elem.is_float:
        assert op.attr == "add", op
        callee = e.module.declare(f"llvm.vector.reduce.fadd.{overload(t)}", elem, f"{elem}, {type_name(t)}")
        e.set(op, f"call reassoc {elem} {callee}({elem} {literal(-0.0, t.elem)}, {vector})")
        return
    name = op.attr if op.attr not in ("min", "max") else f"{'s' if t.elem.is_signed else 'u'}{op.attr}"
    callee = e.module.declare(f"llvm.vector.reduce.{name}.{overload(t)}", elem, type_name(t))
    e.set(op, f"call {elem} {callee}({vector})")


# --- memory ---


def emit_gather(e: FunctionEmitter, op: Op) -> None:
    """Emit a `load` with an index for each lane."""
    t = _lanes(op.type)
    vector, addresses, masks = type_name(t), f"<{t.n} x {e.buffer_pointer}>", mask_type(t.n)
    pointers = e.pointer(op.attr, op.args[0])
    callee = e.module.declare(f"llvm.masked.gather.{overload(t)}.v{t.n}p0", vector, f"{addresses}, i32, {masks}, {vector}")
    e.set(op, f"call {vector} {callee}({addresses} {pointers}, i32 {t.elem.size}, {masks} splat (i1 true), {vector} poison)")


def emit_load_lanes(e: FunctionEmitter, op: Op) -> None:
    stride, ref = op.attr
    t, count = _lanes(op.type), max(len(op.args) // 2, 1)
    pointers, masks = [e.address(ref, first) for first in op.args[:count]], [e.operand(mask) for mask in op.args[count : 2 * count]]
    others = [e.operand(value) for value in op.args[2 * count :]]
    if masks and stride != 1:
        assert not others and t.elem.bits == 32, "every n-th element of 32 bits is loaded, and others get 0"
        e.env[op] = interleaved_load(e, t, stride, list(zip(pointers, masks)))
    elif masks:
        e.env[op] = _masked_load(e, t, pointers, masks, *others)
    elif stride == 1:
        e.set(op, f"load {type_name(t)}, {pointers[0]}, align {t.elem.size}")
    else:
        text = "poison"
        for k, place in enumerate(_places(e, t, pointers[0], stride)):
            one = e.value(f"load {type_name(t.elem)}, {place}, align {t.elem.size}")
            text = e.value(f"insertelement {type_name(t)} {text}, {type_name(t.elem)} {one}, i32 {k}")
        e.env[op] = text


def _places(e: FunctionEmitter, t: Lanes, pointer: str, stride: int) -> list[str]:
    """Return pointers to the elements of all lanes, typed."""
    return [f"ptr {e.value(f'getelementptr {type_name(t.elem)}, {pointer}, i64 {k * stride}')}" for k in range(t.n)]


def _masked_load(e: FunctionEmitter, t: Lanes, pointers: Sequence[str], masks: Sequence[str], values: str = "zeroinitializer") -> str:
    vector = type_name(t)
    callee = e.module.declare(f"llvm.masked.load.{overload(t)}.p0", vector, f"ptr, i32, {mask_type(t.n)}, {vector}")
    for pointer, mask in zip(pointers, masks):
        values = e.value(f"call {vector} {callee}({pointer}, i32 {t.elem.size}, {mask_type(t.n)} {mask}, {vector} {values})")
    return values


def emit_store_lanes(e: FunctionEmitter, op: Op) -> None:
    stride, ref = op.attr
    first, values, *masks = op.args
    t, pointer = _lanes(values.type), e.address(ref, first)
    if masks:
        assert stride == 1, "only neighbours are stored under masks"
        callee = e.module.declare(f"llvm.masked.store.{overload(t)}.p0", "void", f"{type_name(t)}, ptr, i32, {mask_type(t.n)}")
        e.line(f"call void {callee}({e.typed(values)}, {pointer}, i32 {t.elem.size}, {e.typed(masks[0])})")
    elif stride == 1:
        e.line(f"store {e.typed(values)}, {pointer}, align {t.elem.size}")
    else:
        for k, place in enumerate(_places(e, t, pointer, stride)):
            one = e.value(f"extractelement {e.typed(values)}, i32 {k}")
            e.line(f"store {type_name(t.elem)} {one}, {place}, align {t.elem.size}")


# --- lane by lane ---


def emit_store_compressed(e: FunctionEmitter, op: Op) -> None:
    """Emit stores without branches, because which lanes store is hard to predict."""
    first, values, mask = op.args
    t, pointer = _lanes(values.type), e.address(op.attr, first)
    elem = type_name(t.elem)
    if "+avx512f" in e.module.caps.cpu_features and t.elem.size >= _LEAST_COMPRESSED:
        _store_in_parts(e, t, e.operand(values), e.operand(mask), pointer)
        return
    count, chosen = "0", e.value(f"zext {e.typed(mask)} to <{t.n} x i64>")
    for k in range(t.n):
        place = e.value(f"getelementptr inbounds {elem}, {pointer}, i64 {count}")
        e.line(f"store {elem} {e.value(f'extractelement {e.typed(values)}, i32 {k}')}, ptr {place}, align {t.elem.size}")
        count = e.value(f"add i64 {count}, {e.value(f'extractelement <{t.n} x i64> {chosen}, i32 {k}')}")


def _store_in_parts(e: FunctionEmitter, t: Lanes, values: str, mask: str, pointer: str) -> None:
    """Emit a compression and a store for each register. LLVM 22 compresses wider vectors by way of the stack, with stores that it takes for
    aligned and that fault."""
    width = min(t.n, _REGISTER_BYTES // t.elem.size)
    part, bits = Lanes(width, t.elem), f"i{width}"
    vector, count = type_name(part), "0"
    compress = e.module.declare(f"llvm.experimental.vector.compress.{overload(part)}", vector, f"{vector}, {mask_type(width)}, {vector}")
    population = e.module.declare(f"llvm.ctpop.{bits}", bits, bits)
    for first in range(0, t.n, width):
        lanes = f"<{width} x i32> <{', '.join([f'i32 {k}' for k in range(first, first + width)])}>"
        some = e.value(f"shufflevector {type_name(t)} {values}, {type_name(t)} poison, {lanes}")
        chosen = e.value(f"shufflevector {mask_type(t.n)} {mask}, {mask_type(t.n)} poison, {lanes}")
        packed = e.value(f"call {vector} {compress}({vector} {some}, {mask_type(width)} {chosen}, {vector} poison)")
        place = e.value(f"getelementptr inbounds {type_name(t.elem)}, {pointer}, i64 {count}")
        e.line(f"store {vector} {packed}, ptr {place}, align {t.elem.size}")
        if first + width < t.n:
            number = e.value(f"call {bits} {population}({bits} {e.value(f'bitcast {mask_type(width)} {chosen} to {bits}')})")
            count = e.value(f"add i64 {count}, {e.value(f'zext {bits} {number} to i64')}")


def emit_each_lane(e: FunctionEmitter, op: Op) -> None:
    """Emit a loop over the lanes of the mask; operands and results pass through memory."""
    mask, *values = op.args
    (region,) = op.regions
    assert isinstance(op.type, tuple)
    arrays = [_in_memory(e, _lanes(v.type), e.operand(v)) for v in values]
    results = [_in_memory(e, _lanes(t)) for t in op.type]

    def one(lane: str, number: str) -> None:
        e.bind(region.params, [_element(e, array, scalar_of(v.type), lane) for array, v in zip(arrays, values)])
        for array, t, text in zip(results, op.type, e.region(region)):  # type: ignore[arg-type]
            _set_element(e, array, scalar_of(t), text, lane)

    _for_lanes(e, mask, one)
    e.env[op] = [_from_memory(e, array, _lanes(t)) for array, t in zip(results, op.type)]


def _for_lanes(e: FunctionEmitter, mask: Op, one: Callable[[str, str], None]) -> None:
    """Emit a loop over the lanes of a mask. ``one`` appends its body, given the number of the lane and the number of lanes before it, as
    i64."""
    bits = _bits(e, mask)
    loop, done = e.new_labels("lane", "lane.end")
    before = e.label
    e.line(f"br i1 {e.value(f'icmp ne i64 {bits}, 0')}, label %{loop}, label %{done}")
    e.start(loop)
    phis = Phis(e, ["i64", "i64"])
    left, number = phis.names
    lane = e.value(f"call i64 {e.module.declare('llvm.cttz.i64', 'i64', 'i64, i1')}(i64 {left}, i1 true)")
    one(lane, number)
    following = e.value(f"and i64 {left}, {e.value(f'add i64 {left}, -1')}")
    phis.fill(([bits, "0"], before), ([following, e.value(f"add i64 {number}, 1")], e.label))
    about = e.module.node(f"distinct !{{{{self}}, {e.module.node(_NOT_UNROLLED)}}}")
    e.line(f"br i1 {e.value(f'icmp ne i64 {following}, 0')}, label %{loop}, label %{done}, !llvm.loop {about}")
    e.start(done)


def _stored(t: Lanes) -> Lanes:
    """Return the type of a value in memory: a byte for each u1."""
    return Lanes(t.n, i8) if t.elem is u1 else t


def _in_memory(e: FunctionEmitter, t: Lanes, vector: str = "") -> str:
    """Reserve stack memory for a value of each lane, and store ``vector`` in it."""
    name, stored = e.name(), _stored(t)
    e.entry.append(f"  {name} = alloca {type_name(stored)}, align 64")
    if vector:
        if stored is not t:
            vector = e.convert("zext", vector, t, stored)
        e.line(f"store {type_name(stored)} {vector}, ptr {name}")
    return name


def _place(e: FunctionEmitter, array: str, t: DType, lane: str) -> str:
    return f"ptr {e.value(f'getelementptr inbounds {type_name(t)}, ptr {array}, i64 {lane}')}"


def _element(e: FunctionEmitter, array: str, t: DType, lane: str) -> str:
    """Load the value of one lane."""
    if t is u1:
        return e.convert("trunc", _element(e, array, i8, lane), i8, u1)
    return e.value(f"load {type_name(t)}, {_place(e, array, t, lane)}")


def _set_element(e: FunctionEmitter, array: str, t: DType, text: str, lane: str) -> None:
    if t is u1:
        t, text = i8, e.convert("zext", text, u1, i8)
    e.line(f"store {type_name(t)} {text}, {_place(e, array, t, lane)}")


def _from_memory(e: FunctionEmitter, array: str, t: Lanes) -> str:
    """Load the values of all lanes."""
    vector = e.value(f"load {type_name(_stored(t))}, ptr {array}")
    return e.convert("trunc", vector, _stored(t), t) if t.elem is u1 else vector
