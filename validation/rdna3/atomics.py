"""Atomic operations on memory by many lanes at a time, with the results that they have one after the other, in the order of lanes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from validation.rdna3.arithmetic import UNSIGNED, Array
from validation.rdna3.memory import Bytes
from validation.rdna3.pseudocode import NotPseudocode
from validation.rdna3.translate import translate

# A function of the memory, the offsets, and one or two operands (unsigned integers): changes memory, and gives what was there before each.
Update = Callable[[Bytes, Array, list[Array]], Array]

COMPARING = ("CMPSWAP", "CMPSTORE")
# NumPy's `at` takes elements one after the other.
_IN_PLACE = {"ADD": np.add, "AND": np.bitwise_and, "OR": np.bitwise_or, "XOR": np.bitwise_xor, "MIN": np.minimum, "MAX": np.maximum}


def update(operation: str, kind: str, bits: int, returns: bool, text: str) -> Update:
    """``kind``: B, U, I or F. ``returns``: whether the program reads the result. ``text``: the pseudocode. Raises NotPseudocode."""
    if operation in COMPARING:
        if kind == "F":
            raise NotPseudocode("comparisons of floats")
        return lambda space, at, data: _compare_and_swap(space, at, data, bits)
    t: Any = np.dtype(f"{'u' if kind == 'B' else kind.lower()}{bits // 8}")
    if operation in _IN_PLACE and not returns and (kind != "F" or operation == "ADD"):
        function = _IN_PLACE[operation]

        def in_place(space: Bytes, at: Array, data: list[Array]) -> Array:
            function.at(space.bytes.view(t), at // (bits // 8), data[0].view(t))
            return at

        return in_place
    if operation in ("ADD", "SUB") and kind != "F":
        return lambda space, at, data: _sums(space, at, data[0] if operation == "ADD" else 0 - data[0], bits)
    return _one_by_one(text, bits)


def _first_of_each(ordered: Array) -> Array:
    """Where other values begin."""
    return np.concatenate([[True], ordered[1:] != ordered[:-1]])


def _sums(space: Bytes, at: Array, values: Array, bits: int) -> Array:
    order = np.argsort(at, kind="stable")
    places, added = at[order], values[order]
    starts = np.flatnonzero(_first_of_each(places))
    until = np.cumsum(added, dtype=added.dtype) - added  # of all elements before, those at other offsets included
    number = np.cumsum(_first_of_each(places)) - 1
    memory = space.read(places[starts], bits // 8)
    before = np.empty_like(added)
    before[order] = memory[number] + (until - until[starts][number])
    ends = np.append(starts[1:], len(places)) - 1
    space.write(places[starts], before[order][ends] + added[ends], bits // 8)
    return before


def _compare_and_swap(space: Bytes, at: Array, data: list[Array], bits: int) -> Array:
    """In each round, at each offset, all find what is there, up to the first that finds what it expects; those after it go on."""
    order = np.argsort(at, kind="stable")
    places, new, expected = at[order], data[0][order], data[1][order]
    found = np.empty_like(new)
    left = np.arange(len(places))
    while len(left):
        found[left] = space.read(places[left], bits // 8)
        hits = left[found[left] == expected[left]]
        if not len(hits):
            break
        firsts = hits[_first_of_each(places[hits])]
        space.write(places[firsts], new[firsts], bits // 8)
        k = np.minimum(np.searchsorted(places[firsts], places[left]), len(firsts) - 1)
        left = left[(places[firsts][k] == places[left]) & (left > firsts[k])]
    before = np.empty_like(found)
    before[order] = found
    return before


def _turns(at: Array) -> Iterator[Array]:
    """Elements with different offsets, until all have had their turn; of those with equal offsets the first comes first."""
    order = np.argsort(at, kind="stable")
    places = at[order]
    starts = np.flatnonzero(_first_of_each(places))
    lengths = np.diff(np.append(starts, len(places)))
    for turn in range(int(lengths.max())):
        yield order[starts[lengths > turn] + turn]


def _no_function(name: str) -> Callable[..., Array]:
    raise NotPseudocode(name)


def _one_by_one(text: str, bits: int) -> Update:
    function = translate(text, dict.fromkeys(("MEM", "DATA", "RETURN_DATA"), bits), _no_function)

    def run(space: Bytes, at: Array, data: list[Array]) -> Array:
        before = np.empty(len(at), UNSIGNED[bits])
        for turn in _turns(at):
            old = space.read(at[turn], bits // 8)
            given = {"DATA": data[0][turn], "MEM": old, "RETURN_DATA": old}
            results = dict(zip(function.outputs, function.run(*[given[name] for name in function.inputs])))
            space.write(at[turn], results["MEM"], bits // 8)
            before[turn] = old
        return before

    return run
