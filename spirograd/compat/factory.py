"""Creation of the modules of one member of the Taichi family from the tables."""

from __future__ import annotations

import functools
import sys
from collections.abc import Sequence
from types import ModuleType

from spirograd.base.later import Later
from spirograd.base.near_names import NoAttribute
from spirograd.compat import environment, log_functions, member_tables, wording


class FamilyModule(ModuleType):
    """A module made from a table. A missing name is a stand-in that raises an error when used, or an AttributeError."""

    def __init__(self, package: str, path: str, names: member_tables.Names) -> None:
        super().__init__(f"{package}.{path}", f"`{path}` of the family, made of spirograd's own parts.")
        self.__dict__.update(names)
        self.__all__ = sorted(name for name in names if not name.startswith("_"))
        self.__path__: list[str] = []  # so that modules below it can be imported
        self.__dict__["_path"] = path

    def __getattr__(self, name: str) -> object:
        path: str = self.__dict__["_path"]
        if name.startswith("__"):
            raise AttributeError(name)
        reason = member_tables.EMPTY_MODULES.get(path)
        return Later(f"{path}.{name}", reason) if reason is not None else lookup(path, name, list(self.__dict__))


def lookup(path: str, name: str, known: list[str]) -> object:
    """Return the stand-in for a name that module ``path`` lacks; AttributeError if the family has no such name either."""
    fallback = member_tables.FALLBACKS.get(path)
    stand_in = fallback(name) if fallback is not None else None
    if stand_in is not None:
        return stand_in
    raise NoAttribute(f"module {path!r} of the family" if path else "the family", name, lambda: known)


def make(package: str, prefix: str, version: str) -> member_tables.Names:
    """Return all names of the package called ``package``, whose errors begin with ``prefix``, and add its modules to `sys.modules`.

    The package adds the result to its namespace; its ``__getattr__`` (`lookup`) handles missing names.
    """
    names = _prefixed(member_tables.MAIN, prefix)
    for path in [*member_tables.MODULES, *member_tables.EMPTY_MODULES]:
        module = FamilyModule(package, path, _prefixed(member_tables.MODULES.get(path, {}), prefix))
        sys.modules[module.__name__] = module
        above, _, last = path.rpartition(".")
        if above:
            setattr(sys.modules[f"{package}.{above}"], last, module)
        else:
            names[last] = module
    log_functions.redirect(vars(sys.modules[f"{package}._logging"]))
    names["__all__"] = public = sorted(name for name in names if not name.startswith("_"))
    names["__version__"] = version
    names["__getattr__"] = functools.partial(lookup, "", known=public)
    return names


def _prefixed(names: member_tables.Names, prefix: str) -> member_tables.Names:
    """Return the names and values for the member with this prefix."""
    return {name.format(prefix): _init_of(prefix) if value is member_tables.init else value for name, value in names.items()}


@functools.cache
def _init_of(prefix: str) -> object:
    """Return `init` for the member with this prefix: its errors have the member's words."""

    alias = wording.ALIASES[prefix]

    @functools.wraps(member_tables.init)
    def init(arch: str | Sequence[str] | None = None, **options: object) -> None:
        try:
            member_tables.init(environment.arch_from(alias, arch), **environment.options_from(alias, options), **options)
        finally:
            wording.translate_errors(prefix)

    return init
