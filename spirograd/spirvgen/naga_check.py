"""The subset of SPIR-V that naga, the front end of wgpu, compiles correctly. naga rejects some valid modules, silently miscompiles others,
and a few end the process; spirv-val detects none of these. Modules of the ``wgpu`` target are therefore checked against a list of tested
features (wgpu-native 29).

The list contains only features that the emitter uses. Anything else is a defect of the emitter, which this check reports before it becomes
a wrong number.
"""

from __future__ import annotations

import struct

from spirograd.spirvgen.disasm import instructions
from spirograd.spirvgen.grammar import ENUMERANTS, GLSL, INSTRUCTIONS, OPCODES
from spirograd.spirvgen.module import ModuleError

_NAMES = {number: name for name, number in OPCODES.items()}
_HAS_TYPE = {name: row[1].startswith("IdResultType") for name, row in INSTRUCTIONS.items()}


def _names(text: str) -> list[str]:
    return text.split()


_FREE = _names(
    "ExtInstImport MemoryModel EntryPoint ExecutionMode String Source Line NoLine Name MemberName Decorate MemberDecorate "
    "TypeVoid TypeBool TypeVector TypeArray TypeRuntimeArray TypeStruct TypeFunction ConstantTrue ConstantFalse ConstantNull "
    "Function FunctionParameter FunctionCall FunctionEnd Label Branch BranchConditional SelectionMerge LoopMerge Return ReturnValue "
    "Variable AccessChain GroupNonUniformShuffle "
    "CompositeConstruct CompositeExtract CompositeInsert VectorExtractDynamic VectorInsertDynamic "
    "AtomicLoad AtomicIAdd AtomicAnd AtomicOr AtomicXor AtomicExchange "
    "GroupNonUniformFAdd GroupNonUniformFMul GroupNonUniformIAdd GroupNonUniformIMul "
    "GroupNonUniformBitwiseAnd GroupNonUniformBitwiseOr GroupNonUniformBitwiseXor"
)
_ARITHMETIC = _names(
    "FAdd FSub FMul FDiv FNegate FConvert Bitcast IAdd ISub IMul Not BitwiseAnd BitwiseOr BitwiseXor ShiftLeftLogical BitCount "
    "IEqual INotEqual FOrdEqual FOrdLessThan FOrdLessThanEqual FOrdGreaterThan FOrdGreaterThanEqual "
    "LogicalEqual LogicalNotEqual LogicalAnd LogicalOr LogicalNot"
)
# naga derives the signedness of an operation from the types of its operands, which must agree with the instruction.
_SIGNED = _names(
    "SDiv SRem SNegate ShiftRightArithmetic ConvertSToF SConvert SLessThan SLessThanEqual SGreaterThan SGreaterThanEqual "
    "AtomicSMin AtomicSMax GroupNonUniformSMin GroupNonUniformSMax"
)
_UNSIGNED = _names(
    "UDiv UMod ShiftRightLogical ConvertUToF UConvert ULessThan ULessThanEqual UGreaterThan UGreaterThanEqual "
    "AtomicUMin AtomicUMax GroupNonUniformUMin GroupNonUniformUMax"
)
# The result of these must have the signedness.
_SIGNED_RESULT, _UNSIGNED_RESULT = ("ConvertFToS",), ("ConvertFToU",)
_GLSL_FREE = _names(
    "Sin Cos Tan Asin Acos Tanh Atan2 Pow Exp Log Sqrt InverseSqrt "
    "RoundEven Trunc FAbs Floor Ceil NMin NMax Fma FindILsb UnpackHalf2x16 PackHalf2x16"
)
_GLSL_SIGNED, _GLSL_UNSIGNED = ("SAbs", "SMin", "SMax"), ("UMin", "UMax", "FindUMsb")
# Only these instructions give pointers, and only these, loads, stores and atomics (as the first operand) take them.
_POINTERS = ("Variable", "AccessChain")
_TAKE_VALUES = frozenset((*_ARITHMETIC, *_SIGNED, *_UNSIGNED, *_SIGNED_RESULT, *_UNSIGNED_RESULT, "ExtInst", "Select"))
_CAPABILITIES = _names(
    "Shader Int64 Float16 Float64 Int64Atomics AtomicFloat32AddEXT StorageBuffer16BitAccess GroupNonUniform GroupNonUniformArithmetic "
    "GroupNonUniformShuffle"
)
# The scopes of barriers, of execution and memory or of memory alone. naga drops barriers of less than a workgroup with only a log message,
# and treats all others as barriers of these scopes.
_WORKGROUP, _DEVICE = ENUMERANTS["Scope"]["Workgroup"], ENUMERANTS["Scope"]["Device"]
_SCOPES = {"ControlBarrier": (_WORKGROUP, _WORKGROUP), "MemoryBarrier": (_DEVICE,)}
_SCOPE_NAMES = {value: name for name, value in ENUMERANTS["Scope"].items()}
_STORAGE = _names("Input StorageBuffer PushConstant Workgroup Function")
_WIDTHS = {"TypeInt": (32, 64), "TypeFloat": (16, 32, 64)}
_INFINITY = {16: 0x7C00, 32: 0x7F800000, 64: 0x7FF0000000000000}
_DESCRIPTOR_SET, _BINDING = ENUMERANTS["Decoration"]["DescriptorSet"], ENUMERANTS["Decoration"]["Binding"]
_CAPABILITY_NAMES = {value: name for name, value in ENUMERANTS["Capability"].items() if name in _CAPABILITIES}
_STORAGE_NUMBERS = {ENUMERANTS["StorageClass"][name] for name in _STORAGE}
_GLSL_NAMES = {number: name for name, number in GLSL.items()}


def check_for_naga(module: bytes) -> None:
    """Raise ModuleError, with the reason, for a module with anything that is not on the list."""
    checker = _Checker()
    for opcode, operands in instructions(module):
        name = _NAMES.get(opcode, "")
        rule = _RULES.get(name)
        if rule is None:
            raise ModuleError(f"Op{name or opcode} is not among the instructions that naga is known to compile correctly")
        try:
            if _HAS_TYPE[name]:
                checker.result(name, operands)
            rule(checker, name, operands)
        except (LookupError, ValueError) as error:
            raise ModuleError(f"Op{name}: an operand is missing or of another kind ({error!r})") from error


class _Checker:
    """The state of the check: types, constants and pointers of the module so far."""

    def __init__(self) -> None:
        self.scalars: dict[int, tuple[str, int, int]] = {}  # type id -> ("TypeInt" | "TypeFloat", bits, signed)
        self.aggregates: set[int] = set()  # ids of struct and array types
        self.type_of: dict[int, int] = {}  # result id -> type id
        self.words: dict[int, int] = {}  # id of a constant -> its first word
        self.places: dict[int, list[int]] = {}  # variable -> [descriptor set, binding]
        self.pointer_types: set[int] = set()
        self.pointers: set[int] = set()  # ids of values that are pointers

    def _fail(self, name: str, why: str) -> None:
        raise ModuleError(f"Op{name}: {why} (naga refuses or miscompiles it)")

    def result(self, name: str, operands: tuple[int, ...]) -> None:
        """Check an instruction with a result. naga ends the process if a pointer is used as a value."""
        type_id, rid, *rest = operands
        self.type_of[rid] = type_id
        if name in _POINTERS:
            if type_id in self.pointer_types:
                self.pointers.add(rid)
            return
        values = rest[-1:] if name.startswith("Atomic") else rest[2:] if name == "ExtInst" else rest if name in _TAKE_VALUES else ()
        if type_id in self.pointer_types or not self.pointers.isdisjoint(values):
            self._fail(name, "a pointer as a value")

    def free(self, name: str, operands: tuple[int, ...]) -> None:
        """Accept any operands."""

    def capability(self, name: str, operands: tuple[int, ...]) -> None:
        if operands[0] not in _CAPABILITY_NAMES:
            self._fail(name, f"capability {operands[0]}")

    def scalar_type(self, name: str, operands: tuple[int, ...]) -> None:
        bits = operands[1]
        if bits not in _WIDTHS[name]:
            self._fail(name, f"{bits} bits")
        self.scalars[operands[0]] = (name, bits, operands[2] if name == "TypeInt" else 1)

    def aggregate(self, name: str, operands: tuple[int, ...]) -> None:
        self.aggregates.add(operands[0])

    def pointer(self, name: str, operands: tuple[int, ...]) -> None:
        self.pointer_types.add(operands[0])
        if operands[1] not in _STORAGE_NUMBERS:
            self._fail(name, f"storage class {operands[1]}")

    def constant(self, name: str, operands: tuple[int, ...]) -> None:
        kind, bits, _ = self.scalars[operands[0]]
        self.words[operands[1]] = operands[2]
        if kind == "TypeFloat":
            pattern = struct.unpack("<Q", struct.pack("<2I", *operands[2:], *(0,) * (4 - len(operands))))[0]
            if pattern & _INFINITY[bits] == _INFINITY[bits]:
                self._fail(name, "infinity or NaN as a constant")

    def decorate(self, name: str, operands: tuple[int, ...]) -> None:
        target, decoration, *values = operands
        if decoration not in (_DESCRIPTOR_SET, _BINDING):
            return
        place = self.places.setdefault(target, [-1, -1])
        place[decoration == _BINDING] = values[0]
        if -1 not in place and sum(place == other for other in self.places.values()) > 1:
            self._fail(name, f"two variables at descriptor set {place[0]}, binding {place[1]}")

    def access(self, name: str, operands: tuple[int, ...]) -> None:
        if len(operands) > (3 if name == "Load" else 2):
            self._fail(name, "memory operands")

    def barrier(self, name: str, operands: tuple[int, ...]) -> None:
        scopes = tuple([self.words[operand] for operand in operands[:-1]])
        if scopes != _SCOPES[name]:
            self._fail(name, f"scope {', '.join([_SCOPE_NAMES.get(scope, str(scope)) for scope in scopes])}")

    def select(self, name: str, operands: tuple[int, ...]) -> None:
        if operands[0] in self.aggregates:
            self._fail(name, "choice between structs or arrays")

    def float_add(self, name: str, operands: tuple[int, ...]) -> None:
        if self.scalars.get(operands[0]) != ("TypeFloat", 32, 1):
            self._fail(name, "only 32-bit floats can be added to atomically")

    def signed(self, name: str, operands: tuple[int, ...]) -> None:
        self._signedness(name, self.type_of.get(self._first_value(name, operands), 0), 1)

    def unsigned(self, name: str, operands: tuple[int, ...]) -> None:
        self._signedness(name, self.type_of.get(self._first_value(name, operands), 0), 0)

    def signed_result(self, name: str, operands: tuple[int, ...]) -> None:
        self._signedness(name, operands[0], 1)

    def unsigned_result(self, name: str, operands: tuple[int, ...]) -> None:
        self._signedness(name, operands[0], 0)

    def extended(self, name: str, operands: tuple[int, ...]) -> None:
        function = _GLSL_NAMES.get(operands[3], "")
        if function in _GLSL_SIGNED or function in _GLSL_UNSIGNED:
            self._signedness(function, self.type_of.get(operands[4], 0), int(function in _GLSL_SIGNED))
        elif function not in _GLSL_FREE:
            self._fail(name, f"{function or operands[3]} of GLSL.std.450")

    @staticmethod
    def _first_value(name: str, operands: tuple[int, ...]) -> int:
        """Return the operand whose type determines the operation: the value of atomics and subgroup operations, else the first operand."""
        return operands[-1] if name.startswith(("Atomic", "GroupNonUniform")) else operands[2]

    def _signedness(self, name: str, type_id: int, wanted: int) -> None:
        scalar = self.scalars.get(type_id)
        if scalar is None or scalar[0] != "TypeInt" or scalar[2] != wanted:
            self._fail(name, f"its operand is no {'signed' if wanted else 'unsigned'} integer")


_RULES = {
    **dict.fromkeys((*_FREE, *_ARITHMETIC), _Checker.free),
    **dict.fromkeys(_SIGNED, _Checker.signed),
    **dict.fromkeys(_UNSIGNED, _Checker.unsigned),
    **dict.fromkeys(_SIGNED_RESULT, _Checker.signed_result),
    **dict.fromkeys(_UNSIGNED_RESULT, _Checker.unsigned_result),
    **dict.fromkeys(_WIDTHS, _Checker.scalar_type),
    **dict.fromkeys(("Load", "Store"), _Checker.access),
    **dict.fromkeys(_SCOPES, _Checker.barrier),
    **dict.fromkeys(("TypeStruct", "TypeArray", "TypeRuntimeArray"), _Checker.aggregate),
    "Capability": _Checker.capability,
    "Extension": _Checker.free,
    "TypePointer": _Checker.pointer,
    "Constant": _Checker.constant,
    "Decorate": _Checker.decorate,
    "Select": _Checker.select,
    "AtomicFAddEXT": _Checker.float_add,
    "ExtInst": _Checker.extended,
}
