"""The words of the Taichi family for errors, which programs search for: a table from the texts of spirograd.

An error that a row of the table describes ends with the family's words, on a line of their own. The words are those that releases of the
family print.
"""

from __future__ import annotations

import re
import string
from collections.abc import Callable

from spirograd.base import errors

# The names under which programs import the members.
ALIASES = {"Taichi": "ti", "Quadrants": "qd"}
_NODES = {"del": "Delete", "class": "ClassDef"}  # classes of Python's syntax trees, where they are not the capitalized keyword

# What a row can make of a group of its pattern, as in `{a:shape}`.
_CONVERSIONS: dict[str, Callable[[str], object]] = {
    "shape": lambda name: tuple(map(int, re.findall(r"\d+", name))),  # of "vector of 2" or "2x3 matrix"
    "node": lambda word: _NODES.get(word, word.capitalize()),
    "number": lambda word: 1 if word == "one" else int(word),
    "letters": tuple,
    "length": len,
    "parts": lambda text: len([part for part in text.split(",") if part.strip()]),
}

# Patterns of spirograd's texts, and the words. `{library}` and `{alias}` are "Taichi" and "ti", or "Quadrants" and "qd".
_ROWS = (
    # --- functions and what they return ---
    (
        r"kernel `\w+` says that it returns a value, but does not on every path",
        "Kernel has a return type but does not have a return statement",
    ),
    (r"function `\w+` says that it returns a value", "Function has a return type but does not have a return statement"),
    (
        r"a kernel that returns a value must say of what type",
        "A kernel with a return value must be annotated with a return type, e.g. def func() -> {alias}.f32",
    ),
    (r"parameter `\w+` has no type", "{library} kernels parameters must be type annotated"),
    (
        r"a kernel cannot be called from a kernel",
        "Kernels cannot call other kernels. I.e., nested kernels are not allowed. Please check if you have direct/indirect "
        "invocation of kernels within kernels. Note that some methods provided by the {library} standard library may invoke "
        "kernels, and please move their invocations to Python-scope.",
    ),
    (r"`(?P<name>\w+)` works outside of kernels only", "{name} cannot be called in {library}-scope"),
    (r"is a function of the kernel language: only kernels", "{library} functions cannot be called from Python-scope."),
    (r"is a kernel and a method: decorate class `(?P<name>\w+)`", "Please decorate class {name} with @{alias}.data_oriented"),
    (
        r"argument `(?P<name>\w+)` of a kernel cannot be assigned to",
        'Kernel argument "{name}" is immutable in the kernel. If you want to change its value, please create a new variable.',
    ),
    # --- statements ---
    (r"into which an assignment copies no elements", "Invalid constant scalar data type"),
    (r"`break` cannot leave a parallel loop", "Cannot break in the outermost loop"),
    (r"a parallel loop cannot return from the kernel", "Return inside non-static if/for is not supported"),
    (r"`else` of a `(?P<loop>for|while)` loop is not supported", "'else' clause for '{loop}' not supported in {library} kernels"),
    (r"`(?P<word>try|with|global|del|raise|import|yield)` is not supported in kernels", 'Unsupported node "{word:node}"'),
    (r"a (?P<word>lambda|class|set) is not supported in kernels", 'Unsupported node "{word:node}"'),
    (r"a nested function is not supported in kernels", "Function definition is not allowed in '{alias}.kernel'."),
    (r"(?s)`is` and `in` work on compile-time objects only.*\| .* is ", 'Operator "is" in {library} scope is not supported.'),
    (r"`is` and `in` work on compile-time objects only", '"In" is only supported inside `{alias}.static`.'),
    (r"cannot unpack \d+ values into \d+ names|a starred target is not", "The number of targets is not equal to value length"),
    (
        r"(?s)this loop has (?P<axes>\d+) indices.*ndrange\(",
        "Ndrange for loop with number of the loop variables not equal to the dimension of the ndrange is not supported. Please "
        "check if the number of arguments of {alias}.ndrange() is equal to the number of the loop variables.",
    ),
    (
        r"this loop has (?P<axes>\d+) indices, and (?P<names>\w+) names?",
        "Number of struct-for indices does not match loop variable dimensionality ({names:number} != {axes}). Maybe you wanted "
        'to use "for I in {alias}.grouped(x)" to group all indices into a single vector I?',
    ),
    (
        r"cannot loop over ",
        "Cannot loop over the object in {library} scope. Only {library} fields (via template) or dense arrays (via "
        "types.ndarray) are supported.",
    ),
    (r"`sg.static` needs what is known while compiling", "Input to {alias}.static must be compile-time constants or global pointers"),
    (
        r"an unrolled loop needs bounds that are known",
        "TypeError when calling `range`: '{library} Expression' object cannot be interpreted as an integer.",
    ),
    # --- names, indices and operands ---
    (r"`(?P<name>\w+)` is not defined(?: here)?(?:$|\n)", 'Name "{name}" is not defined'),
    (
        r"`\w+` has (?P<axes>\d+) ax[ie]s, but is indexed with (?P<given>\d+) ind",
        "Field with dim {axes} accessed with indices of dim {given}",
    ),
    (r"(?P<given>\d+) indices for a vector", "Expected 1 indices, got {given}."),
    (r"(?P<given>\d+) indices for a \d+x\d+ matrix", "Expected 2 indices, got {given}."),
    (r"`@` of a (?P<a>.*?) and a (?P<b>.*?): ", "dimension mismatch between {a:shape} and {b:shape} for matrix multiplication"),
    (r"shapes differ: a |`dot` takes two vectors of one length", "unsupported operand type(s)"),
    (
        r"a vector has no transpose",
        "`transpose()` cannot apply to a vector. If you want something like `a @ b.transpose()`, write `a.outer_product(b)` instead.",
    ),
    (r"takes a square matrix, got a (?P<a>.*)", "expected a square matrix, got shape {a:shape}"),
    (r"`cross` takes two vectors of .* got (?P<a>\d+) and (?P<b>\d+)", "required shapes to be the same, got shapes [({a},), ({b},)]"),
    (
        r"a vector of (?P<n>\d+) has no component `(?P<name>\w+)`; it has `(?P<known>\w+)`",
        "vec{n} only has attributes={known:letters}, got={name:letters}",
    ),
    (r"a vector or matrix is made of a list of numbers", "An Matrix/Vector can only be initialized with an array-like object"),
    (r"`~` needs integers, got (?P<type>\w+)", "'bit_not' takes integral inputs only, however '{type}' is provided"),
    (r"`(?P<symbol>\S+)` (?:is not defined for|needs integers)", "unsupported operand type(s) for {symbol}"),
    (r"`(?P<name>atomic_\w+)` needs an element", "cannot use a non-writable target as the first operand of '{name}'"),
    (r"the string '(?P<name>.*)' is no data type", "Invalid data type {name}"),
    # --- arguments ---
    (r"(?:kernel|function) `\w+`: argument `(?P<name>\w+)` is missing", "Parameter `{name}` missing."),
    (r"(?:kernel|function) `\w+`: it takes \d+ arguments?, got \d+", "Too many arguments."),
    (r"(?:kernel|function) `\w+`: there is no argument `(?P<name>\w+)`", "Unexpected argument '{name}'."),
    (r"argument `\w+` takes an? (?:integer|number) \((?P<type>\w+)\), got", "cannot be converted into required type {type}"),
    (
        r"argument `(?P<name>\w+)`: expected an array of (?P<want>\w+), got (?P<got>\w+)",
        "Expect element type {want} for argument {name}, but get {got}",
    ),
    (
        r"argument `(?P<name>\w+)`: expected an array with (?P<want>\d+) ax[ie]s, got (?P<got>\d+)",
        "Invalid value for argument {name} - required ndim={want}, but {got}d ndarray is provided; required array has "
        "ndim={want}, array with {got} dimensions is provided",
    ),
    (r"argument `(?P<name>\w+)`: expected an array with elements", "Invalid value for argument {name} - required element type"),
    (r"argument `(?P<name>\w+)` takes an array, got", "Invalid type for argument {name}"),
    # --- fields and arrays ---
    (r"field `\w+` has no place yet", "These field(s) are not placed"),
    (r"field `\w+` has a place already", "This variable has been placed."),
    (
        r"every extent of a field must be a positive integer, got (?P<got>\S+) on axis (?P<axis>\d+)",
        "Every dimension of a {library} field should be positive, got {got} in demension {axis}.",
    ),
    (r"got '.*' with the axis '(?P<axis>.)'", "Invalid axis {axis}"),
    (r"got '.*', which repeats an axis", "The axes in order must be different"),
    (
        r"which names (?P<n>\d+) ax[ie]s, got '(?P<order>.*)'",
        "The dimensionality of shape and order must be the same ({n} != {order:length})",
    ),
    (
        r"`offset` needs one integer for each of (?P<n>\d+) axes, got \((?P<offset>.*)\)",
        "The dimensionality of shape and offset must be the same ({n} != {offset:parts})",
    ),
    (r"`offset` and `order` need a `shape`", "shape cannot be None when offset is set; shape cannot be None when order is set"),
    (
        r"only fields of floats have gradients, not of (?P<type>\w+)",
        "{type} is not supported for field with `needs_grad=True` or `needs_dual=True`.",
    ),
    (
        r"field `\w+` needs an array of shape (?P<want>\(.*\)), got (?P<got>\(.*\))",
        "{alias}.field shape {want} does not match the numpy array shape {got}",
    ),
    (r"the ndarray needs an array of shape (?P<want>\(.*\)), got (?P<got>\(.*\))", "Mismatch shape: {want} expected, but {got} provided"),
    (
        r"field `\w+` of shape (?P<want>\(.*\)) cannot copy from one of shape (?P<got>\(.*\)):",
        "{alias}.field shape {want} does not match the source field shape {got}",
    ),
    # --- gradients ---
    (r"the loss of a tape is one float", "The loss of `Tape` must be a 0-D field, i.e. scalar"),
    (
        r"the loss of a tape, the field .* has no gradient",
        "Gradients of loss are not allocated, please use {alias}.field(..., needs_grad=True) for all fields that are required by autodiff.",
    ),
    (
        r"the loss of a tape, an ndarray .* has no gradient",
        "Gradients of loss are not allocated, please set needs_grad=True for all ndarrays that are required by autodiff.",
    ),
    # --- checks and options ---
    (r"index \((?P<index>[-\d, ]+)\) out of range of field `(?P<name>\w+)`", "Accessing field ({name}) with indices ({index})"),
    (r"index \((?P<index>[-\d, ]+)\) out of range of array", "Out of bound access to ndarray with indices [{index}]"),
    (r"an integer to a negative power is no integer", "Negative exponent in pow(int, int) is not allowed."),
    (r"`init` has no option `(?P<name>\w+)`", "Unrecognized keyword argument(s) for {alias}.init: {name}"),
)
_TABLE = [(re.compile(pattern), words) for pattern, words in _ROWS]


class _Words(string.Formatter):
    """A formatter with `_CONVERSIONS`."""

    def format_field(self, value: object, format_spec: str) -> str:
        return str(_CONVERSIONS[format_spec](str(value)) if format_spec else value)


def words_of(text: str, library: str) -> str | None:
    """Return the words of a member of the family for the error with this text; None if the table has none."""
    for pattern, words in _TABLE:
        found = pattern.search(text)
        if found is not None:
            return _Words().format(words, library=library, alias=ALIASES[library], **found.groupdict())
    return None


def translate_errors(library: str) -> None:
    """Let errors end with the words of this member of the family."""
    mark = f"\n  in {library}: "

    def translated(text: str) -> str:
        words = words_of(text, library) if mark not in text else None  # texts may quote those of other errors
        return text if words is None else f"{text}{mark}{words}"

    errors.translate_by(translated)
