"""Functions that a kernel calls, as LLVM functions: on one value, and on vectors of them for loops that are vectorised."""

from __future__ import annotations

from collections.abc import Sequence

from spirograd.base.caps import Capabilities
from spirograd.base.dtypes import DType, Type
from spirograd.ir.nodes import Function, Op
from spirograd.llvmgen.function import FunctionEmitter
from spirograd.llvmgen.module import Lanes, ModuleText, literal, symbol, type_name

# Not inlined: that there are many calls is why there is a function. Without effects, so that both arms of a branch may call it.
_ATTRIBUTES = "noinline nounwind willreturn speculatable memory(none)"


class _WideEmitter(FunctionEmitter):
    """Emits plain operations on vectors of ``width`` lanes, constants included."""

    def __init__(self, module: ModuleText, width: int) -> None:
        super().__init__(module)
        self._width = width

    @property
    def width(self) -> int:
        return self._width

    def type_text(self, t: Type) -> str:
        assert isinstance(t, DType)
        return type_name(Lanes(self._width, t))

    def overload(self, t: DType) -> str:
        return f"v{self._width}{super().overload(t)}"

    def literal(self, value: float, t: DType) -> str:
        return f"splat ({type_name(t)} {literal(value, t)})"

    def operand(self, op: Op) -> str:
        text = super().operand(op)
        return text if text.startswith("%") else f"splat ({type_name(op.type)} {text})"


def vector_widths(caps: Capabilities) -> tuple[int, ...]:
    """The numbers of lanes at which LLVM may vectorise a loop that calls a function: those of f64 and of f32 in a register."""
    if "+avx512f" in caps.cpu_features:
        return (4, 8, 16)
    return (4, 8) if "+avx2" in caps.cpu_features else (2, 4)


class Callees:
    """Defines in ``module`` those of ``functions`` that are called, each as often as it is called on another number of lanes."""

    def __init__(self, module: ModuleText, functions: Sequence[Function]) -> None:
        self._module = module
        self._functions = {f.name: f for f in functions}
        self._symbols: dict[tuple[str, int], str] = {}
        self._variants: dict[str, str] = {}

    def callee(self, name: str, lanes: int) -> tuple[str, str]:
        """What stands before and behind the arguments of a call on ``lanes`` lanes."""
        return f"@{self._defined(name, lanes)}", f" {self._vector_forms(name)}" if lanes == 1 else ""

    def _vector_forms(self, name: str) -> str:
        """The attribute of a call of the scalar function that names its vector forms, which LLVM may call instead."""
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
        found = self._symbols.get((name, lanes))
        if found is None:
            found = self._symbols[name, lanes] = self._module.unique(symbol(f"sg.{name}" if lanes == 1 else f"sg.{name}.v{lanes}"))
            self._module.functions.append(self._definition(found, self._functions[name], lanes))
        return found

    def _definition(self, name: str, function: Function, lanes: int) -> str:
        emitter = FunctionEmitter(self._module) if lanes == 1 else _WideEmitter(self._module, lanes)
        body = function.body
        emitter.bind(body.params, [f"%p{k}" for k in range(len(body.params))])
        emitter.region(body)
        returned = emitter.typed(body.results[0])
        params = ", ".join([f"{emitter.type_text(p.type)} %p{k}" for k, p in enumerate(body.params)])
        lines = "\n".join([*emitter.lines, f"  ret {returned}"])
        group = self._module.attribute_group(_ATTRIBUTES)
        return f"define internal {emitter.type_text(body.results[0].type)} @{name}({params}) {group} {{\n{lines}\n}}\n"
