"""A builder of SPIR-V functions: instructions, variables, structured selections and loops.

Blocks are checked while they are built: an instruction outside of a block, a block that begins before the last one ends, or an unfinished
construct raises ModuleError.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from types import TracebackType

from spirograd.base.loc import Loc
from spirograd.spirvgen.grammar import GLSL, INSTRUCTION_NEEDS, OPCODES
from spirograd.spirvgen.module import Module, ModuleError, enumerant

_LOAD, _STORE, _EXT_INST, _LINE, _LABEL = (OPCODES[n] for n in ("Load", "Store", "ExtInst", "Line", "Label"))
_ALIGNED = enumerant("MemoryAccess", "Aligned")
_FUNCTION_STORAGE = enumerant("StorageClass", "Function")


def _closed(words: Iterable[int]) -> None:
    raise ModuleError("instruction outside of a block")


class Function:
    """A function: the entry point, which has no parameters and no result, or a called function, with the ids of its types.

    It has three lists of words: variables (first in SPIR-V), prologue (computed once, before everything else) and body.
    """

    def __init__(self, module: Module, name: str, result: int | None = None, params: Sequence[int] = ()) -> None:
        self.module = module
        self.id = module.new_id()
        module.name(self.id, name)
        self.result = module.type_void if result is None else result
        self._param_types = tuple(params)
        self.params = [module.new_id() for _ in params]
        self._variables: list[int] = []
        self._prologue: list[int] = []
        self._body: list[int] = []
        self._extend = self._body.extend
        self._open = True
        self._prologue_open = False
        self._line: tuple[int, int, int] | None = None
        self._files: dict[str, int] = {}
        self._constructs = 0

    # --- instructions ----------------------------------------------------------------------------------------------------

    def do(self, name: str, *operands: int) -> None:
        """Append an instruction without a result."""
        if name in INSTRUCTION_NEEDS:
            self.module.require_instruction(name)
        self._extend(((len(operands) + 1) << 16 | OPCODES[name], *operands))

    def value(self, name: str, type_id: int, *operands: int) -> int:
        """Append an instruction with a result, and return its id."""
        module = self.module
        if name in INSTRUCTION_NEEDS:
            module.require_instruction(name)
        rid = module.bound
        module.bound = rid + 1
        self._extend(((len(operands) + 3) << 16 | OPCODES[name], type_id, rid, *operands))
        return rid

    def glsl(self, name: str, type_id: int, *operands: int) -> int:
        """Append an instruction of GLSL.std.450, and return its id."""
        module = self.module
        imported = module.glsl
        rid = module.bound
        module.bound = rid + 1
        self._extend(((len(operands) + 5) << 16 | _EXT_INST, type_id, rid, imported, GLSL[name], *operands))
        return rid

    @property
    def shared_access(self) -> int:
        """Return the operand of accesses to memory that invocations share."""
        return self.module.shared_access

    def load(self, type_id: int, pointer: int, aligned: int = 0, access: int = 0) -> int:
        """Append OpLoad. ``aligned``: the alignment in bytes that a physical pointer needs, 0 for other pointers; ``access``: its
        operand."""
        module = self.module
        rid = module.bound
        module.bound = rid + 1
        if aligned:
            self._extend((6 << 16 | _LOAD, type_id, rid, pointer, _ALIGNED | access, aligned))
        elif access:
            self._extend((5 << 16 | _LOAD, type_id, rid, pointer, access))
        else:
            self._extend((4 << 16 | _LOAD, type_id, rid, pointer))
        return rid

    def store(self, pointer: int, value: int, aligned: int = 0, access: int = 0) -> None:
        if aligned:
            self._extend((5 << 16 | _STORE, pointer, value, _ALIGNED | access, aligned))
        elif access:
            self._extend((4 << 16 | _STORE, pointer, value, access))
        else:
            self._extend((3 << 16 | _STORE, pointer, value))

    def variable(self, type_id: int, name: str = "", initial: int | None = None) -> int:
        """Declare a Function variable at the top. ``initial``: a constant."""
        module = self.module
        pointer = module.pointer("Function", type_id)
        rid = module.new_id()
        words = () if initial is None else (initial,)
        self._variables.extend((4 + len(words) << 16 | OPCODES["Variable"], pointer, rid, _FUNCTION_STORAGE, *words))
        module.name(rid, name)
        return rid

    def prologue(self) -> Prologue:
        """Append the instructions of a ``with`` block to the prologue of the function."""
        return Prologue(self)

    def line(self, loc: Loc) -> None:
        """Append OpLine if the position changed since the last one of this block."""
        file = self._files.get(loc.file)
        if file is None:
            file = self._files[loc.file] = self.module.string(loc.file)
            self.module.source(loc.file)
        key = (file, loc.line, loc.col)
        if key != self._line:
            self._line = key
            self._extend((4 << 16 | _LINE, *key))

    # --- blocks ------------------------------------------------------------------------------------------------------------

    def label(self, block: int) -> None:
        """Open block ``block``."""
        if self._open:
            raise ModuleError("a block is opened before the last one has ended")
        self._open = True
        self._line = None
        self._body.extend((2 << 16 | _LABEL, block))
        self._extend = self._body.extend

    def _terminate(self, name: str, *operands: int) -> None:
        if not self._open or self._prologue_open:
            raise ModuleError(f"{name} outside of a block")
        self.do(name, *operands)
        self._open = False
        self._extend = _closed

    def branch(self, block: int) -> None:
        self._terminate("Branch", block)

    def branch_if(self, condition: int, then: int, otherwise: int) -> None:
        self._terminate("BranchConditional", condition, then, otherwise)

    def selection(self, condition: int, otherwise: bool = False) -> Selection:
        """Begin a selection: ``with function.selection(c) as s: ... ; s.otherwise() ; ...``. `otherwise` must be called if and only if
        announced."""
        return Selection(self, condition, otherwise)

    def loop(self, separate_condition: bool = False) -> Loop:
        """Begin a loop: ``with function.loop() as l: <condition> ; l.test(c) ; <body> ; l.step() ; <increment>``.

        The condition is computed in the header, so it may have no control flow unless ``separate_condition``.
        """
        return Loop(self, separate_condition)

    def finish(self, value: int | None = None) -> None:
        """Return from the function, with ``value`` if it has a result, and append it to the module."""
        if self._constructs:
            raise ModuleError("function finished inside of a construct")
        if value is None:
            self._terminate("Return")
        else:
            self._terminate("ReturnValue", value)
        module = self.module
        none = enumerant("FunctionControl", "None")
        signature = module.intern("TypeFunction", self.result, *self._param_types)
        module.add("function", "Function", self.result, self.id, none, signature)
        for t, param in zip(self._param_types, self.params):
            module.add("function", "FunctionParameter", t, param)
        module.add("function", "Label", module.new_id())
        words = module.sections["function"]
        words += self._variables
        words += self._prologue
        words += self._body
        module.add("function", "FunctionEnd")


class Prologue:
    """A context in which instructions go to the prologue of the function."""

    def __init__(self, function: Function) -> None:
        self._function = function

    def __enter__(self) -> None:
        function = self._function
        self._saved = (function._extend, function._line, function._prologue_open)
        function._extend = function._prologue.extend
        function._prologue_open = True

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._function._extend, self._function._line, self._function._prologue_open = self._saved


class Selection:
    """A structured `if`."""

    def __init__(self, function: Function, condition: int, otherwise: bool) -> None:
        module = function.module
        self._function = function
        self._merge = module.new_id()
        self._then = module.new_id()
        self._otherwise = module.new_id() if otherwise else self._merge
        self._pending = otherwise
        self._condition = condition

    def __enter__(self) -> Selection:
        function = self._function
        function.do("SelectionMerge", self._merge, 0)
        function.branch_if(self._condition, self._then, self._otherwise)
        function.label(self._then)
        function._constructs += 1
        return self

    def otherwise(self) -> None:
        """End the first branch, begin the second."""
        if not self._pending:
            raise ModuleError("a selection has no second branch")
        self._pending = False
        self._function.branch(self._merge)
        self._function.label(self._otherwise)

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if kind is not None:
            return
        if self._pending:
            raise ModuleError("a selection lacks its second branch")
        self._function.branch(self._merge)
        self._function.label(self._merge)
        self._function._constructs -= 1


class Loop:
    """A structured loop: header, body, continue block, merge block."""

    def __init__(self, function: Function, separate_condition: bool) -> None:
        module = function.module
        self._function = function
        self._header, self._body, self._continue, self._merge = (module.new_id() for _ in range(4))
        self._separate = separate_condition
        self._state = "condition"

    def _open(self) -> None:
        self._function.do("LoopMerge", self._merge, self._continue, 0)

    def __enter__(self) -> Loop:
        function = self._function
        function.branch(self._header)
        function.label(self._header)
        if self._separate:
            self._open()
            condition = function.module.new_id()
            function.branch(condition)
            function.label(condition)
        function._constructs += 1
        return self

    def test(self, condition: int) -> None:
        """Stay in the loop while ``condition`` holds; the body follows."""
        if self._state != "condition":
            raise ModuleError("a loop is tested twice")
        self._state = "body"
        if not self._separate:
            self._open()
        self._function.branch_if(condition, self._body, self._merge)
        self._function.label(self._body)

    def step(self) -> None:
        """End the body. The following instructions run between iterations."""
        if self._state != "body":
            raise ModuleError("a loop steps before its test, or twice")
        self._state = "step"
        self._function.branch(self._continue)
        self._function.label(self._continue)

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if kind is not None:
            return
        if self._state != "step":
            raise ModuleError("a loop is unfinished")
        self._function.branch(self._header)
        self._function.label(self._merge)
        self._function._constructs -= 1
