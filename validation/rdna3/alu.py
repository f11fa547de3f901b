"""Scalar and vector arithmetic: an instruction -> a function that changes the registers of waves."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np

from validation.rdna3 import operands, written_out
from validation.rdna3.arithmetic import DTYPES, UNSIGNED, Array
from validation.rdna3.decode import Instruction, Unsupported
from validation.rdna3.operands import Reader, Writer
from validation.rdna3.pseudocode import NotPseudocode
from validation.rdna3.tables import OperandType, tables
from validation.rdna3.translate import Function, translate
from validation.rdna3.waves import EXEC, LANES, VCC, Waves

Step = Callable[[Waves], None]

_WORD = OperandType("FMT_NUM_B32", 32)
_LANE_IDS = np.arange(LANES, dtype=np.uint32)[None, :]
# Names of registers in pseudocode -> those of fields.
_SCALAR_FIELDS = {"S0": "ssrc0", "S1": "ssrc1", "D0": "sdst"}
_VECTOR_FIELDS = {"S0": ("src0", "vsrc0"), "S1": ("src1", "vsrc1"), "S2": ("src2",)}


# --- functions ---


@functools.cache
def _translated(text: str, widths: tuple[tuple[str, int], ...]) -> Function:
    return translate(text, dict(widths), _as_function)


@functools.cache
def _as_function(name: str) -> Callable[..., Array]:
    """An instruction of vectors that pseudocode uses as a function of one or more sources."""
    (key,) = [key for key in tables().pseudocode if key[0] == "VOP3" and key[1].removesuffix("_E64") == name]
    types = tables().operands[key]
    widths = tuple((register, _type(types, fields).bits) for register, fields in {**_VECTOR_FIELDS, "D0": ("vdst",)}.items())

    def run(*values: Array) -> Array:
        function = _translated(tables().pseudocode[key], widths)
        given = {f"S{k}": value for k, value in enumerate(values)} | {"D0": np.zeros(1, UNSIGNED[dict(widths)["D0"]])}
        return function.run(*[given[name] for name in function.inputs])[0]

    return run


def _type(types: dict[str, OperandType], names: tuple[str, ...]) -> OperandType:
    found = next((types[name] for name in names if name in types), _WORD)
    return found if found.bits in UNSIGNED else OperandType(found.content, 32)  # 24 bits of a register


def function_of(ins: Instruction, widths: dict[str, int]) -> Function:
    """What the instruction computes: written out, where the pseudocode is prose or would be slow; else its pseudocode."""
    by_hand = written_out.FUNCTIONS.get(ins.name)
    if by_hand is not None:
        return by_hand
    if not ins.pseudocode:
        raise Unsupported("the tables have no pseudocode of it")
    try:
        return _translated(ins.pseudocode, tuple(sorted(widths.items())))
    except NotPseudocode as error:
        raise Unsupported(f"its pseudocode cannot be translated: {error}") from error


# --- scalar instructions ---


def scalar_step(ins: Instruction) -> Step:
    """SOP1, SOP2, SOPC and SOPK."""
    types = ins.operands
    fields = dict(_SCALAR_FIELDS)
    if ins.format == "SOPK":
        fields["S0"] = "sdst"
    widths = {register: types.get(field, _WORD).bits for register, field in fields.items()} | {"EXEC": LANES, "SIMM16": 16, "SIMM32": 32}
    if ins.name == "S_BITSET0_B64" or ins.name == "S_BITSET1_B64":
        widths["D0"] = 64
    function = function_of(ins, widths)
    readers = [_scalar_reader(ins, name, fields, types, widths) for name in function.inputs]
    writers = [_scalar_writer(ins, name, widths) for name in function.outputs]

    def step(w: Waves) -> None:
        results = function.run(*[read(w) for read in readers])
        for write, result in zip(writers, results):
            write(w, result)

    return step


def _scalar_reader(ins: Instruction, name: str, fields: dict[str, str], types: dict[str, OperandType], widths: dict[str, int]) -> Reader:
    if name == "SCC":
        return lambda w: w.scc
    if name == "EXEC":
        return operands.scalar(EXEC, LANES)
    if name in ("SIMM16", "SIMM32"):
        value = ins.fields["simm16"] if name == "SIMM16" else ins.literal
        fixed = np.array([value], UNSIGNED[widths[name]])
        return lambda w: fixed
    field = fields[name]
    return operands.scalar(ins.fields[field], widths[name], types.get(field, _WORD).content, ins.literal)


def _scalar_writer(ins: Instruction, name: str, widths: dict[str, int]) -> Writer:
    if name == "SCC":

        def write_scc(w: Waves, value: Array) -> None:
            w.scc = np.broadcast_to(value, (len(w),)).copy()

        return write_scc
    if name == "EXEC":
        return operands.write_scalar(EXEC, LANES)
    return operands.write_scalar(ins.fields["sdst"], widths[name])


# --- vector instructions ---


def vector_step(ins: Instruction) -> Step:
    """VOP1, VOP2, VOP3, VOP3SD, VOP3P, VOPC, VOPD."""
    halves = [_prepared(half) for half in (ins, ins.second) if half is not None]
    if len(halves) == 1:
        ((function, readers, writers),) = halves

        def step(w: Waves) -> None:
            for write, result in zip(writers, function.run(*[read(w) for read in readers])):
                write(w, result)

        return step

    def both(w: Waves) -> None:
        results = [function.run(*[read(w) for read in readers]) for function, readers, _ in halves]
        kept = [[np.array(value) for value in values] for values in results]  # no views of registers that are written now
        for (_, _, writers), values in zip(halves, kept):
            for write, value in zip(writers, values):
                write(w, value)

    return both


def _prepared(ins: Instruction) -> tuple[Function, list[Reader], list[Writer]]:
    types = ins.operands
    sources = {register: _type(types, names) for register, names in _VECTOR_FIELDS.items()}
    result = types.get("vdst", _WORD)
    widths = {register: about.bits for register, about in sources.items()} | {"D0": result.bits, "SIMM32": 32}
    if ins.name in written_out.MIXED:
        widths |= {"S0": 32, "S1": 32, "S2": 32}
    function = function_of(ins, widths)
    dpp_lanes: list[Reader] = []
    readers = [_vector_reader(ins, name, sources, widths, dpp_lanes) for name in function.inputs]
    lanes = dpp_lanes[0] if dpp_lanes else None
    writers = [_vector_writer(ins, name, result, lanes) for name in function.outputs]
    return _finished(ins, function, result), readers, writers


def _vector_reader(ins: Instruction, name: str, sources: dict[str, OperandType], widths: dict[str, int], dpp_lanes: list[Reader]) -> Reader:
    if name in sources:
        return _source(ins, int(name[1]), sources[name], dpp_lanes)
    if name == "laneId":
        return lambda w: _LANE_IDS
    if name == "SIMM32":
        bits = np.array([[ins.literal]], np.uint32)
        return lambda w: bits
    if name == "VCC@lane":
        explicit = ins.format in ("VOP3", "VOP3SD") and ins.name not in ("V_DIV_FMAS_F32", "V_DIV_FMAS_F64")
        return operands.lane_mask(ins.fields["src2"] if explicit else VCC)
    if name == "D0":
        register, high = _destination(ins, widths["D0"])
        return operands.vector_register(register, widths["D0"], high)
    raise Unsupported(f"it reads {name}")


def _destination(ins: Instruction, bits: int) -> tuple[int, bool]:
    """The register that is written, and whether its upper half is."""
    register = ins.fields["vdst"]
    if bits != 16:
        return register, False
    if ins.name.startswith("V_FMA_MIX"):
        return register, ins.name == "V_FMA_MIXHI_F16"
    if ins.format == "VOP3":
        return register, bool(ins.fields["opsel"] >> 3 & 1)
    return register & 127, bool(register >> 7)


def _source(ins: Instruction, number: int, about: OperandType, dpp_lanes: list[Reader]) -> Reader:
    """Source ``number`` with its modifiers."""
    fields, bits, content = ins.fields, about.bits, about.content
    code = fields[f"src{number}"] if f"src{number}" in fields else fields["vsrc1"] + 256
    negative, absolute = (fields.get(name, 0) >> number & 1 for name in ("neg", "abs"))
    if ins.dpp and number < 2 and ins.format in ("VOP1", "VOP2", "VOPC"):
        negative |= fields.get(f"src{number}_neg", 0)
        absolute |= fields.get(f"src{number}_abs", 0)
    high = False
    if bits == 16 and ins.format == "VOP3":
        high = bool(fields["opsel"] >> number & 1)
    elif bits == 16 and code >= 256 and ins.format in ("VOP1", "VOP2", "VOPC"):
        code, high = 256 + (code & 127), bool(code >> 7 & 1)
    if ins.dpp and number == 0:
        if high or (bits == 16 and fields["vsrc0"] > 127):
            raise Unsupported("DPP of an upper half")
        read, lanes = operands.dpp(fields["vsrc0"], bits, fields, ins.dpp)
        dpp_lanes.append(lanes)
    else:
        read = operands.vector(code, bits, content, ins.literal, high)
    if ins.format == "VOP3P":
        return written_out.packed_source(ins, number, code, read, about)
    if (negative or absolute) and "_F" not in content and "B16" not in content and "B32" not in content:
        raise Unsupported(f"a modifier of a source of type {content}")
    return operands.modified(read, bits, negative, absolute)


def _vector_writer(ins: Instruction, name: str, result: OperandType, lanes: Reader | None) -> Writer:
    if name == "D0":
        register, high = _destination(ins, result.bits)
        return operands.write_vector(register, result.bits, high, lanes)
    if name == "D0@lane":
        return operands.write_mask(VCC if ins.format == "VOPC" else ins.fields["vdst"], lanes)
    if name == "VCC@lane":
        return operands.write_mask(ins.fields["sdst"] if ins.format == "VOP3SD" else VCC, lanes)
    if name == "EXEC@lane" and lanes is None:
        return operands.write_exec_mask
    raise Unsupported(f"it writes {name}")


# --- modifiers of results ---


def _finished(ins: Instruction, function: Function, result: OperandType) -> Function:
    """With the multiplier and the clamp of the result."""
    multiplier, clamp = ins.fields.get("omod", 0), ins.fields.get("clmp", 0)
    if not (multiplier or clamp) or "D0" not in function.outputs:
        if clamp and ins.format == "VOPC":
            raise Unsupported("the clamp of a comparison")
        return function
    at = function.outputs.index("D0")
    if "_F" not in result.content:
        if multiplier:
            raise Unsupported(f"a multiplier of a result of type {result.content}")
        return _saturated(ins, function, result)
    packed = "PK2" in result.content
    t: Any = DTYPES["f", 16 if packed else result.bits]
    factor = {0: 1, 1: 2, 2: 4, 3: 0.5}[multiplier]

    def run(*values: Array) -> tuple[Array, ...]:
        results = list(function.run(*values))
        bits = np.ascontiguousarray(results[at])
        value = bits.view(t) * t(factor)
        if clamp:
            value = np.where(np.isnan(value), t(0), np.clip(value, t(0), t(1)))
        results[at] = value.view(bits.dtype)
        return tuple(results)

    return Function(run, function.inputs, function.outputs)


def _saturated(ins: Instruction, function: Function, result: OperandType) -> Function:
    """Sums and differences of integers that stay at the ends of their type."""
    parts = ins.name.split("_")
    operation, t = parts[1], parts[-1]
    operators: dict[str, Callable[[Array, Array], Array]] = {"ADD": np.add, "SUB": np.subtract, "SUBREV": lambda a, b: b - a}
    if parts[2] != "NC" or operation not in operators:
        raise Unsupported("the clamp of this result")
    kind = DTYPES[t[0].lower(), int(t[1:])]

    def run(*values: Array) -> tuple[Array, ...]:
        given = dict(zip(function.inputs, values))
        a, b = (given[name].view(kind).astype(np.int64) for name in ("S0", "S1"))
        about = np.iinfo(kind)
        return (np.clip(operators[operation](a, b), about.min, about.max).astype(kind).view(UNSIGNED[result.bits]),)

    return Function(run, function.inputs, function.outputs)
