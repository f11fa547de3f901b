"""Functions that a kernel calls, as LLVM functions on one value, and on vectors for loops that are vectorised. Functions that access memory
take the entries of the argument block that they use as their last parameters."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from spirograd.base.caps import Capabilities
from spirograd.base.dtypes import DType
from spirograd.ir import ops
from spirograd.ir.nodes import BufferRef, Function, Kernel, Region, called, callee_of, ref_of
from spirograd.ir.vector_functions import has_vector_forms, on_lanes
from spirograd.llvmgen.function import STACK_LIMIT, BlockEntry, FunctionEmitter, entry_of
from spirograd.llvmgen.module import NO_LIBRARY, ModuleText, returned_type, symbol, type_name

# The most calls in a kernel that LLVM may inline. Kernels with many calls have functions to stay small.
_FEW = 8


def vector_widths(caps: Capabilities) -> tuple[int, ...]:
    """Return the numbers of lanes at which LLVM may vectorise a loop that calls a function: those of f64 and of f32 in a register. None on
    GPUs, whose invocations are scalar."""
    if caps.target.invocations:
        return ()
    if "+avx512f" in caps.cpu_features:
        return (4, 8, 16)
    return (4, 8) if "+avx2" in caps.cpu_features else (2, 4)


class Callees:
    """The functions of ``kernel`` that are called, defined in ``module`` once for each number of lanes.

    ``new_emitter``: returns an emitter of a function on single values.
    """

    def __init__(self, module: ModuleText, new_emitter: Callable[[], FunctionEmitter], kernel: Kernel) -> None:
        self._module = module
        self._new_emitter = new_emitter
        module.callee, module.memory_callee = self.callee, self.memory_callee
        self._functions = {f.name: f for f in kernel.functions}
        self._looping = kernel.looping()
        self._many = bool(kernel.functions) and sum([callee_of(op) is not None for op in kernel.walk()]) > _FEW
        self._symbols: dict[tuple[str, int], str] = {}
        self._variants: dict[str, str] = {}
        self._entries: dict[str, list[BlockEntry] | tuple[BlockEntry, ...]] = {}  # the entries of functions that access memory
        self._kernel = kernel
        self._recursive = kernel.recursive()

    def memory_callee(self, name: str) -> tuple[str, Sequence[BlockEntry]]:
        """Return the text before the arguments of a call, and the entries of the argument block that follow them."""
        if name not in self._entries:
            if name in self._recursive:
                self._entries |= dict.fromkeys(self._recursive, self._recursive_entries())
            else:
                self._entries[name] = []
        self._defined(name, 1)
        return f"@{self._symbols[name, 1]}", self._entries[name]

    def _recursive_entries(self) -> tuple[BlockEntry, ...]:
        """Return the entries that any recursive function or its callees use. A call of such a function is emitted before all of its uses
        are known, so every recursive function takes all entries."""
        pointer = self._new_emitter().buffer_pointer
        entries = {STACK_LIMIT: None}
        reached = called(self._kernel.functions, [f.body for f in self._kernel.functions if f.name in self._recursive])
        for function in (*[f for f in self._kernel.functions if f.name in self._recursive], *reached):
            for op in function.body.walk():
                ref = ref_of(op)
                if op.code is ops.slot:
                    assert isinstance(op.type, DType)
                    entries[entry_of(op.attr, op.type)] = None
                elif isinstance(ref, BufferRef):
                    entries[BlockEntry(ref.slot, pointer, 8)] = None
        return tuple(entries)

    def callee(self, name: str, lanes: int) -> tuple[str, str]:
        """Return the text before and behind the arguments of a call on ``lanes`` lanes."""
        vectorised = lanes == 1 and bool(vector_widths(self._module.caps)) and has_vector_forms(self._functions[name])
        return f"@{self._defined(name, lanes)}", f" {self._vector_forms(name)}" if vectorised else ""

    def _vector_forms(self, name: str) -> str:
        """Return the attribute of a call of the scalar function that names its vector forms, which LLVM may call instead."""
        if name not in self._variants:
            params = "v" * len(self._functions[name].body.params)
            scalar = self._defined(name, 1)
            variants = []
            for lanes in vector_widths(self._module.caps):
                vector = self._defined(name, lanes)
                self._module.used[vector] = None
                variants.append(f"_ZGV_LLVM_N{lanes}{params}_{scalar}({vector})")
            self._variants[name] = self._module.attribute_group(f'"vector-function-abi-variant"="{",".join(variants)}"')
        return self._variants[name]

    def _defined(self, name: str, lanes: int) -> str:
        callee = self._symbols.get((name, lanes))
        if callee is None:
            callee = self._symbols[name, lanes] = self._module.unique(symbol(f"sg.{name}" if lanes == 1 else f"sg.{name}.v{lanes}"))
            self._module.functions.append(self._definition(callee, self._functions[name], lanes))
        return callee

    def _definition(self, name: str, function: Function, lanes: int) -> str:
        emitter = self._new_emitter()
        emitter.entries = self._entries.get(function.name)
        body = function.body if lanes == 1 else on_lanes(function, lanes)
        emitter.last_uses.scan(body)
        emitter.bind(body.params, [f"%p{k}" for k in range(len(body.params))])
        emitter.region(body)
        kind, returned = self._returned(emitter, body)
        params = [f"{type_name(p.type)} %p{k}" for k, p in enumerate(body.params)]
        params += [f"{entry.type} {entry.name}" for entry in emitter.entries or ()]
        no_library = f" {NO_LIBRARY}" if self._module.caps.target.invocations else ""
        group = self._module.attribute_group(self._attributes(function) + no_library)
        return f"define internal {kind} @{name}({', '.join(params)}) {group} {{\n{emitter.body_text()}\n  {returned}\n}}\n"

    def _returned(self, emitter: FunctionEmitter, body: Region) -> tuple[str, str]:
        """Return the type of the result of a function with this body, and the instruction at its end."""
        results = body.results
        if not results:
            return "void", "ret void"
        if len(results) == 1:
            return type_name(results[0].type), f"ret {emitter.typed(results[0])}"
        kind, returned = returned_type([value.type for value in results]), "poison"
        for k, value in enumerate(results):
            returned = emitter.value(f"insertvalue {kind} {returned}, {emitter.typed(value)}, {k}")
        return kind, f"ret {kind} {returned}"

    def _attributes(self, function: Function) -> str:
        """Return the attributes of a function. Both arms of a branch may call a function without loops, because it returns for any
        operands. A recursive function does call itself, so that endless recursion reaches the end of the stack instead of running for
        ever."""
        inlined, returns = "noinline " if self._many else "", "" if function.name in self._looping else " willreturn speculatable"
        if function.name in self._recursive:
            return f'{inlined}nounwind "disable-tail-calls"="true"'
        if function.name in self._entries:
            return f"{inlined}nounwind"
        return f"{inlined}nounwind memory(none){returns}"
