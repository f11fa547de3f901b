"""Guards: attributes of template arguments that a kernel read as constants, which each launch compares with what they were then."""

from __future__ import annotations

import functools
import operator
import types
import weakref
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from spirograd.base.records import dataclass
from spirograd.lang.data.ndarray import Ndarray
from spirograd.lang.frontend.fingerprints import BY_VALUE, PLAIN, Identity, fingerprint
from spirograd.lang.matrix import Matrix

# The number of the argument, a getter of its guarded attributes, and for each attribute a predicate: whether it is unchanged.
Guard = tuple[int, Callable[[object], tuple[object, ...]], tuple[Callable[[object], bool], ...]]


@dataclass(frozen=True, slots=True)
class Path:
    """How to reach an object from the arguments of a kernel: number of the argument, names of attributes and numbers of items."""

    argument: int
    names: tuple[str | int, ...] = ()

    def then(self, name: str | int) -> Path:
        return Path(self.argument, (*self.names, name))

    def getter(self) -> Callable[[Sequence[object]], object]:
        """Return a function from arguments to the object; raises AttributeError if it is not there any more."""
        argument = self.argument
        if not self.names:
            return operator.itemgetter(argument)
        if all(isinstance(name, str) for name in self.names):
            follow = operator.attrgetter(".".join(map(str, self.names)))
            return lambda args: follow(args[argument])
        looks = [_look(name) for name in self.names]
        return lambda args: functools.reduce(lambda value, look: look(value), looks, args[argument])


def _look(name: str | int) -> Callable[[Any], object]:
    """Return a function that gives an attribute of an object, or an item."""
    return operator.attrgetter(name) if isinstance(name, str) else operator.itemgetter(name)


def is_stored(owner: object, name: str) -> bool:
    """Return whether an attribute is data of the instance, rather than a method or something computed."""
    return name in getattr(owner, "__dict__", ()) or isinstance(getattr(type(owner), name, None), types.MemberDescriptorType)


def is_guardable(owner: object, name: str, value: object) -> bool:
    """Return whether the kernel depends on an attribute of ``owner`` such that a change must be noticed."""
    return isinstance(value, PLAIN) or (is_stored(owner, name) and not isinstance(value, (types.ModuleType, Ndarray)))


def guards(watched: Mapping[Path, object]) -> list[Guard]:
    """Return what finds out at a launch whether attributes still are what they are now: one look per argument, in C as far as it goes."""
    out: list[Guard] = []
    for argument in sorted({path.argument for path in watched}):
        names = {".".join(map(str, path.names)): value for path, value in watched.items() if path.argument == argument}
        follow = operator.attrgetter(*names)
        out.append((argument, follow if len(names) > 1 else _as_tuple(follow), tuple(map(unchanged, names.values()))))
    return out


def _as_tuple(follow: Callable[[object], object]) -> Callable[[object], tuple[object, ...]]:
    return lambda obj: (follow(obj),)


def unchanged(value: object) -> Callable[[object], bool]:
    """Return a function that tells whether something still is what ``value`` is now."""
    print_, kind = fingerprint(value), type(value)
    if isinstance(print_, (weakref.ref, Identity)):
        ref: Callable[[], object] = print_ if isinstance(print_, weakref.ref) else print_.ref
        return lambda now: now is not None and now is ref()  # of an object that is gone, the reference gives None
    if isinstance(value, BY_VALUE):
        return lambda now: now is value or fingerprint(now) == print_
    if isinstance(value, Matrix):
        shape, entries = value.shape, value.entries

        def same_entries(now: object) -> bool:
            if type(now) is kind and isinstance(now, Matrix) and now.shape == shape and all(map(operator.is_, now.entries, entries)):
                return True  # the very numbers: the usual case, and a quick one
            return fingerprint(now) == print_

        return same_entries
    return lambda now: fingerprint(now) == print_
