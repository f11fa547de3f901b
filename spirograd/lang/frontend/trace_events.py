"""The events of a trace, and how they are repeated: what another process needs of the reads that `recorded_reads` records."""

from __future__ import annotations

import builtins
import hashlib
import types

from spirograd.base.loc import Loc
from spirograd.base.records import dataclass
from spirograd.lang.frontend.call_targets import func_of
from spirograd.lang.frontend.func import Func
from spirograd.lang.frontend.read_values import Unrecordable, Values
from spirograd.lang.frontend.texts import Text


@dataclass(slots=True, eq=False)
class Event:
    """One read.

    ``kind``: "name" that a function sees, "attribute", "item", "array" that a variable holds, "look" (an attribute that Python reads, which
    may be missing), "call" of a function that gives an object of the session, "result" of a function without effects, or "source" of a
    function. ``base``: the number of the function or object. ``name``: the name, if there is one. ``key``: of an item the key, or a list of
    its parts; of a result the arguments, as text; of a source, how many lines of the file were compared, and their hash. ``loc``: where the
    kernel reads. ``text``: what messages call it. ``named``: the name that a field gets by it.
    """

    kind: str
    base: int
    name: str = ""
    key: object = None
    loc: Loc | None = None
    text: str = ""
    named: str = ""


def looked_up(owner: object, name: str) -> object:
    """Return an attribute as Python finds it; a string of its own kind if it is missing."""
    return getattr(owner, name, ("<missing>",))


def read_name(function: object, name: str) -> object:
    """Return what ``function`` sees under a name. Raises LookupError or ValueError if it sees nothing."""
    assert isinstance(function, types.FunctionType)
    code = function.__code__
    if name in code.co_freevars:
        cells = function.__closure__ or ()
        return cells[code.co_freevars.index(name)].cell_contents
    return function.__globals__[name] if name in function.__globals__ else vars(builtins)[name]


def python_function(value: object) -> types.FunctionType:
    """Return the function of Python that a described function is, or was made of."""
    function = value.function if isinstance(value, Func) else value
    assert isinstance(function, types.FunctionType)
    return function


def code_of(function: object) -> types.CodeType:
    assert isinstance(function, types.FunctionType)
    return function.__code__


def text_and_signature(value: object) -> tuple[Text | None, str]:
    """Return the text of a described function, and its signature as text."""
    func = value if isinstance(value, Func) else func_of(python_function(value))
    return func._text, signature_of(func)


def digest(function: object, text: Text, count: int, signature: str) -> str:
    """Return the hash of ``count`` lines of a function, see `recorded_reads.lines_of`, of where it stands, and of its ``signature``."""
    code = code_of(function)
    first = code.co_firstlineno - 1 if count else 0
    lines = text.lines[first : first + count] if count else text.lines
    parts = (text.file, str(code.co_firstlineno), str(len(lines)), signature, "".join(lines))
    return hashlib.sha256("\0".join(parts).encode("utf-8", "surrogatepass")).hexdigest()


def signature_of(func: Func) -> str:
    """Return the annotations of a function as text: types by what they are, others by name."""
    values, parts = Values(), list[str]()
    signature = func.signature
    for name, annotation in [*((p.name, p.annotation) for p in signature.parameters.values()), ("return", signature.return_annotation)]:
        try:
            values.add(annotation)
        except Unrecordable:
            parts.append(f"{type(annotation).__qualname__} {getattr(annotation, '__name__', '')}")
        parts.append(f"{name} {len(values.texts)}")
    return "\0".join([*parts, *values.texts])
