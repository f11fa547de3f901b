"""The emitter of one LLVM function: its text, the operand of each value, and the text of types, operands and addresses.

An emitter takes the table that maps operations to emitters. `op_map` has the table of the CPU, whose functions lie in ``emit_*.py``. A
subclass emits for another target: it changes the text of operands and the access to the argument block."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from spirograd.base import dtypes as dt
from spirograd.base.artifact import Slot
from spirograd.base.dtypes import DType, Lanes, Type, scalar_of
from spirograd.base.loc import Loc
from spirograd.ir.integer_ranges import Range
from spirograd.ir.last_uses import LastUses
from spirograd.ir.nodes import BufferRef, Op, Region, SharedRef
from spirograd.ir.ops import OpCode
from spirograd.llvmgen import abi, half
from spirograd.llvmgen.module import ModuleText, is_array, symbol, type_name

# A function that appends the instructions of an operation, and sets its result.
Handler = Callable[["FunctionEmitter", Op], None]
_STACK_ALIGNMENT = 64
_OVERLOADS = {dt.f16: "f16", dt.f32: "f32", dt.f64: "f64"}


class BlockEntry(NamedTuple):
    """An entry of the argument block: the LLVM type that is read, and its bytes."""

    slot: Slot
    type: str
    size: int

    @property
    def name(self) -> str:
        """Return the name of the value in a function."""
        return f"%arg{self.slot.offset}.{symbol(self.type)}"


def entry_of(slot: Slot, t: DType) -> BlockEntry:
    """Return the entry that a value of type ``t`` is read from."""
    return BlockEntry(slot, "i8", 1) if t is dt.u1 else BlockEntry(slot, type_name(t), t.size)


# A value that is passed like an entry of the argument block: the lowest address at which the stack has space for a call of a recursive
# function.
STACK_LIMIT = BlockEntry(Slot("stack_limit", offset=-1), "i64", 8)


def overload(t: Type) -> str:
    """Return a type in the name of an intrinsic."""
    scalar = scalar_of(t)
    return f"{f'v{t.n}' if isinstance(t, Lanes) else ''}{_OVERLOADS.get(scalar) or type_name(scalar)}"


class FunctionEmitter:
    """An emitter of one function. Its first parameter is ``ptr %block``, the argument block. If ``entries`` is a list, its last parameters
    are the entries of the block that it uses, which the list collects; a tuple has them all.

    Loads from the argument block are collected separately, for the entry block. ``handlers``: the emitter of each operation.
    """

    buffer_pointer = "ptr"  # the type of pointers into buffers
    atomic_scope = ""  # the threads between which atomics are atomic: ' syncscope("...")', or all of them
    atomic_metadata = ""  # properties of the memory of atomics

    def __init__(self, module: ModuleText, handlers: Mapping[OpCode, Handler]) -> None:
        self.module = module
        self.handlers = handlers
        self.memory_suffix = ""  # metadata for every plain load and store
        self.lines: list[str] = []
        self.entry: list[str] = []
        self.function = ""  # its symbol
        self.label = "entry.end"  # the label of the current block
        self.env: dict[Op, Any] = {}  # operation -> operand text (control operations: a list of them)
        self.last_uses = LastUses(is_array)
        self.ranges: dict[Op, Range] = {}  # the ranges of integers, see `range_of`
        self.loc: Loc | None = None
        # Other 64-bit CPUs have fused multiply-add; old x86 would call a slow function of libm.
        self.has_fma = "+fma" in module.caps.cpu_features or not half.is_x86(module.caps)
        self.entries: list[BlockEntry] | tuple[BlockEntry, ...] | None = None
        self.locals: dict[SharedRef, str] = {}  # addresses of memory of the function, or of its caller
        self._slots: dict[tuple[int, str], str] = {}
        self._count = 0

    # --- text ---

    def name(self) -> str:
        self._count += 1
        return f"%v{self._count}"

    def line(self, text: str) -> None:
        self.lines.append("  " + text)

    def value(self, text: str) -> str:
        """Append an instruction with a result. Return the result."""
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

    def body_text(self) -> str:
        """Return the text from the label of the entry block to the return of the function."""
        return "\n".join(["entry:", *self.entry, "  br label %entry.end", "entry.end:", *self.lines])

    def operand(self, op: Op) -> str:
        text: str = self.env[op]
        return text

    def typed(self, op: Op) -> str:
        return f"{type_name(op.type)} {self.env[op]}"

    def set(self, op: Op, text: str) -> None:
        """Append an instruction whose result is ``op``."""
        self.env[op] = self.value(text)

    def bind(self, params: Sequence[Op], values: Sequence[str]) -> None:
        self.env.update(zip(params, values))

    # --- regions ---

    def emit(self, op: Op) -> None:
        """Append the instructions of one operation."""
        self.handlers[op.code](self, op)

    def region(self, region: Region) -> list[str]:
        """Emit the operations of a region here. Return the operands that it yields."""
        handlers = self.handlers
        for op in region.ops[:-1]:
            if op.loc is not self.loc:
                self.at(op.loc)
            handlers[op.code](self, op)
        return [self.env[v] for v in region.results]

    def at(self, loc: Loc | None) -> None:
        """Append a comment with the source location of the following code if it changes."""
        if loc is not None:
            if self.loc is None or (loc.line, loc.file) != (self.loc.line, self.loc.file):
                self.lines.append(f"  ; {loc.file}:{loc.line}")
            self.loc = loc

    # --- arithmetic ---

    def flags(self, op: Op) -> str:
        """Return the fast-math flags, or nsw/nuw."""
        t = scalar_of(op.type)
        if t.is_float:
            # There is no "contract": `fma` marks contraction.
            return "reassoc nsz " if op.attr == "reassoc" else ""
        if op.attr == "nsw":
            return "nsw " if t.is_signed else "nuw "
        return ""

    def call_intrinsic(self, name: str, t: Type, args: Sequence[str], flags: str = "", tail: str = "") -> str:
        """Call `llvm.<name>.<t>` on operands of type ``t``, which is also the type of the result."""
        tn = type_name(t)
        params = ", ".join([tn] * len(args)) + (", i1" if tail else "")
        target = self.module.declare(f"llvm.{name}.{overload(t)}", tn, params)
        return self.value(f"call {flags}{tn} {target}({', '.join(f'{tn} {a}' for a in args)}{tail})")

    def convert(self, kind: str, value: str, source: Type, target: Type) -> str:
        return self.value(f"{kind} {type_name(source)} {value} to {type_name(target)}")

    def resize(self, value: str, source: Type, target: Type) -> str:
        """Return an integer as one of another width."""
        narrow, wide = scalar_of(target), scalar_of(source)
        if wide.bits == narrow.bits:
            return value
        kind = "trunc" if narrow.bits < wide.bits else "sext" if wide.is_signed else "zext"
        return self.convert(kind, value, source, target)

    # --- the argument block and addresses ---

    def slot_value(self, slot: Slot, type_text: str, size: int) -> str:
        """Return the entry of the argument block: a parameter, or loaded once on entry of the function."""
        key = (slot.offset, type_text)
        if key not in self._slots:
            entry = BlockEntry(slot, type_text, size)
            name = self._slots[key] = entry.name
            if self.entries is not None:
                if entry not in self.entries:
                    assert isinstance(self.entries, list), f"{entry} is missing among the entries of a function that calls itself"
                    self.entries.append(entry)
                return name
            if slot is STACK_LIMIT.slot:
                self.entry += self.stack_limit(name)
                return name
            if [offset for offset, _ in self._slots].count(slot.offset) == 1:
                self.entry.append(f"  %at{slot.offset} = getelementptr inbounds i8, ptr %block, i64 {slot.offset}")
            known = self.pointer_properties(slot) if slot.is_buffer else ""
            self.entry.append(f"  {name} = load {type_text}, ptr %at{slot.offset}, align {size}, !invariant.load !0, !noundef !0{known}")
        return self._slots[key]

    def pointer_properties(self, slot: Slot) -> str:
        """Return what is known of the pointer to a buffer, as metadata.

        Fields are in allocations of the device, so a load near their begin cannot fault: LLVM moves it out of a branch, and out of a loop
        over iterations that read the same element. Without this, its vectors gather that element for each lane."""
        if slot.kind != "tree":
            return ""
        return f", !align {self.module.bytes_node(abi.ALIGNMENT)}, !dereferenceable {self.module.bytes_node(abi.GUARD_BYTES)}"

    def stack_limit(self, name: str) -> list[str]:
        """Return the lines of the entry block of a task that set ``name`` to `STACK_LIMIT`."""
        return [f"  {name} = call i64 {self.module.declare(abi.STACK_LIMIT, 'i64', '', ' nounwind')}()"]

    def address(self, ref: object, index: Op) -> str:
        """Return a pointer to an element, as an operand with its type."""
        if isinstance(ref, SharedRef):
            return f"ptr {self._on_stack(ref, index)}"
        return f"{self.buffer_pointer} {self.pointer(ref, index)}"

    def _on_stack(self, ref: SharedRef, index: Op) -> str:
        """Return a pointer to an element of memory of the function."""
        t = type_name(ref.dtype)
        return self.value(f"getelementptr inbounds {t}, ptr {self.local_memory(ref)}, {type_name(index.type)} {self.env[index]}")

    def local_memory(self, ref: SharedRef) -> str:
        """Return the address of memory on the stack: of a chunk, or of a group, which one thread runs."""
        array = self.locals.get(ref)
        if array is None:
            array = self.locals[ref] = self.name()
            self.entry.append(self.module.stack(array, f"[{ref.length} x {type_name(ref.dtype)}]", _STACK_ALIGNMENT))
        return array

    def pointer(self, ref: object, index: Op) -> str:
        """Return a pointer to an element without its type; on several lanes, one for each."""
        assert isinstance(ref, BufferRef)
        base = self.slot_value(ref.slot, self.buffer_pointer, 8)
        value, it = self.env[index], index.type
        if not scalar_of(it).is_signed:  # Indices are read as signed, so an unsigned one is zero-extended.
            value, it = self.resize(value, it, dt.u64), dt.u64
        return self.value(f"getelementptr inbounds {type_name(ref.dtype)}, {self.buffer_pointer} {base}, {type_name(it)} {value}")

    def access_suffix(self, ref: BufferRef | SharedRef) -> str:
        """Return metadata for plain accesses to ``ref``. Iterations of a parallel loop access disjoint memory, except in adstacks, where
        the iterations of one worker share a thread slot."""
        return "" if isinstance(ref, BufferRef) and ref.slot.kind == "adstacks" else self.memory_suffix


class Phis:
    """Phis at the start of the current block. Their lines are written last, because the values of the branch back are known only after the
    body."""

    def __init__(self, e: FunctionEmitter, types: Sequence[str]) -> None:
        self.names = [e.name() for _ in types]
        self._types, self._lines, self._start = types, e.lines, len(e.lines)
        e.lines += [""] * len(types)

    def fill(self, *ways: tuple[Sequence[str], str]) -> None:
        """Write the phis. ``ways``: the values that come from each predecessor, and its label."""
        for k, (name, t) in enumerate(zip(self.names, self._types)):
            values = ", ".join([f"[ {texts[k]}, %{label} ]" for texts, label in ways])
            self._lines[self._start + k] = f"  {name} = phi {t} {values}"
