"""A large parallel loop as stages (see `stages`): a function for each, called on one block of iterations after the other."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from spirograd.base.dtypes import DType, Type, i8, u1
from spirograd.ir.nodes import LoopAttr, Op, Region
from spirograd.ir.ops import OpCode
from spirograd.llvmgen.emit_control import counted_loop, loop_metadata
from spirograd.llvmgen.function import FunctionEmitter, Handler, Phis
from spirograd.llvmgen.module import BLOCK_PARAMETER, ModuleText, type_name
from spirograd.llvmgen.parts import Parts, PartsEmitter
from spirograd.llvmgen.stages import Stage, Stages

_SUM = 8  # bytes for an accumulator


class DistributedEmitter(PartsEmitter):
    """Emits the function ``name``, whose loop over a chunk consists of ``found``. ``attr_of``: the attribute of the loop over a stage.

    A block has a frame on the stack: the accumulators, then the values that cross from stage to stage.
    """

    def __init__(
        self,
        module: ModuleText,
        handlers: Mapping[OpCode, Handler],
        name: str,
        parts: Parts,
        found: Stages,
        attr_of: Callable[[Region], LoopAttr],
    ) -> None:
        super().__init__(module, handlers, name, parts)
        self._found = found
        self._attr_of = attr_of

    def iterations(
        self, index: Type, begin: str, end: str, types: Sequence[Type], initial: Sequence[str], body: Region, suffix: str
    ) -> list[str]:
        assert isinstance(index, DType)
        it, less, found = type_name(index), "slt" if index.is_signed else "ult", self._found
        frame = self.name()
        self.entry.append(f"  {frame} = alloca [{_start(len(types)) + found.block * found.frame} x i8], align 64")
        for k, (t, value) in enumerate(zip(types, initial)):
            self.line(f"store {type_name(t)} {value}, ptr {_at(self, frame, k * _SUM)}")
        loop, done = self.new_labels("block", "block.end")
        some = self.value(f"icmp {less} {it} {begin}, {end}")
        before = self.label
        self.line(f"br i1 {some}, label %{loop}, label %{done}")
        self.start(loop)
        phis = Phis(self, [it])
        (first,) = phis.names
        left = self.value(f"sub {it} {end}, {first}")
        stop = self.value(f"add {it} {first}, {self.call_intrinsic('umin', index, [left, str(found.block)])}")
        outer = "".join([f", {self.typed(v)}" for v in found.outer])
        for stage in found.stages:
            args = f"ptr %block, ptr {frame}, {it} {first}, {it} {stop}, i32 %slot{outer}"
            self.line(f"call void @{self._stage(stage, index, types)}({args})")
        again = self.value(f"icmp {less} {it} {stop}, {end}")
        self.line(f"br i1 {again}, label %{loop}, label %{done}")
        phis.fill(([begin], before), ([stop], loop))
        self.start(done)
        return [self.value(f"load {type_name(t)}, ptr {_at(self, frame, k * _SUM)}") for k, t in enumerate(types)]

    def _stage(self, stage: Stage, index: DType, types: Sequence[Type]) -> str:
        """Define the function that runs ``stage`` on the iterations from %first to %stop; returns its name."""
        name, it = self.module.unique(f"{self.function}.stage"), type_name(index)
        memory_suffix, suffix = loop_metadata(self, self._attr_of(stage.body))
        emitter = _StageEmitter(self, stage, self._found, _start(len(types)), memory_suffix)
        emitter.last_uses.scan(stage.body)
        emitter.bind(self._found.outer, [f"%outer{k}" for k in range(len(self._found.outer))])
        for op in stage.remade:
            emitter.emit(op)
        places = [_at(emitter, "%frame", k * _SUM) for k in range(len(types))]
        initial = [emitter.value(f"load {type_name(t)}, ptr {place}") for t, place in zip(types, places)]
        values = counted_loop(emitter, index, "%first", "%stop", types, initial, stage.body, suffix)
        for t, place, value in zip(types, places, values):
            emitter.line(f"store {type_name(t)} {value}, ptr {place}")
        outer = "".join([f", {type_name(v.type)} %outer{k}" for k, v in enumerate(self._found.outer)])
        params = f"{BLOCK_PARAMETER}, ptr noalias nonnull align 64 captures(none) %frame, {it} %first, {it} %stop, i32 %slot{outer}"
        head = f"define internal void @{name}({params}) noinline nounwind"
        self.module.functions.append(f"{head} {{\n{emitter.body_text()}\n  ret void\n}}\n")
        return name


class _StageEmitter(PartsEmitter):
    """Emits one stage: what crosses is loaded at the beginning of its body, and stored at the end. ``start``: where it begins in %frame."""

    def __init__(self, caller: DistributedEmitter, stage: Stage, found: Stages, start: int, memory_suffix: str) -> None:
        super().__init__(caller.module, caller.handlers, caller.function, caller.parts, memory_suffix)
        self._stage, self._found, self._start = stage, found, start

    def region(self, region: Region) -> list[str]:
        if region is not self._stage.body:
            return super().region(region)
        index = region.params[0]
        it = type_name(index.type)
        number = f"{it} {self.value(f'sub {it} {self.operand(index)}, %first')}"
        for value in self._stage.loaded:
            text = self.value(f"load {_stored_type(value)}, {self._entry(value, number)}{self.memory_suffix}")
            self.env[value] = self.value(f"trunc i8 {text} to i1") if value.type is u1 else text
        results = super().region(region)
        for value in self._stage.stored:
            text = self.operand(value)
            if value.type is u1:
                text = self.value(f"zext i1 {text} to i8")
            self.line(f"store {_stored_type(value)} {text}, {self._entry(value, number)}{self.memory_suffix}")
        return results

    def _entry(self, value: Op, number: str) -> str:
        """Where iteration ``number`` of the block has ``value``, as an operand with its type."""
        place = _at(self, "%frame", self._start + self._found.places[value] * self._found.block)
        return f"ptr {self.value(f'getelementptr inbounds {_stored_type(value)}, ptr {place}, {number}')}"


def _at(emitter: FunctionEmitter, frame: str, place: int) -> str:
    return emitter.value(f"getelementptr inbounds i8, ptr {frame}, i64 {place}")


def _start(sums: int) -> int:
    """Where the values of a frame begin, after so many accumulators."""
    return -(-_SUM * sums // 64) * 64


def _stored_type(value: Op) -> str:
    return type_name(i8 if value.type is u1 else value.type)
