"""What emitters of loops in lockstep have in common: vectors with a value for each lane, and masks."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence

from spirograd.base.dtypes import DType, Type
from spirograd.ir.nodes import Op
from spirograd.ir.ops import OpCode
from spirograd.llvmgen.function import FunctionEmitter, Handler
from spirograd.llvmgen.module import Lanes, ModuleText, type_name


class VectorEmitter(FunctionEmitter):
    """Emits a range task for ``lanes`` iterations at once."""

    def __init__(self, module: ModuleText, handlers: Mapping[OpCode, Handler], lanes: int) -> None:
        super().__init__(module, handlers)
        self.lanes = lanes

    def vector_type(self, t: Type) -> str:
        """The LLVM type of a vector with a ``t`` for each lane."""
        assert isinstance(t, DType)
        return type_name(Lanes(self.lanes, t))

    def spread(self, text: str, t: Type) -> str:
        """A vector with ``text`` in all lanes."""
        if not text.startswith("%"):
            return f"splat ({type_name(t)} {text})"
        vector = self.vector_type(t)
        first = self.value(f"insertelement {vector} poison, {type_name(t)} {text}, i32 0")
        return self.value(f"shufflevector {vector} {first}, {vector} poison, <{self.lanes} x i32> zeroinitializer")

    @abstractmethod
    def effective(self) -> str:
        """The mask of the lanes in which effects take place."""

    @abstractmethod
    def note_first(self, op: Op, text: str) -> None:
        """``op`` is ``text`` in the first lane: addresses of neighbouring elements begin there."""

    def harmless_groups(self, values: Sequence[str], groups: Sequence[int], t: Type) -> list[str]:
        """``values`` of groups of lanes; where no lane of a group runs, that of a group which does."""
        return list(values)
