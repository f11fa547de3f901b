"""Operations of device IR -> instructions of one LLVM function: values, memory and structured control flow."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from spirograd.base import dtypes as dt
from spirograd.base.artifact import Slot
from spirograd.base.dtypes import DType, Type, Vec
from spirograd.base.loc import Loc
from spirograd.ir import ops
from spirograd.ir.nodes import BufferRef, Op, Region
from spirograd.ir.ops import OpCode
from spirograd.llvmgen import half, vector_math
from spirograd.llvmgen.local_arrays import LastUses, is_array
from spirograd.llvmgen.module import ModuleText, literal, returned_type, type_name
from spirograd.llvmgen.op_map import ATOMIC_MAP, OP_MAP, Compare, Emitted, Instr, Intrinsic, Math, Spelling, Unsupported, pick

_NO_EFFECT = "nounwind willreturn memory(none)"
_ZEROS = frozenset(literal(0, t) for t in dt.ALL)
_OVERLOADS = {dt.f16: "f16", dt.f32: "f32", dt.f64: "f64"}


class FunctionEmitter:
    """Appends instructions to one function whose first parameter is ``ptr %block``, the argument block.

    Loads from the argument block are collected apart, for the entry block. ``memory_suffix`` is metadata for every plain load and store.
    """

    def __init__(self, module: ModuleText, memory_suffix: str = "") -> None:
        self.module = module
        self.memory_suffix = memory_suffix
        self.lines: list[str] = []
        self.entry: list[str] = []
        self.label = "entry.end"  # the block being appended to
        self.env: dict[Op, Any] = {}  # operation -> operand text (control operations: a list of them)
        self.last_uses = LastUses()
        self._slots: dict[tuple[int, str], str] = {}
        self._count = 0
        self._loc: Loc | None = None
        self._contract = "contract " if module.options.fast_math else ""
        # Elsewhere every 64-bit CPU has fused multiply-add; old x86 would call a slow function of libm.
        self._has_fma = "+fma" in module.caps.cpu_features or not half.is_x86(module.caps)

    # --- text ---

    def name(self) -> str:
        self._count += 1
        return f"%v{self._count}"

    def line(self, text: str) -> None:
        self.lines.append("  " + text)

    def value(self, text: str) -> str:
        """Append an instruction with a result; returns the result."""
        name = self.name()
        self.lines.append(f"  {name} = {text}")
        return name

    def new_labels(self, *stems: str) -> list[str]:
        self._count += 1
        return [f"{stem}{self._count}" for stem in stems]

    def start(self, label: str) -> None:
        self.lines.append(f"{label}:")
        self.label = label

    def goto(self, label: str) -> None:
        self.line(f"br label %{label}")

    # How plain operations write types, operands and constants; different where they work on several lanes.

    @property
    def width(self) -> int:
        """How many lanes the operation being emitted works on."""
        return 1

    def type_text(self, t: Type) -> str:
        return type_name(t)

    def overload(self, t: DType) -> str:
        """The type in the name of an intrinsic."""
        return _OVERLOADS.get(t) or type_name(t)

    def operand(self, op: Op) -> str:
        text: str = self.env[op]
        return text

    def literal(self, value: float, t: DType) -> str:
        return literal(value, t)

    def typed(self, op: Op) -> str:
        return f"{self.type_text(op.type)} {self.operand(op)}"

    def result_types(self, op: Op) -> Sequence[Type]:
        """Types of the results of a control operation."""
        assert isinstance(op.type, tuple)
        return op.type

    def set(self, op: Op, text: str) -> None:
        """Append an instruction whose result is ``op``."""
        self.env[op] = self.value(text)

    def bind(self, params: Sequence[Op], values: Sequence[str]) -> None:
        self.env.update(zip(params, values))

    # --- regions ---

    def region(self, region: Region) -> list[str]:
        """Emit the operations of a region here; returns the operands it yields."""
        for op in region.ops[:-1]:
            if op.loc is not self._loc:
                self.at(op.loc)
            HANDLERS[op.code](self, op)
        return [self.env[v] for v in region.results]

    def result(self, op: Op) -> None:
        self.env[op] = self.env[op.args[0]][op.attr]

    def at(self, loc: Loc | None) -> None:
        """Say in a comment where what follows comes from, if that changes."""
        if loc is not None:
            if self._loc is None or (loc.line, loc.file) != (self._loc.line, self._loc.file):
                self.lines.append(f"  ; {loc.file}:{loc.line}")
            self._loc = loc

    def if_(self, op: Op) -> None:
        then, orelse, done = self.new_labels("then", "else", "fi")
        self.line(f"br i1 {self.env[op.args[0]]}, label %{then}, label %{orelse}")
        arms: list[tuple[str, list[str], int]] = []
        for label, region in zip((then, orelse), op.regions):
            self.start(label)
            values = self.region(region)
            arms.append((self.label, values, len(self.lines)))
            self.lines.append("")  # copies of arrays: where to is known once both arms are
            self.goto(done)
        self.start(done)
        (l0, v0, _), (l1, v1, _) = arms
        self.env[op] = [
            self._merge_arrays(op, k, t, arms) if is_array(t) else self.value(f"phi {type_name(t)} [ {a}, %{l0} ], [ {b}, %{l1} ]")
            for k, (t, a, b) in enumerate(zip(self.result_types(op), v0, v1))
        ]

    def _merge_arrays(self, op: Op, number: int, t: Type, arms: Sequence[tuple[str, list[str], int]]) -> str:
        """Where result ``number`` of an `if` lies: where both arms leave it, if that place is free, else in a place of its own."""
        places = [values[number] for _, values, _ in arms]
        ends = [region.ops[-1] for region in op.regions]
        if places[0] == places[1] and all(self.last_uses.is_last(end, end.args[number]) for end in ends):
            return places[0]
        target = self.new_array(t)
        for place, (_, _, hole) in zip(places, arms):
            self.lines[hole] += f"{self.copy_text(target, place, t)}\n"
        return target

    def for_(self, op: Op) -> None:
        begin, end = (self.env[a] for a in op.args[:2])
        initial = self.initial(op, op.args[2:])
        self.env[op] = self.counted_loop(op.args[0].type, begin, end, self.result_types(op), initial, op.regions[0])

    def initial(self, op: Op, args: Sequence[Op]) -> list[str]:
        """The initial values of a loop; arrays are copied unless nobody needs them any more, for the loop will overwrite them."""
        kept = [not is_array(a.type) or self.last_uses.is_last(op, a) for a in args]
        return [self.env[a] if keep else self.copied_array(self.env[a], a.type) for a, keep in zip(args, kept)]

    def _next(self, types: Sequence[Type], places: Sequence[str], values: Sequence[str]) -> None:
        """Move the arrays that an iteration yields to their places (by way of others where one place is the source of another)."""
        moves = [(p, v, t) for t, p, v in zip(types, places, values) if is_array(t) and p != v]
        targets = {p for p, _, _ in moves}
        moves = [(p, self.copied_array(v, t) if v in targets else v, t) for p, v, t in moves]
        self.lines += [self.copy_text(p, v, t) for p, v, t in moves]

    def counted_loop(
        self,
        index: Type,
        begin: str,
        end: str,
        types: Sequence[Type],
        initial: Sequence[str],
        body: Region,
        suffix: str = "",
        stride: str = "1",
    ) -> list[str]:
        """A loop in rotated form (tested before, then after each iteration); returns the final carried values.

        ``suffix`` is the metadata of the branch back; ``stride`` divides the distance from ``begin`` to ``end``.
        Carried arrays stay where ``initial`` has them.
        """
        assert isinstance(index, DType)
        it = type_name(index)
        less, step = ("slt", "add nsw") if index.is_signed else ("ult", "add nuw")
        loop, done = self.new_labels("for", "rof")
        some = self.value(f"icmp {less} {it} {begin}, {end}")
        before = self.label
        self.line(f"br i1 {some}, label %{loop}, label %{done}")
        self.start(loop)
        counter = self.name()
        carried = [first if is_array(t) else self.name() for t, first in zip(types, initial)]
        holes = len(self.lines)  # the phis: what comes back is known only after the body
        self.lines += [""] * (1 + len(carried))
        self.bind(body.params, [counter, *carried])
        loc = self._loc
        values = self.region(body)
        self.at(loc)
        self._next(types, carried, values)
        following = self.value(f"{step} {it} {counter}, {stride}")
        again = self.value(f"icmp {less} {it} {following}, {end}")
        back = self.label
        self.line(f"br i1 {again}, label %{loop}, label %{done}{suffix}")
        self.lines[holes] = f"  {counter} = phi {it} [ {begin}, %{before} ], [ {following}, %{back} ]"
        self._fill_phis(holes + 1, types, carried, initial, values, before, back)
        self.start(done)
        return [
            a if is_array(t) else self.value(f"phi {type_name(t)} [ {a}, %{before} ], [ {b}, %{back} ]")
            for t, a, b in zip(types, initial, values)
        ]

    def iterations(
        self, index: Type, begin: str, end: str, types: Sequence[Type], initial: Sequence[str], body: Region, suffix: str
    ) -> list[str]:
        """The iterations of a parallel loop from ``begin`` to ``end``: as `counted_loop`."""
        return self.counted_loop(index, begin, end, types, initial, body, suffix)

    def _fill_phis(
        self, hole: int, types: Sequence[Type], names: Sequence[str], initial: Sequence[str], values: Sequence[str], before: str, back: str
    ) -> None:
        for k, (name, t, first, last) in enumerate(zip(names, types, initial, values), hole):
            if not is_array(t):
                self.lines[k] = f"  {name} = phi {type_name(t)} [ {first}, %{before} ], [ {last}, %{back} ]"

    def while_(self, op: Op) -> None:
        assert isinstance(op.type, tuple)
        head, body, done = self.new_labels("while", "do", "done")
        initial = self.initial(op, op.args)
        before = self.label
        self.goto(head)
        self.start(head)
        carried = [first if is_array(t) else self.name() for t, first in zip(op.type, initial)]
        holes = len(self.lines)
        self.lines += [""] * len(carried)
        condition, step = op.regions
        self.bind(condition.params, carried)
        (test,) = self.region(condition)
        self.line(f"br i1 {test}, label %{body}, label %{done}")
        self.start(body)
        self.bind(step.params, carried)
        values = self.region(step)
        self._next(op.type, carried, values)
        back = self.label
        self.goto(head)
        self._fill_phis(holes, op.type, carried, initial, values, before, back)
        self.start(done)
        self.env[op] = carried

    # --- plain operations ---

    def flags(self, op: Op) -> str:
        """Fast-math flags, or nsw/nuw."""
        assert isinstance(op.type, DType)
        if op.type.is_float:
            if op.attr == "reassoc":
                return "reassoc nsz " + self._contract
            return "" if op.attr == "exact" else self._contract
        if op.attr == "nsw":
            return "nsw " if op.type.is_signed else "nuw "
        return ""

    def const(self, op: Op) -> None:
        assert isinstance(op.type, DType)
        self.env[op] = literal(op.attr, op.type)

    def instr(self, op: Op) -> None:
        spelling = OP_MAP[op.code]
        assert isinstance(spelling, Instr)
        a, b = op.args
        self.set(op, f"{pick(spelling, op.type)} {self.flags(op)}{self.typed(a)}, {self.operand(b)}")

    def compare(self, op: Op) -> None:
        spelling = OP_MAP[op.code]
        assert isinstance(spelling, Compare)
        a, b = op.args
        assert isinstance(a.type, DType)
        self.set(op, f"{'fcmp' if a.type.is_float else 'icmp'} {pick(spelling, a.type)} {self.typed(a)}, {self.operand(b)}")

    def call_intrinsic(self, name: str, t: DType, args: Sequence[str], flags: str = "", tail: str = "") -> str:
        """Call `llvm.<name>.<t>` on operands of type ``t``, which is its result's type too."""
        tn = self.type_text(t)
        params = ", ".join([tn] * len(args)) + (", i1" if tail else "")
        target = self.module.declare(f"llvm.{name}.{self.overload(t)}", tn, params)
        return self.value(f"call {flags}{tn} {target}({', '.join(f'{tn} {a}' for a in args)}{tail})")

    def intrinsic(self, op: Op) -> None:
        spelling = OP_MAP[op.code]
        assert isinstance(spelling, Intrinsic) and isinstance(op.type, DType)
        tail = ", i1 false" if spelling.flag else ""
        self.env[op] = self.call_intrinsic(pick(spelling, op.type), op.type, [self.operand(a) for a in op.args], self.flags(op), tail)

    def math(self, op: Op) -> None:
        spelling = OP_MAP[op.code]
        assert isinstance(spelling, Math) and isinstance(op.type, DType)
        args = [self.env[a] for a in op.args]
        vectorised = self.module.caps.vector_library == vector_math.LIBMVEC and self.module.options.fast_math
        if op.type is not dt.f64 or not vectorised or op.attr == "exact":
            self.env[op] = self.call_intrinsic(spelling.name, op.type, args, self.flags(op))
            return
        vector = vector_math.vector_name(spelling.name)
        lanes = f"<{vector_math.LANES} x double>"
        self.module.declare(vector, lanes, ", ".join([lanes] * len(args)), " " + self.module.attribute_group(_NO_EFFECT))
        self.module.used[vector] = None
        target = self.module.declare(spelling.name, "double", ", ".join(["double"] * len(args)))
        variant = f"_ZGV_LLVM_N{vector_math.LANES}{'v' * len(args)}_{spelling.name}({vector})"
        group = self.module.attribute_group(f'{_NO_EFFECT} "vector-function-abi-variant"="{variant}"')
        self.set(op, f"call double {target}({', '.join(f'double {a}' for a in args)}) {group}")

    def neg(self, op: Op) -> None:
        assert isinstance(op.type, DType)
        t, operand = self.type_text(op.type), self.operand(op.args[0])
        self.set(op, f"fneg {t} {operand}" if op.type.is_float else f"sub {t} {self.literal(0, op.type)}, {operand}")

    def abs_(self, op: Op) -> None:
        assert isinstance(op.type, DType)
        operand = self.operand(op.args[0])
        if op.type.is_float:
            self.env[op] = self.call_intrinsic("fabs", op.type, [operand])
        elif op.type.is_signed:
            self.env[op] = self.call_intrinsic("abs", op.type, [operand], tail=", i1 false")
        else:
            self.env[op] = operand

    def fma(self, op: Op) -> None:
        assert isinstance(op.type, DType)
        a, b, c = [self.operand(x) for x in op.args]
        if self._has_fma and op.type is not dt.f16:
            self.env[op] = self.call_intrinsic("fma", op.type, [a, b, c])
            return
        t = self.type_text(op.type)
        product = self.value(f"fmul {t} {a}, {b}")
        self.set(op, f"fadd {t} {product}, {c}")

    def not_(self, op: Op) -> None:
        assert isinstance(op.type, DType)
        self.set(op, f"xor {self.typed(op.args[0])}, {self.literal(-1, op.type)}")

    def rsqrt(self, op: Op) -> None:
        assert isinstance(op.type, DType)
        root = self.call_intrinsic("sqrt", op.type, [self.operand(op.args[0])])
        self.set(op, f"fdiv {self.type_text(op.type)} {self.literal(1.0, op.type)}, {root}")

    def isnan(self, op: Op) -> None:
        a = op.args[0]
        self.set(op, f"fcmp uno {self.typed(a)}, {self.operand(a)}")

    def isinf(self, op: Op) -> None:
        t = op.args[0].type
        assert isinstance(t, DType)
        size = self.call_intrinsic("fabs", t, [self.operand(op.args[0])])
        self.set(op, f"fcmp oeq {self.type_text(t)} {size}, {self.literal(float('inf'), t)}")

    def select(self, op: Op) -> None:
        condition, a, b = op.args
        if is_array(op.type):
            self.env[op] = self.copied_array(self.value(f"select i1 {self.env[condition]}, ptr {self.env[a]}, ptr {self.env[b]}"), op.type)
            return
        self.set(op, f"select {self.typed(condition)}, {self.typed(a)}, {self.typed(b)}")

    # --- conversions ---

    def cast(self, op: Op) -> None:
        source, target = op.args[0].type, op.type
        assert isinstance(source, DType) and isinstance(target, DType)
        value = self.operand(op.args[0])
        if source is target:
            self.env[op] = value
        elif target is dt.u1:
            zero = self.literal(0, source)
            self.set(op, f"{'fcmp une' if source.is_float else 'icmp ne'} {self.type_text(source)} {value}, {zero}")
        elif source.is_float:
            self.env[op] = self._float_to_float(value, source, target) if target.is_float else self._float_to_int(value, source, target)
        elif target.is_float:
            self.env[op] = self._int_to_float(value, source, target)
        else:
            self.env[op] = self.resize(value, source, target)

    def convert(self, kind: str, value: str, source: DType, target: DType) -> str:
        return self.value(f"{kind} {self.type_text(source)} {value} to {self.type_text(target)}")

    def resize(self, value: str, source: DType, target: DType) -> str:
        if source.bits == target.bits:
            return value
        kind = "trunc" if target.bits < source.bits else "sext" if source.is_signed else "zext"
        return self.convert(kind, value, source, target)

    def _float_to_float(self, value: str, source: DType, target: DType) -> str:
        if source is dt.f64 and target is dt.f16 and half.needs_double_to_half(self.module.caps):
            self.module.uses_double_to_half = True
            return self.value(f"call half @{half.DOUBLE_TO_HALF}(double {value})")
        if source is dt.f16 and target is dt.f64:  # in two exact steps: only the first is an instruction everywhere
            value, source = self.convert("fpext", value, dt.f16, dt.f32), dt.f32
        return self.convert("fpext" if target.bits > source.bits else "fptrunc", value, source, target)

    def _float_to_int(self, value: str, source: DType, target: DType) -> str:
        if source is dt.f16:
            value, source = self.convert("fpext", value, dt.f16, dt.f32), dt.f32
        tn, sn = self.type_text(target), self.type_text(source)
        kind = "fptosi" if target.is_signed else "fptoui"
        callee = self.module.declare(f"llvm.{kind}.sat.{self.overload(target)}.{self.overload(source)}", tn, sn)
        return self.value(f"call {tn} {callee}({sn} {value})")

    def _int_to_float(self, value: str, source: DType, target: DType) -> str:
        kind = "sitofp" if source.is_signed else "uitofp"
        if target is not dt.f16:
            return self.convert(kind, value, source, target)
        # Every integer below the overflow threshold of f16 is exact in f64, so this rounds once.
        return self._float_to_float(self.convert(kind, value, source, dt.f64), dt.f64, dt.f16)

    def bitcast(self, op: Op) -> None:
        source = op.args[0]
        same = self.type_text(source.type) == self.type_text(op.type)
        self.env[op] = self.env[source] if same else self.value(f"bitcast {self.typed(source)} to {self.type_text(op.type)}")

    # --- functions ---

    def call(self, op: Op) -> None:
        args = ", ".join([self.typed(a) for a in op.args])
        callee, attributes = self.module.callee(op.attr, self.width)
        if not isinstance(op.type, tuple):
            self.set(op, f"call {self.type_text(op.type)} {callee}({args}){attributes}")
            return
        returned = returned_type(op.type)
        whole = self.value(f"call {returned} {callee}({args})")
        self.env[op] = [self.value(f"extractvalue {returned} {whole}, {k}") for k in range(len(op.type))]

    # --- vectors ---

    def new_array(self, t: Type) -> str:
        """Stack memory for a large vector, the same on every pass through this place."""
        assert isinstance(t, Vec)
        name = self.name()
        self.entry.append(f"  {name} = alloca [{t.n} x {type_name(t.elem)}], align 16")
        return name

    def copy_text(self, target: str, source: str, t: Type) -> str:
        assert isinstance(t, Vec)
        callee = self.module.declare("llvm.memcpy.p0.p0.i64", "void", "ptr, ptr, i64, i1")
        return f"  call void {callee}(ptr align 16 {target}, ptr align 16 {source}, i64 {t.n * t.elem.size}, i1 false)"

    def copied_array(self, source: str, t: Type) -> str:
        target = self.new_array(t)
        self.lines.append(self.copy_text(target, source, t))
        return target

    def element(self, array: str, t: Vec, index: str) -> str:
        """A pointer to an element of a large vector; ``index`` is typed."""
        return self.value(f"getelementptr inbounds {type_name(t.elem)}, ptr {array}, {index}")

    def vec(self, op: Op) -> None:
        assert isinstance(op.type, Vec)
        if is_array(op.type):
            self.env[op] = array = self.new_array(op.type)
            if all(self.env[arg] in _ZEROS for arg in op.args):
                callee = self.module.declare("llvm.memset.p0.i64", "void", "ptr, i8, i64, i1")
                self.line(f"call void {callee}(ptr align 16 {array}, i8 0, i64 {op.type.n * op.type.elem.size}, i1 false)")
                return
            for k, arg in enumerate(op.args):
                self.line(f"store {self.typed(arg)}, ptr {self.element(array, op.type, f'i64 {k}')}")
            return
        text = "poison"
        for k, arg in enumerate(op.args):
            text = self.value(f"insertelement {type_name(op.type)} {text}, {self.typed(arg)}, i32 {k}")
        self.env[op] = text

    def lane(self, index: Op, n: int) -> str:
        """``index`` typed, and within the vector: LLVM makes poison of what is outside."""
        t = index.type
        assert isinstance(t, DType)
        if index.code is ops.const:
            return f"i32 {min(max(int(index.attr), 0), n - 1)}"
        wide = self.resize(self.env[index], t, dt.i64 if t.is_signed else dt.u64)
        return f"i64 {self.call_intrinsic('umin', dt.u64, [wide, str(n - 1)])}"

    def extract(self, op: Op) -> None:
        vector, index = op.args
        assert isinstance(vector.type, Vec)
        lane = self.lane(index, vector.type.n)
        if is_array(vector.type):
            self.set(op, f"load {type_name(op.type)}, ptr {self.element(self.env[vector], vector.type, lane)}")
        else:
            self.set(op, f"extractelement {self.typed(vector)}, {lane}")

    def insert(self, op: Op) -> None:
        vector, index, value = op.args
        assert isinstance(vector.type, Vec)
        lane = self.lane(index, vector.type.n)
        if is_array(vector.type):
            place = self.env[vector]
            self.env[op] = array = place if self.last_uses.is_last(op, vector) else self.copied_array(place, vector.type)
            self.line(f"store {self.typed(value)}, ptr {self.element(array, vector.type, lane)}")
        else:
            self.set(op, f"insertelement {self.typed(vector)}, {self.typed(value)}, {lane}")

    # --- memory ---

    def slot_value(self, slot: Slot, type_text: str, size: int) -> str:
        """The entry of the argument block, loaded once on entry of the function."""
        key = (slot.offset, type_text)
        if key not in self._slots:
            name = f"%arg{slot.offset}.{type_text}"
            if slot.offset not in {offset for offset, _ in self._slots}:
                self.entry.append(f"  %at{slot.offset} = getelementptr inbounds i8, ptr %block, i64 {slot.offset}")
            self.entry.append(f"  {name} = load {type_text}, ptr %at{slot.offset}, align {size}, !invariant.load !0, !noundef !0")
            self._slots[key] = name
        return self._slots[key]

    def row(self, op: Op) -> None:
        """What tells the threads of a task apart, a parameter of tasks."""
        self.env[op] = "%row"

    def slot(self, op: Op) -> None:
        assert isinstance(op.attr, Slot) and isinstance(op.type, DType)
        if op.type is dt.u1:
            byte = self.slot_value(op.attr, "i8", 1)
            self.set(op, f"icmp ne i8 {byte}, 0")
        else:
            self.env[op] = self.slot_value(op.attr, type_name(op.type), op.type.size)

    def _suffix(self, ref: BufferRef) -> str:
        """Iterations of a parallel loop do not meet, except in tapes: those of one worker take turns there."""
        return "" if ref.slot.kind == "tapes" else self.memory_suffix

    def address(self, ref: Any, index: Op) -> str:
        """A pointer to an element, as an operand with its type."""
        return f"ptr {self.pointer(ref, index)}"

    def pointer(self, ref: Any, index: Op) -> str:
        assert isinstance(ref, BufferRef) and isinstance(index.type, DType)
        base = self.slot_value(ref.slot, "ptr", 8)
        value, it = self.env[index], index.type
        if not it.is_signed:  # indices are read as signed, so an unsigned one needs its zeros
            value, it = self.resize(value, it, dt.u64), dt.u64
        if ref.slot.kind == "tapes":
            value, it = self.tape_index(value, it)
        return self.value(f"getelementptr inbounds {type_name(ref.dtype)}, ptr {base}, {self.type_text(it)} {value}")

    def tape_index(self, index: str, t: DType) -> tuple[str, DType]:
        """Where an element of a tape lies, from its number in the rows of a thread; different where a thread has several rows."""
        return index, t

    def load(self, op: Op) -> None:
        pointer = self.address(op.attr, op.args[0])
        self.set(op, f"load {type_name(op.type)}, {pointer}, align {op.attr.dtype.size}{self._suffix(op.attr)}")

    def store(self, op: Op) -> None:
        index, value = op.args
        pointer = self.address(op.attr, index)
        self.line(f"store {self.typed(value)}, {pointer}, align {op.attr.dtype.size}{self._suffix(op.attr)}")

    def atomic(self, op: Op) -> None:
        kind, ref = op.attr
        spelling = ATOMIC_MAP[kind]
        assert spelling is not None, f"atomic {kind} must be lowered to a loop before it gets here"
        index, value = op.args
        pointer = self.address(ref, index)
        self.set(op, f"atomicrmw {pick(spelling, ref.dtype)} {pointer}, {self.typed(value)} monotonic, align {ref.dtype.size}")

    def cas(self, op: Op) -> None:
        index, expected, desired = op.args
        pointer = self.address(op.attr, index)
        size = op.attr.dtype.size
        pair = self.value(f"cmpxchg {pointer}, {self.typed(expected)}, {self.typed(desired)} monotonic monotonic, align {size}")
        self.set(op, f"extractvalue {{ {type_name(op.type)}, i1 }} {pair}, 0")

    def barrier(self, op: Op) -> None:
        self.line("fence seq_cst")


Handler = Callable[[FunctionEmitter, Op], None]


def _refuse(self: FunctionEmitter, op: Op) -> None:
    spelling = OP_MAP[op.code]
    assert isinstance(spelling, Unsupported)
    raise TypeError(f"{op.code.name} cannot be emitted: {spelling.reason}")


def _handler(spelling: Spelling) -> Handler:
    if isinstance(spelling, Emitted):
        method: Handler = getattr(FunctionEmitter, spelling.method)
        return method
    return _BY_FORM[type(spelling)]


_BY_FORM: dict[type, Handler] = {
    Instr: FunctionEmitter.instr,
    Compare: FunctionEmitter.compare,
    Intrinsic: FunctionEmitter.intrinsic,
    Math: FunctionEmitter.math,
    Unsupported: _refuse,
}
HANDLERS: dict[OpCode, Handler] = {code: _handler(spelling) for code, spelling in OP_MAP.items()}
