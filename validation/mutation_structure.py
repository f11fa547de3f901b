"""Ways to break the structure of a module: instructions that are missing, ids, blocks, words."""

from __future__ import annotations

import itertools
from random import Random

from spirograd.spirvgen.grammar import ENUMERANTS, INSTRUCTIONS, OPCODES
from validation.mutation_kind import Kind, Mutate, describe, noting, pick
from validation.mutation_parts import TERMINATORS, Instruction, Parts, Site

KINDS: list[Kind] = []
kind = noting(KINDS)


# --- an instruction is missing -----------------------------------------------------------------------------------------------

_DROPPED = {
    "merge instruction dropped": ("SelectionMerge", "LoopMerge"),
    "end of a block dropped": TERMINATORS,
    "label dropped": ("Label",),
    "end of the function dropped": ("FunctionEnd",),
    "extension dropped": ("Extension",),
    "decoration dropped": ("Decorate", "MemberDecorate"),
    "entry point dropped": ("EntryPoint",),
    "execution mode dropped": ("ExecutionMode",),
    "memory model dropped": ("MemoryModel",),
}


def _dropping(names: tuple[str, ...]) -> Mutate:
    def mutate(parts: Parts, random: Random) -> str:
        at = pick(random, parts.indices(*names))
        return describe(parts.code.pop(at)) if at >= 0 else ""

    return mutate


for _name, _opcodes in _DROPPED.items():
    KINDS.append(Kind(_name, _dropping(_opcodes)))


# Capability -> the one that it declares implicitly, of those that the generator uses.
_IMPLIES = {"PhysicalStorageBufferAddresses": "Shader", "GroupNonUniformArithmetic": "GroupNonUniform", "Int64Atomics": "Int64"}


@kind("capability dropped")
def drop_capability(parts: Parts, random: Random) -> str:
    names = {number: name for name, number in ENUMERANTS["Capability"].items()}
    found = parts.code.pop(random.choice(parts.indices("Capability")))
    left = [names[parts.code[k].words[0]] for k in parts.indices("Capability")]
    return describe(found) + (" implied" if any(_IMPLIES.get(name) == names[found.words[0]] for name in left) else "")


@kind("definition dropped")
def drop_definition(parts: Parts, random: Random) -> str:
    """Drop the definition of an id that is used by more than its own name and decorations."""
    used = {parts.code[k].words[at] for k, at in parts.uses() if not parts.code[k].name.endswith(("Name", "Decorate"))}
    at = pick(random, (k for k, found in enumerate(parts.code) if found.result in used and found.name not in ("Label", "Function")))
    return describe(parts.code.pop(at))


# --- ids ---------------------------------------------------------------------------------------------------------------------


@kind("undefined id")
def undefined_id(parts: Parts, random: Random) -> str:
    site = random.choice(list(parts.uses()))
    parts.code[site.place].words[site.at] = parts.new_id()
    return describe(parts.code[site.place])


@kind("id beyond the bound")
def id_beyond_the_bound(parts: Parts, random: Random) -> str:
    site = random.choice(list(parts.uses()))
    parts.code[site.place].words[site.at] = parts.bound + random.randrange(1000)
    return describe(parts.code[site.place])


@kind("id 0")
def id_zero(parts: Parts, random: Random) -> str:
    site = random.choice(list(parts.uses()))
    parts.code[site.place].words[site.at] = 0
    return describe(parts.code[site.place])


@kind("bound too small")
def bound_too_small(parts: Parts, random: Random) -> str:
    parts.header[3] = random.randrange(1, parts.bound)
    return "header"


@kind("id defined twice")
def defined_twice(parts: Parts, random: Random) -> str:
    results = [k for k, found in enumerate(parts.code) if found.result]
    first, second = random.sample(results, 2)
    parts.code[second].words[parts.code[second].result_at] = parts.code[first].result
    return describe(parts.code[second])


@kind("id of another sort")
def other_sort(parts: Parts, random: Random) -> str:
    """A label for a type, a value for a label, a type for a value ... Anything may have a name."""
    known = parts.definitions()
    site = random.choice([s for s in parts.uses() if not parts.code[s.place].name.endswith("Name")])
    words = parts.code[site.place].words
    sort = parts.shape(words[site.at], known)[0]
    words[site.at] = random.choice([number for number in known if parts.shape(number, known)[0] != sort])
    return describe(parts.code[site.place])


_CONVERSIONS = ("Bitcast", "ConvertSToF", "ConvertUToF", "ConvertFToS", "ConvertFToU", "SConvert", "UConvert", "FConvert")
# Operands (counted without type and result) that may have any of several types: another one makes another program, not a broken one.
_OPEN = {
    **dict.fromkeys(_CONVERSIONS, (0,)),
    **dict.fromkeys(("ShiftLeftLogical", "ShiftRightLogical", "ShiftRightArithmetic", "VectorExtractDynamic"), (1,)),
    **dict.fromkeys(("AccessChain",), tuple(range(1, 8))),
    **dict.fromkeys(("BitCount",), (0,)),
    "VectorInsertDynamic": (2,),
}


def _typed_uses(parts: Parts) -> list[Site]:
    """Operands of instructions in functions, and whose type is not open."""
    known, found = parts.definitions(), []
    for site in parts.uses():
        instruction = parts.code[site.place]
        if parts.shape(instruction.words[site.at], known)[0] != "value" or instruction.name.endswith(("Name", "Decorate", "EntryPoint")):
            continue
        first = instruction.result_at + 1
        if site.at - first not in _OPEN.get(instruction.name, ()) and not instruction.name.startswith("GroupNonUniform"):
            found.append(site)
    return found


@kind("value of another type")
def other_type_of_value(parts: Parts, random: Random) -> str:
    """Earlier ones only, so that it is the type that is wrong."""
    known = parts.definitions()
    site = random.choice(_typed_uses(parts))
    words = parts.code[site.place].words
    shape = parts.shape(words[site.at], known)
    earlier = [f.result for f in parts.code[: site.place] if f.result]
    others = [n for n in earlier if parts.shape(n, known)[0] == "value" and parts.shape(n, known) != shape]
    if not others:
        return ""
    words[site.at] = random.choice(others)
    return describe(parts.code[site.place])


@kind("subgroup operation on another type", "vulkan")
def subgroup_operand(parts: Parts, random: Random) -> str:
    at = pick(random, (k for k, f in enumerate(parts.code) if f.name.startswith("GroupNonUniform") and len(f.words) > 4))
    if at < 0:
        return ""
    known, words = parts.definitions(), parts.code[at].words
    shape = parts.shape(words[-1], known)
    earlier = [f.result for f in parts.code[:at] if f.result and parts.shape(f.result, known)[0] == "value"]
    words[-1] = random.choice([number for number in earlier if parts.shape(number, known) != shape])
    return f"GroupNonUniform {describe(parts.code[at])}"


@kind("operands of different types swapped")
def swapped(parts: Parts, random: Random) -> str:
    known = parts.definitions()
    pairs = []
    uses = _typed_uses(parts)
    for one, two in itertools.pairwise(uses):
        words = parts.code[one.place].words
        if one.place == two.place and parts.shape(words[one.at], known) != parts.shape(words[two.at], known):
            pairs.append((one, two))
    one, two = random.choice(pairs)
    words = parts.code[one.place].words
    words[one.at], words[two.at] = words[two.at], words[one.at]
    return describe(parts.code[one.place])


@kind("result of another type")
def other_type_of_result(parts: Parts, random: Random) -> str:
    """Not of conversions, which may have any."""
    known = parts.definitions()
    types = [number for number, found in known.items() if found.name.startswith("Type")]
    found = random.choice([f for f in parts.code if f.type and f.name not in _CONVERSIONS])
    shape = parts.type_shape(found.type, known)
    found.words[0] = random.choice([t for t in types if parts.type_shape(t, known) != shape])
    return describe(found)


@kind("used before it is there")
def used_early(parts: Parts, random: Random) -> str:
    """An instruction changes places with one of its block that uses it."""
    pairs = []
    for block in parts.blocks():
        for k in block[1:-1]:
            result = parts.code[k].result
            pairs += [(k, n) for n in block[:-1] if n > k and result and result in parts.code[n].words and parts.code[n].result]
    early, late = random.choice([p for p in pairs if _refers(parts.code[p[1]], parts.code[p[0]].result)])
    parts.code[early], parts.code[late] = parts.code[late], parts.code[early]
    return describe(parts.code[late])


def _refers(found: Instruction, number: int) -> bool:
    return any(word == number for word, k in zip(found.words, found.kinds) if k == "IdRef")


# --- blocks ------------------------------------------------------------------------------------------------------------------


def _branch_sites(parts: Parts) -> list[Site]:
    """Operands that are labels."""
    labels = {found.result for found in parts.code if found.name == "Label"}
    return [s for s in parts.uses() if parts.code[s.place].name in TERMINATORS and parts.code[s.place].words[s.at] in labels]


def _redirect(parts: Parts, random: Random, label: int) -> str:
    site = random.choice(_branch_sites(parts))
    parts.code[site.place].words[site.at] = label
    return describe(parts.code[site.place])


@kind("branch into another function")
def branch_into_another_function(parts: Parts, random: Random) -> str:
    """Modules have one function: a copy of its head and an empty body become a second one."""
    head = next(found for found in parts.code if found.name == "Function")
    label = parts.new_id()
    parts.code += [
        Instruction("Function", [head.words[0], parts.new_id(), *head.words[2:]]),
        Instruction("Label", [label]),
        Instruction("Return", []),
        Instruction("FunctionEnd", []),
    ]
    return _redirect(parts, random, label)


@kind("branch to nowhere")
def branch_to_nowhere(parts: Parts, random: Random) -> str:
    return _redirect(parts, random, parts.new_id())


@kind("branch to the first block")
def branch_to_the_first_block(parts: Parts, random: Random) -> str:
    return _redirect(parts, random, next(found.result for found in parts.code if found.name == "Label"))


@kind("branch into a loop")
def branch_into_a_loop(parts: Parts, random: Random) -> str:
    """From before a loop past its header, into its continue block."""
    merges = parts.indices("LoopMerge")
    if not merges:
        return ""
    merge = random.choice(merges)
    header = max(k for k in parts.indices("Label") if k < merge)
    target = parts.code[header].result
    before = [s for s in _branch_sites(parts) if s.place < header and parts.code[s.place].words[s.at] == target]
    if not before:
        return ""
    parts.code[before[0].place].words[before[0].at] = parts.code[merge].words[1]
    return describe(parts.code[merge])


@kind("merge and continue swapped")
def merge_and_continue_swapped(parts: Parts, random: Random) -> str:
    at = pick(random, parts.indices("LoopMerge"))
    if at < 0:
        return ""
    words = parts.code[at].words
    words[0], words[1] = words[1], words[0]
    return describe(parts.code[at])


@kind("merge block of another construct")
def merge_of_another(parts: Parts, random: Random) -> str:
    merges = parts.indices("SelectionMerge", "LoopMerge")
    if len(merges) < 2:
        return ""
    one, other = random.sample(merges, 2)
    parts.code[one].words[0] = parts.code[other].words[0]
    return describe(parts.code[one])


@kind("construct that ends where it begins")
def merge_with_itself(parts: Parts, random: Random) -> str:
    at = pick(random, parts.indices("SelectionMerge", "LoopMerge"))
    if at < 0:
        return ""
    parts.code[at].words[0] = parts.code[max(k for k in parts.indices("Label") if k < at)].result
    return describe(parts.code[at])


@kind("instruction after the end of a block")
def after_the_end(parts: Parts, random: Random) -> str:
    block = random.choice([b for b in parts.blocks() if len(b) > 2])
    moved = parts.code.pop(random.choice(block[1:-1]))
    parts.code.insert(block[-1], moved)
    return describe(moved)


# --- words -------------------------------------------------------------------------------------------------------------------


@kind("word count too small")
def count_too_small(parts: Parts, random: Random) -> str:
    at = random.choice([k for k, found in enumerate(parts.code) if found.words])
    parts.counts[at] = random.randrange(len(parts.code[at].words) + 1)
    return describe(parts.code[at])


@kind("word count too large")
def count_too_large(parts: Parts, random: Random) -> str:
    at = random.randrange(len(parts.code))
    parts.counts[at] = len(parts.code[at].words) + 1 + random.randint(1, 4)
    return describe(parts.code[at])


# Instructions of which one operand less is another program.
_VARIABLE = ("Source", "SourceContinued", "TypeStruct", "Load", "Store", "AccessChain", "CompositeExtract", "Name", "MemberName", "String")


@kind("operand lost")
def operand_lost(parts: Parts, random: Random) -> str:
    found = random.choice([f for f in parts.code if f.words and f.name not in _VARIABLE])
    found.words.pop()
    return f"Op{found.name}"


@kind("operand too many")
def operand_too_many(parts: Parts, random: Random) -> str:
    found = random.choice(parts.code)
    found.words.append(random.choice((0, 1, parts.bound - 1, 0xFFFFFFFF)))
    return f"Op{found.name}"


@kind("module cut off")
def cut_off(parts: Parts, random: Random) -> str:
    parts.lost = random.randrange(1, 60)
    return f"{parts.lost} bytes"


@kind("header")
def wrong_header(parts: Parts, random: Random) -> str:
    at, value = random.choice(((0, 0x03022307), (1, 0x00020000), (1, 0x00010000), (1, 0x00010700), (4, 1)))
    parts.header[at] = value
    return f"word {at} is {value:#010x}"


@kind("another instruction")
def another_instruction(parts: Parts, random: Random) -> str:
    """An opcode of other operands. Bits of anything may be cast: that would be another program."""
    found = random.choice([f for f in parts.code if f.name not in ("Source", "Line", "NoLine")])
    before = f"Op{found.name}"
    grammar = INSTRUCTIONS[found.name][1]
    found.name = random.choice([name for name in OPCODES if INSTRUCTIONS[name][1] != grammar and name != "Bitcast"])
    return f"{before} became Op{found.name}"


_SECTIONED = ("Capability", "Extension", "ExtInstImport", "MemoryModel", "EntryPoint", "ExecutionMode", "String", "Name", "Decorate")


@kind("section out of order")
def out_of_order(parts: Parts, random: Random) -> str:
    """Something of the first sections is moved behind the types."""
    moved = parts.code.pop(random.choice(parts.indices(*_SECTIONED)))
    parts.code.insert(random.choice((parts.indices("Function")[0], len(parts.code))), moved)
    return describe(moved)


@kind("type inside of the function")
def type_inside(parts: Parts, random: Random) -> str:
    moved = parts.code.pop(random.choice([k for k, f in enumerate(parts.code) if f.name.startswith(("Type", "Constant"))]))
    parts.code.insert(parts.indices("Label")[0] + 1, moved)
    return describe(moved)
