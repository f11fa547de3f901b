"""Ways to break what instructions mean: types, memory, literals; and valid SPIR-V that naga refuses or miscompiles."""

from __future__ import annotations

from random import Random

from spirograd.spirvgen.grammar import ENUMERANTS, GLSL
from validation.mutation_kind import Kind, Mutate, describe, noting, pick, pick_site
from validation.mutation_parts import DECORATION, STORAGE, Instruction, Parts

KINDS: list[Kind] = []
kind = noting(KINDS)
_SCOPES = ENUMERANTS["Scope"]


# --- types, memory, literals ---------------------------------------------------------------------------------------------------


def _set(names: tuple[str, ...], at: int, values: tuple[int, ...]) -> Mutate:
    """Operand ``at`` of one of these instructions becomes another of ``values``."""

    def mutate(parts: Parts, random: Random) -> str:
        places = [k for k in parts.indices(*names) if len(parts.code[k].words) > at]
        if not places:
            return ""
        found = parts.code[random.choice(places)]
        found.words[at] = random.choice([v for v in values if v != found.words[at]])
        return f"{describe(found)} with {found.words[at]}"

    return mutate


_WRONG = {
    "width of a type": (("TypeInt", "TypeFloat"), 1, (0, 1, 7, 24, 128)),
    "sign of a type": (("TypeInt",), 2, (2, 5)),
    "size of a vector": (("TypeVector",), 2, (0, 1, 5, 7)),
    "storage class of a variable": (("Variable",), 2, tuple(STORAGE[n] for n in ("Function", "Workgroup", "Input", "Uniform", "Private"))),
    "function of GLSL.std.450": (("ExtInst",), 3, (0, 82, 999)),
    "member that is not there": (("CompositeExtract",), 3, (9, 200, 0xFFFFFFFF)),
    "addressing model": (("MemoryModel",), 0, (1, 2, 77)),
    "memory model": (("MemoryModel",), 1, (2, 77)),
    "execution model": (("EntryPoint",), 0, (0, 4, 6, 77)),
}  # fmt: skip
for _name, (_opcodes, _at, _values) in _WRONG.items():
    KINDS.append(Kind(f"wrong {_name}", _set(_opcodes, _at, _values)))


@kind("variable missing in the interface")
def interface_shortened(parts: Parts, random: Random) -> str:
    found = parts.code[parts.indices("EntryPoint")[0]]
    places = [k for k, sort in enumerate(found.kinds) if sort == "IdRef" and k > 1]
    if not places:
        return ""
    found.words.pop(random.choice(places))
    return "OpEntryPoint"


@kind("misplaced member")
def misplaced_member(parts: Parts, random: Random) -> str:
    """A member of a block that lies on another one, or across words."""
    members = [f for f in parts.code if f.name == "MemberDecorate" and f.words[2] == DECORATION["Offset"]]
    blocks = [f for f in members if sum(m.words[0] == f.words[0] for m in members) > 1]
    if not blocks:
        return ""
    found = random.choice(blocks)
    others = [m.words[3] for m in members if m.words[0] == found.words[0] and m is not found]
    found.words[3] = random.choice((random.choice(others), found.words[3] + 1))
    return describe(found)


@kind("stride too small")
def stride_too_small(parts: Parts, random: Random) -> str:
    strides = [f for f in parts.code if f.name == "Decorate" and f.words[1] == DECORATION["ArrayStride"] and f.words[2] > 1]
    if not strides:
        return ""
    found = random.choice(strides)
    found.words[2] = random.choice((0, found.words[2] // 2, found.words[2] - 1))
    return describe(found)


@kind("alignment not declared", "vulkan")
def alignment_dropped(parts: Parts, random: Random) -> str:
    """Behind an address it has to be."""
    aligned = [f for f in parts.code if f.name in ("Load", "Store") and f.kinds[-1] == "LiteralInteger"]
    if not aligned:
        return ""
    found = random.choice(aligned)
    del found.words[-2:]
    return describe(found)


@kind("alignment that is none", "vulkan")
def alignment_wrong(parts: Parts, random: Random) -> str:
    aligned = [f for f in parts.code if f.name in ("Load", "Store") and f.kinds[-1] == "LiteralInteger"]
    if not aligned:
        return ""
    found = random.choice(aligned)
    found.words[-1] = random.choice((0, 3, 12))
    return f"{describe(found)} aligned to {found.words[-1]}"


@kind("scope or semantics that is no such number")
def scope_wrong(parts: Parts, random: Random) -> str:
    """The constant of a scope becomes one that Vulkan has not."""
    sites = [s for s in parts.uses() if parts.code[s.place].kinds[s.at] in ("IdScope", "IdMemorySemantics")]
    site = pick_site(random, sites)
    if site is None:
        return ""
    known = parts.definitions()
    old = known[parts.code[site.place].words[site.at]]
    fresh, value = parts.new_id(), random.choice((0, 99)) if parts.code[site.place].kinds[site.at] == "IdScope" else 6
    parts.code[site.place].words[site.at] = fresh
    parts.code.insert(parts.indices("Function")[0], Instruction("Constant", [old.type, fresh, value]))
    return "IdScope" if value != 6 else "IdMemorySemantics"


# --- valid SPIR-V that naga refuses or miscompiles -------------------------------------------------------------------------------

_OTHER_SIGN = {
    "SDiv": "UDiv", "ShiftRightArithmetic": "ShiftRightLogical", "ConvertSToF": "ConvertUToF", "ConvertFToS": "ConvertFToU",
    "SConvert": "UConvert", "SLessThan": "ULessThan", "SLessThanEqual": "ULessThanEqual", "SGreaterThan": "UGreaterThan",
    "SGreaterThanEqual": "UGreaterThanEqual", "AtomicSMin": "AtomicUMin", "AtomicSMax": "AtomicUMax", "SRem": "UMod",
}  # fmt: skip
_OTHER_SIGN |= {after: before for before, after in _OTHER_SIGN.items()}
_REFUSED = {
    "SRem": "SMod", "FOrdLessThan": "FUnordLessThan", "FOrdEqual": "FUnordNotEqual", "FOrdLessThanEqual": "FUnordLessThanEqual",
    "FOrdGreaterThan": "FUnordGreaterThan", "FOrdGreaterThanEqual": "FUnordGreaterThanEqual", "FDiv": "FRem",
    "AccessChain": "InBoundsAccessChain", "AtomicFAddEXT": "AtomicFMaxEXT", "ConstantNull": "Undef",
}  # fmt: skip


def _renaming(names: dict[str, str]) -> Mutate:
    def mutate(parts: Parts, random: Random) -> str:
        at = pick(random, parts.indices(*names))
        if at < 0:
            return ""
        found = parts.code[at]
        before, found.name = found.name, names[found.name]
        return f"Op{before} became Op{found.name}"

    return mutate


KINDS.append(Kind("naga: operation of the other sign", _renaming(_OTHER_SIGN), ("wgpu",)))
KINDS.append(Kind("naga: instruction not on its list", _renaming(_REFUSED), ("wgpu",)))


@kind("naga: function of the other sign", "wgpu")
def glsl_of_the_other_sign(parts: Parts, random: Random) -> str:
    swap = {GLSL["SMin"]: GLSL["UMin"], GLSL["SMax"]: GLSL["UMax"], GLSL["UMin"]: GLSL["SMin"], GLSL["UMax"]: GLSL["SMax"]}
    at = pick(random, (k for k in parts.indices("ExtInst") if parts.code[k].words[3] in swap))
    if at < 0:
        return ""
    parts.code[at].words[3] = swap[parts.code[at].words[3]]
    return f"OpExtInst {parts.code[at].words[3]}"


@kind("naga: operand of the other sign", "wgpu")
def operand_of_the_other_sign(parts: Parts, random: Random) -> str:
    """A bitcast to the other sign before an operation that has one."""
    known = parts.definitions()
    signs = {(f.words[1], f.words[2]): f.result for f in parts.code if f.name == "TypeInt"}
    places = []
    for k in parts.indices(*_OTHER_SIGN):
        found = parts.code[k]
        at = len(found.words) - 1 if found.name.startswith("Atomic") else 2
        value = known[found.words[at]]
        type_ = known.get(value.type)
        if type_ is not None and type_.name == "TypeInt" and (type_.words[1], 1 - type_.words[2]) in signs:
            places.append((k, at, signs[type_.words[1], 1 - type_.words[2]]))
    if not places:
        return ""
    k, at, other = random.choice(places)
    fresh = parts.new_id()
    parts.code.insert(k, Instruction("Bitcast", [other, fresh, parts.code[k].words[at]]))
    parts.code[k + 1].words[at] = fresh
    return describe(parts.code[k + 1])


@kind("naga: memory operands", "wgpu")
def memory_operands(parts: Parts, random: Random) -> str:
    at = pick(random, parts.indices("Load", "Store"))
    parts.code[at].words += [2, 4] if random.random() < 0.5 else [1]
    return describe(parts.code[at])


@kind("naga: scope of a barrier", "wgpu")
def scope_of_a_barrier(parts: Parts, random: Random) -> str:
    """One that is valid SPIR-V: naga drops barriers of subgroups."""
    at = pick(random, parts.indices("ControlBarrier", "MemoryBarrier"))
    if at < 0:
        return ""
    found, known = parts.code[at], parts.definitions()
    k = random.randrange(len(found.words) - 1)
    before = known[found.words[k]]
    scope = random.choice([s for s in (_SCOPES[name] for name in ("Device", "Workgroup", "Subgroup")) if s != before.words[2]])
    number = parts.new_id()
    parts.code.insert(parts.code.index(before) + 1, Instruction("Constant", [before.type, number, scope]))
    found.words[k] = number
    return describe(found)


@kind("naga: nothing, undefined, or copied", "wgpu")
def superfluous(parts: Parts, random: Random) -> str:
    known = parts.definitions()
    block = random.choice([b for b in parts.blocks() if parts.code[b[-2]].name not in ("Variable", "LoopMerge", "SelectionMerge", "Label")])
    last = parts.code[block[-2]]
    name = random.choice(("Nop", "Undef", "CopyObject"))
    value = next(f.result for f in parts.code if f.name == "Constant")
    words = {"Nop": [], "Undef": [known[value].type, parts.new_id()], "CopyObject": [known[value].type, parts.new_id(), value]}[name]
    parts.code.insert(block[-1], Instruction(name, words))
    return f"Op{name} after {describe(last)}"


@kind("naga: two variables at one binding", "wgpu")
def one_binding(parts: Parts, random: Random) -> str:
    places = [f for f in parts.code if f.name == "Decorate" and f.words[1] == DECORATION["Binding"]]
    if len(places) < 2:
        return ""
    sets = {f.words[0]: f.words[2] for f in parts.code if f.name == "Decorate" and f.words[1] == DECORATION["DescriptorSet"]}
    pairs = [(a, b) for a in places for b in places if a is not b and sets[a.words[0]] == sets[b.words[0]]]
    if not pairs:
        return ""
    one, other = random.choice(pairs)
    one.words[2] = other.words[2]
    return describe(one)


@kind("naga: infinite constant", "wgpu")
def infinite_constant(parts: Parts, random: Random) -> str:
    known = parts.definitions()
    floats = [f for f in parts.code if f.name == "Constant" and known[f.type].name == "TypeFloat"]
    if not floats:
        return ""
    found = random.choice(floats)
    infinity = {16: [0x7C00], 32: [0x7F800000], 64: [0, 0x7FF00000]}
    found.words[2:] = infinity[known[found.type].words[1]]
    return describe(found)


@kind("naga: capability not on its list", "wgpu")
def other_capability(parts: Parts, random: Random) -> str:
    name = random.choice(("Int8", "Int16", "StorageBuffer8BitAccess", "VariablePointers", "RuntimeDescriptorArray", "VulkanMemoryModel"))
    parts.code.insert(1, Instruction("Capability", [ENUMERANTS["Capability"][name]]))
    return name
