"""The table of operations: what each one means. Derivatives and opcode mappings are small tables keyed by the same objects.

Semantics that hold on every back end (the evaluators here are the definition, on NumPy scalars):
integers wrap; integer division and remainder by zero give 0, and the smallest integer divided by -1 gives itself; shift amounts count modulo
the width; casts from float to integer truncate and saturate, NaN gives 0; min and max of a NaN and a number give the number; comparisons with
NaN are false, except ``ne``. Float operations round to nearest, except that math functions may be off by a few units in the last place, and that
with fast math (the default) multiplication and addition may fuse, and subnormals may flush.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypedDict

import numpy as np

from spirograd.base.dtypes import DType, Type
from spirograd.base.records import dataclass
from spirograd.ir import evaluators


@dataclass(frozen=True, slots=True, eq=False)
class OpCode:
    """An entry of the table of operations.

    ``effect``: "pure" | "read" | "write" | "atomic" | "barrier" | "check" | "print" | "label" | "control" (decided by its regions) | "call" (stated by
    its attribute) | "structure".
    ``domain``: which kinds of operand it takes: letters of "b" (u1), "i" (integers), "f" (floats), for typed operands.
    ``rule``: "same" (all operands and the result of one type), "compare" (operands of one type, result u1), "special" (see doc, checked in spec).
    ``level``: where it is legal: "kernel", "device" or "both"; "lowered": in a kernel and while it is lowered, but not in what code
    generators take; "loops": in loops over chunks only.
    ``elementary``: a function that some back ends lack for some types, which `transforms.math.expand_math` expands for them.
    ``evaluate(result_dtype, *numpy_scalars)`` is the meaning of a pure operation.
    """

    name: str
    arity: int | None
    effect: str
    doc: str
    domain: str = ""
    rule: str = "special"
    commutative: bool = False
    level: str = "both"
    elementary: bool = False
    evaluate: Callable[..., object] | None = None

    @property
    def levels(self) -> tuple[str, ...]:
        """Return the levels of `spec.LEVELS` where the operation is legal."""
        return _LEVELS[self.level]

    def __repr__(self) -> str:
        return self.name

    def __reduce__(self) -> tuple[object, ...]:
        return (_named, (self.name,))


_LEVELS = {
    "kernel": ("kernel",),
    "lowered": ("kernel", "lowering"),
    "both": ("kernel", "lowering", "device", "loops"),
    "device": ("lowering", "device", "loops"),
    "loops": ("loops",),
}
BY_NAME: dict[str, OpCode] = {}


def _named(name: str) -> OpCode:
    """Return the entry with a name: `copy` and `pickle` find entries so."""
    return BY_NAME[name]


if TYPE_CHECKING:
    from typing_extensions import Unpack

    class _Properties(TypedDict, total=False):
        """The properties of an entry that have a default."""

        domain: str
        rule: str
        commutative: bool
        level: str
        elementary: bool
        evaluate: Callable[..., object]


def _op(name: str, arity: int | None, effect: str, doc: str, **kw: Unpack[_Properties]) -> OpCode:
    code = OpCode(name, arity, effect, doc, **kw)
    BY_NAME[name] = code
    return code


def _elementary(name: str, arity: int, doc: str, function: Callable[..., object]) -> OpCode:
    """Declare an elementary function of floats: a member of `ELEMENTARY`."""
    return _op(name, arity, "pure", doc, domain="f", rule="same", elementary=True, evaluate=_M(evaluators.of_libm(name, function)))


_E = evaluators.elementwise
_M = evaluators.in_f64

# --- structure -----------------------------------------------------------------------------------------------------------

const = _op("const", 0, "pure", "A constant; attr is a Python bool, int or float.")
param = _op(
    "param", 0, "structure", "A parameter of a region; listed in Region.params, never in Region.ops; attr: its name in the source, or None."
)
result = _op("result", 1, "pure", "Result number `attr` of a `for`, `while`, `if` or call (its operand, whose type is a tuple).")
yield_ = _op("yield", None, "structure", "Ends a region with its results.")
# The attribute of an `if` or `while` in a grouped task that all invocations of a group run the same way.
UNIFORM = "uniform"

if_ = _op("if", 1, "control", "args (u1,); regions (then, else), without parameters, both yielding the results; attr None or `UNIFORM`.")
for_ = _op(
    "for",
    None,
    "control",
    "args (begin, end, *initial); region (index, *loop-carried) yields the next loop-carried values; results are the final ones; attr LoopAttr.",
)
while_ = _op(
    "while",
    None,
    "control",
    "args initial; regions (condition, body), each taking the loop-carried values: condition yields u1, body the next ones; attr None or "
    "`UNIFORM`.",
)
outlined = _op(
    "outlined",
    0,
    "control",
    "Runs its region, which has no parameters, once, as a function of its own; yields the results. attr: a name for the function.",
    level="loops",
)
task = _op("task", 0, "control", "One dispatch; attr TaskAttr. Nothing is visible inside but what is defined inside.", level="both")

# --- arithmetic ----------------------------------------------------------------------------------------------------------
# attr of add, sub, mul, div, fma, min, max: None, "nsw" (an address that never wraps), "wrap" (wraps on purpose: no overflow check),
# "reassoc" (a reduction: order is free), "exact" (rounded as written). attr of idiv, irem of i32: None, "f64" (the CPU divides as f64).

add = _op("add", 2, "pure", "a + b.", domain="if", rule="same", commutative=True, evaluate=_E(np.add))
sub = _op("sub", 2, "pure", "a - b.", domain="if", rule="same", evaluate=_E(np.subtract))
mul = _op("mul", 2, "pure", "a * b.", domain="if", rule="same", commutative=True, evaluate=_E(np.multiply))
div = _op("div", 2, "pure", "Float division.", domain="f", rule="same", evaluate=_E(np.divide))
idiv = _op("idiv", 2, "pure", "Integer division, truncating.", domain="i", rule="same", evaluate=evaluators.quotient)
irem = _op("irem", 2, "pure", "Integer remainder with the sign of the dividend.", domain="i", rule="same", evaluate=evaluators.remainder)
floordiv = _op(
    "floordiv", 2, "pure", "Integer division, rounding down.", domain="i", rule="same", level="lowered", evaluate=evaluators.floor_quotient
)
floormod = _op(
    "floormod",
    2,
    "pure",
    "Integer remainder with the sign of the divisor.",
    domain="i",
    rule="same",
    level="lowered",
    evaluate=evaluators.floor_remainder,
)
neg = _op("neg", 1, "pure", "-a.", domain="if", rule="same", evaluate=lambda t, a: -a if t.is_float else evaluators.wrap(t, -int(a)))
abs_ = _op(
    "abs",
    1,
    "pure",
    "Absolute value (of the smallest integer: itself).",
    domain="if",
    rule="same",
    evaluate=lambda t, a: np.abs(a) if t.is_float else evaluators.wrap(t, abs(int(a))),
)
min_ = _op("min", 2, "pure", "The smaller.", domain="if", rule="same", commutative=True, evaluate=evaluators.minimum)
max_ = _op("max", 2, "pure", "The larger.", domain="if", rule="same", commutative=True, evaluate=evaluators.maximum)
fma = _op(
    "fma",
    3,
    "pure",
    "a * b + c; rounded once or twice.",
    domain="f",
    rule="same",
    evaluate=evaluators.fused_multiply_add,
)

# --- bits ----------------------------------------------------------------------------------------------------------------

and_ = _op(
    "and",
    2,
    "pure",
    "Bitwise and (of u1: logical).",
    domain="bi",
    rule="same",
    commutative=True,
    evaluate=_E(np.bitwise_and),
)
or_ = _op("or", 2, "pure", "Bitwise or.", domain="bi", rule="same", commutative=True, evaluate=_E(np.bitwise_or))
xor = _op("xor", 2, "pure", "Bitwise exclusive or.", domain="bi", rule="same", commutative=True, evaluate=_E(np.bitwise_xor))
not_ = _op("not", 1, "pure", "Bitwise not (of u1: logical).", domain="bi", rule="same", evaluate=_E(np.invert))
shl = _op("shl", 2, "pure", "a << (b mod bits).", domain="i", rule="same", evaluate=evaluators.shift(True))
shr = _op(
    "shr",
    2,
    "pure",
    "a >> (b mod bits); fills with the sign of signed a, with 0 of unsigned a.",
    domain="i",
    rule="same",
    evaluate=evaluators.shift(False),
)
popcnt = _op(
    "popcnt", 1, "pure", "Number of one bits.", domain="i", rule="same", evaluate=lambda t, a: t.np.type(evaluators.bits(t, a).bit_count())
)
clz = _op(
    "clz",
    1,
    "pure",
    "Number of leading zero bits; of 0: the width.",
    domain="i",
    rule="same",
    evaluate=lambda t, a: t.np.type(t.bits - evaluators.bits(t, a).bit_length()),
)
ctz = _op(
    "ctz",
    1,
    "pure",
    "Number of trailing zero bits; of 0: the width.",
    domain="i",
    rule="same",
    evaluate=lambda t, a: t.np.type((evaluators.bits(t, a) & -evaluators.bits(t, a)).bit_length() - 1 if evaluators.bits(t, a) else t.bits),
)

# --- comparison and choice -----------------------------------------------------------------------------------------------

eq = _op("eq", 2, "pure", "a == b.", domain="bif", rule="compare", commutative=True, evaluate=_E(np.equal))
ne = _op("ne", 2, "pure", "a != b; true for NaN.", domain="bif", rule="compare", commutative=True, evaluate=_E(np.not_equal))
lt = _op("lt", 2, "pure", "a < b.", domain="if", rule="compare", evaluate=_E(np.less))
le = _op("le", 2, "pure", "a <= b.", domain="if", rule="compare", evaluate=_E(np.less_equal))
gt = _op("gt", 2, "pure", "a > b.", domain="if", rule="compare", evaluate=_E(np.greater))
ge = _op("ge", 2, "pure", "a >= b.", domain="if", rule="compare", evaluate=_E(np.greater_equal))
select = _op(
    "select",
    3,
    "pure",
    'args (u1, a, b): a if the condition holds, else b; both are evaluated. a and b may be vectors. attr None, or "guard": a is 0, as is '
    "what flows into the derivative b if the condition holds, so that the two differ only where b is NaN.",
    evaluate=lambda t, c, a, b: a if c else b,
)
cast = _op("cast", 1, "pure", "Conversion to the result type; to u1: a != 0.", evaluate=evaluators.cast)
bitcast = _op("bitcast", 1, "pure", "The same bits as another type of the same width.", evaluate=evaluators.bitcast)

stop_grad = _op(
    "stop_grad", 1, "pure", "Its operand; derivatives end here.", domain="bif", rule="same", level="kernel", evaluate=lambda t, a: a
)

recall = _op(
    "recall",
    2,
    "pure",
    "args (a, b): a; derivatives are those of b.",
    domain="bif",
    rule="same",
    level="kernel",
    evaluate=lambda t, a, b: a,
)

with_partial = _op(
    "with_partial",
    3,
    "pure",
    "args (a, b, c): a; derivatives are those of a plus c times those of b.",
    domain="f",
    rule="same",
    level="kernel",
    evaluate=lambda t, a, b, c: a,
)

opaque = _op(
    "opaque",
    1,
    "pure",
    "Its operand. What comes after is not rounded or simplified together with what came before.",
    domain="f",
    rule="same",
    evaluate=lambda t, a: a,
)

# --- math ----------------------------------------------------------------------------------------------------------------

sqrt = _op("sqrt", 1, "pure", "Square root.", domain="f", rule="same", evaluate=_E(np.sqrt))
rsqrt = _op("rsqrt", 1, "pure", "1 / sqrt(a).", domain="f", rule="same", evaluate=_E(lambda a: 1 / np.sqrt(a)))
exp = _elementary("exp", 1, "e ** a.", np.exp)
log = _elementary("log", 1, "Natural logarithm.", np.log)
sin = _elementary("sin", 1, "Sine, of radians.", np.sin)
cos = _elementary("cos", 1, "Cosine, of radians.", np.cos)
tan = _elementary("tan", 1, "Tangent, of radians.", np.tan)
asin = _elementary("asin", 1, "Inverse sine, in radians.", np.arcsin)
acos = _elementary("acos", 1, "Inverse cosine, in radians.", np.arccos)
atan2 = _elementary("atan2", 2, "Angle of the point (b, a), in radians.", np.arctan2)
tanh = _elementary("tanh", 1, "Hyperbolic tangent.", np.tanh)
pow_ = _elementary("pow", 2, "a ** b of floats.", evaluators.power)
floor = _op("floor", 1, "pure", "Round down.", domain="f", rule="same", evaluate=_E(np.floor))
ceil = _op("ceil", 1, "pure", "Round up.", domain="f", rule="same", evaluate=_E(np.ceil))
trunc = _op("trunc", 1, "pure", "Round towards zero.", domain="f", rule="same", evaluate=_E(np.trunc))
round_ = _op("round", 1, "pure", "Round to nearest, ties to even.", domain="f", rule="same", evaluate=_E(np.rint))
isnan = _op("isnan", 1, "pure", "Whether a is NaN (u1).", domain="f", rule="compare", evaluate=_E(np.isnan))
isinf = _op("isinf", 1, "pure", "Whether a is infinite (u1).", domain="f", rule="compare", evaluate=_E(np.isinf))

# --- vectors -------------------------------------------------------------------------------------------------------------

vec = _op("vec", None, "pure", "A vector of its operands (at least one, all of the element type).", evaluate=lambda t, *a: tuple(a))
extract = _op(
    "extract",
    2,
    "pure",
    "args (vector, integer): an element; out of range: any element.",
    evaluate=lambda t, v, i: v[min(max(int(i), 0), len(v) - 1)],
)
insert = _op(
    "insert",
    3,
    "pure",
    "args (vector, integer, value): the vector with that element replaced; out of range: unspecified, but no other memory is touched.",
    evaluate=lambda t, v, i, x: tuple(x if k == min(max(int(i), 0), len(v) - 1) else y for k, y in enumerate(v)),
)

# --- functions -----------------------------------------------------------------------------------------------------------

call = _op("call", None, "pure", "attr the name of a `Function` of the kernel: its result for these operands; several as a tuple.")
call_memory = _op("call_memory", None, "call", "attr a `MemoryCall`: as `call`, of a function that accesses outer memory.")

# --- arguments -----------------------------------------------------------------------------------------------------------

arg = _op("arg", 0, "pure", "Scalar argument number `attr` of the kernel.", level="kernel")
shape = _op("shape", 0, "pure", "Extent (i32) of array argument attr[0] along axis attr[1].", level="kernel")
address = _op(
    "address",
    0,
    "pure",
    'Address (u64) of array argument attr[0], of the part of it (role) attr[1]; of the tree of fields attr[1] if attr[0] is "tree".',
    level="kernel",
)
seed = _op("seed", 0, "pure", "Random seed (u32) of this launch, different for each launch.", level="kernel")
adstack_word = _op(
    "adstack_word", 0, "pure", "A size or capacity of the adstacks of a launch (i32): attr is (kind of slot, number).", level="kernel"
)
thread_slot = _op("thread_slot", 0, "pure", "Number (i32) of this invocation among those that run at the same time. In tasks only.")
builtin = _op("builtin", 0, "pure", "Where this invocation stands in its dispatch (i32): attr is a BuiltIn.", level="device")
slot = _op("slot", 0, "pure", "Entry `attr` (a Slot; of buffers, those of arrays and trees) of the argument block.", level="device")

# --- memory --------------------------------------------------------------------------------------------------------------

load = _op(
    "load", None, "read", "attr Ref; args indices. u1 elements are stored as bytes: layout makes this a load of u8 and a comparison."
)
store = _op("store", None, "write", "attr Ref; args (*indices, value).")
atomic = _op(
    "atomic",
    None,
    "atomic",
    'attr (kind, Ref); args (*indices, value); result: the old value. Kinds "add mul min max and or xor exchange".',
)
cas = _op(
    "cas",
    None,
    "atomic",
    "attr Ref; args (*indices, expected, desired): stores desired if the element equals expected (bit by bit); result: the old value.",
)
claim = _op(
    "claim",
    None,
    "atomic",
    "attr Ref of a counter (i32); args indices: how many invocations of the task claimed before this one, which does so once, whenever it "
    "first gets to an operation with that counter.",
)
barrier = _op(
    "barrier",
    0,
    "barrier",
    "All accesses to memory of this invocation that stand before it come before all that stand after it, for the whole device.",
)

stack_room = _op(
    "stack_room",
    0,
    "pure",
    "Whether the stack has room (u1) for the function that it stands in, which calls itself; false, too, once a fault is on record, so that "
    "calls that were made return soon.",
)
stream = _op(
    "stream",
    2,
    "write",
    "attr (SharedRef, Ref); args (index, count): stores the first elements of the memory of a chunk, past the caches where that is possible. "
    "A barrier orders them.",
    level="loops",
)
clock = _op("clock", 0, "barrier", "A counter (i64) of the device that goes up as time passes, read where it stands.")

# --- workgroups ----------------------------------------------------------------------------------------------------------
# All invocations of a workgroup, or of a subgroup, reach these together.

workgroup_barrier = _op(
    "workgroup_barrier",
    0,
    "barrier",
    "Waits for all invocations of the workgroup; what they have written to memory is seen afterwards.",
)
subgroup_reduce = _op(
    "subgroup_reduce",
    1,
    "barrier",
    "attr the kind of a reduction: the operands of all invocations of the subgroup, combined in any order.",
)
subgroup_scan = _op(
    "subgroup_scan",
    1,
    "barrier",
    "attr the kind of a reduction: the operands of this invocation of the subgroup, and of those before it, combined in any order.",
)
subgroup_shuffle = _op(
    "subgroup_shuffle",
    1,
    "barrier",
    "attr a mask: the operand of that invocation of the subgroup whose number differs from this one's in the bits of the mask.",
    level="device",
)
subgroup_barrier = _op(
    "subgroup_barrier",
    None,
    "barrier",
    "Waits for the invocations of the subgroup; what they have written to memory is seen by them afterwards. An optional u32 operand: "
    "the mask of the invocations whose accesses it orders, which only the interpreter reads, to find races.",
)
subgroup_read = _op(
    "subgroup_read",
    2,
    "barrier",
    "args (value, i32): the value of the invocation of the subgroup with that number; of one that does not run: unspecified.",
)
subgroup_ballot = _op(
    "subgroup_ballot",
    1,
    "barrier",
    "arg u1: an integer (u32, u64) with a bit for each invocation of the subgroup, set where the operand is true.",
)
tile_entries = _op(
    "tile_entries",
    None,
    "pure",
    "attr what the tile is in products, one of `matrix_shapes.USES`; args the row of n that this invocation of 32 has of a tile of n rows: a "
    "vector of the n * n / 32 entries, or twice as many of a factor, that it holds for the device's instructions.",
    level="lowered",
)
tile_rows = _op(
    "tile_rows",
    None,
    "pure",
    "args the entries of a total: the row of this invocation; those beyond the rows get zeros.",
    level="lowered",
)
tile_product = _op(
    "tile_product",
    None,
    "pure",
    "args the entries of a, b and c, as of `tile_entries`: a vector of those of c + a @ b.",
    level="lowered",
)
matrix_load = _op(
    "matrix_load",
    0,
    "barrier",
    "attr ((a name of `matrix_shapes.SHAPES`, n, what the tile is), shared memory): `tile_entries` of the tile whose rows lie there.",
    level="device",
)
matrix_store = _op(
    "matrix_store",
    None,
    "barrier",
    "attr as of `matrix_load`, of a total; args entries: lay the rows of the tile there.",
    level="device",
)
matrix_product = _op(
    "matrix_product",
    None,
    "barrier",
    "attr (a name of `matrix_shapes.SHAPES`, n): `tile_product` by this instruction.",
    level="device",
)

# Operations on tiles, which all threads of a group run together. The group is one subgroup, or four.
TILES = frozenset((tile_entries, tile_rows, tile_product))
# Operations that threads of a group reach together: the threads of a subgroup, or all.
MEETING_IN_SUBGROUPS = TILES | {subgroup_barrier, subgroup_read, subgroup_ballot, subgroup_reduce, subgroup_scan}
MEETING = MEETING_IN_SUBGROUPS | {workgroup_barrier}

# --- lanes ---------------------------------------------------------------------------------------------------------------
# Values of type `Lanes` hold a value for each of several iterations of a loop, its lanes. Operations that combine scalars element by element
# (arithmetic, comparisons, `select`, conversions, calls of functions that only compute) take such values, too: all operands of one width.
# `extract` gives the value of one lane. `load` with an index for each lane is a gather.

splat = _op("splat", 1, "pure", "The operand, in all lanes.", level="loops")
lane_const = _op("lane_const", 0, "pure", "A constant for each lane; attr a tuple of them.", level="loops")
load_lanes = _op(
    "load_lanes",
    None,
    "read",
    "attr (stride, Ref); args (*firsts, *masks), as many, or (*firsts, *masks, others): each lane k of a mask loads element first + k * stride, "
    "and no lane is in two masks; lanes in none get their value of `others`, or 0. One first without mask: all lanes.",
    level="loops",
)
store_lanes = _op(
    "store_lanes",
    None,
    "write",
    "attr (stride, Ref); args (first, values) or (first, values, mask): lane k of the mask, or each, stores to element first + k * stride.",
    level="loops",
)
store_compressed = _op(
    "store_compressed",
    3,
    "write",
    "attr Ref; args (first, values, mask): the values of the lanes of the mask, one after the other, in local memory. As many elements as "
    "there are lanes exist from `first` on; those after the values become unspecified.",
    level="loops",
)
each_lane = _op(
    "each_lane",
    None,
    "control",
    "args (mask, *values): for one lane of the mask after the other, the region takes the lane's values; results are what it yields, for each "
    "lane, and unspecified in other lanes.",
    level="loops",
)
reduce_lanes = _op(
    "reduce_lanes", 1, "pure", "attr the kind of a reduction: the values of all lanes, combined in any order.", level="loops"
)
ballot_lanes = _op(
    "ballot_lanes", 1, "pure", "arg u1 lanes: an i64 with a bit for each lane, set where the operand is true.", level="loops"
)
lanes_of_bits = _op("lanes_of_bits", 1, "pure", "The u1 lanes of which an i64 has the bits.", level="loops")
widen_mask = _op("widen_mask", 1, "pure", "arg u1 lanes: i32 lanes, -1 where the operand is true, else 0.", level="loops")
narrow_mask = _op("narrow_mask", 1, "pure", "arg i32 lanes of a wide mask: u1 lanes, whether the operand is negative.", level="loops")
any_lane = _op("any_lane", 1, "pure", "arg i32 lanes of a wide mask: whether any is negative (u1).", level="loops")
lane_slots = _op("lane_slots", 0, "pure", "Thread slots (i32) that this thread has for its lanes. In tasks only.", level="loops")

# --- diagnostics ---------------------------------------------------------------------------------------------------------

check = _op(
    "check", None, "check", "attr FaultSite; args (u1, *operands): records a fault if the condition is false, and goes on.", level="lowered"
)
print_ = _op("print", None, "print", "attr PrintSite; args scalars.", level="lowered")
label = _op(
    "label",
    None,
    "label",
    "attr Label; args: the index, as the program has it, of the element that the next accesses to that memory are to; without memory, of "
    "the iteration of the parallel loop. For the interpreter, which finds races.",
    level="kernel",
)

# Operations whose values only the kernel has: its arguments, and properties of its launch.
OUTSIDE = frozenset((arg, shape, seed, adstack_word, thread_slot, lane_slots, builtin, slot))
# Operations of `LAUNCH_VALUES` that functions named by `call_memory` may use.
ARGUMENTS = frozenset((arg, shape, slot))
ALL: tuple[OpCode, ...] = tuple(BY_NAME.values())
ON_LANES = tuple([code for code in ALL if code.level == "loops" and code not in (outlined, stream)])
ELEMENTARY = tuple(code for code in ALL if code.elementary)
ATOMIC_KINDS = ("add", "mul", "min", "max", "and", "or", "xor", "exchange")
# The pure operation that combines two partial results of an atomic or a reduction.
COMBINE: dict[str, OpCode] = {"add": add, "mul": mul, "min": min_, "max": max_, "and": and_, "or": or_, "xor": xor}


def identity(kind: str, t: DType) -> int | float:
    """Return the value that leaves the other operand of ``COMBINE[kind]`` unchanged."""
    if kind in ("add", "or", "xor"):
        return 0.0 if t.is_float else 0
    if kind == "mul":
        return 1.0 if t.is_float else 1
    if kind == "and":
        return -1 if t.is_signed else int(t.max)
    bound = math.inf if t.is_float else int(t.max if kind == "min" else t.min)
    return -bound if t.is_float and kind == "max" else bound


def evaluate(code: OpCode, t: Type, args: tuple[object, ...]) -> Any:
    """Return the value of a pure operation on NumPy scalars (vectors: tuples of them)."""
    assert code.evaluate is not None, code
    with np.errstate(all="ignore"):
        return code.evaluate(t, *args)
