"""The fast path of calls: one generated function for a kernel whose arguments are ndarrays, numbers and template arguments.

Packing an argument in general takes a Python call for its key, and several to bind it, which together cost more than the launch. The source
of the generated function consists of this module's own templates and of integers only.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from spirograd.base.arguments import Arguments
from spirograd.lang.data.ndarray import Ndarray
from spirograd.lang.frontend.parameters import ArrayParameter, Parameter, ScalarParameter, TemplateParameter

# (arguments, session) -> specialization and packed arguments; None: the call must be packed in general.
QuickCall = Callable[[tuple[Any, ...], Any], "tuple[Any, Arguments] | None"]


def quick_call(parameters: Sequence[Parameter], specializations: dict[Any, list[Any]]) -> QuickCall | None:
    """A quick call of what was compiled for the key of the arguments; None if there are parameters of other kinds."""
    if {type(p) for p in parameters} - {ArrayParameter, ScalarParameter, TemplateParameter}:
        return None
    names: dict[str, Any] = {
        "__builtins__": {},
        "getattr": getattr,
        "isinstance": isinstance,
        "len": len,
        "type": type,
        "Ndarray": Ndarray,
        "Arguments": Arguments,
    }
    names["found_for"] = specializations.get
    keys, guards, scalars, arrays = [], [f"len(args) != {len(parameters)}"], [], []
    for k, p in enumerate(parameters):
        if type(p) is ArrayParameter:
            keys.append(f'getattr(args[{k}], "_sg_signature", None)')  # other arrays have none, and no kernel has such a key
            scalars.append("0")
            arrays.append(f"args[{k}]")
        elif type(p) is ScalarParameter:
            names[f"convert{k}"], names[f"plain{k}"] = p.convert, p.plain
            limits = "" if p.t.is_float else f" and {int(p.t.min)} <= args[{k}] <= {int(p.t.max)}"
            scalars.append(f"args[{k}] if type(args[{k}]) is plain{k}{limits} else convert{k}(args[{k}])")
            arrays.append("")
        else:
            names[f"key{k}"] = p.key
            keys.append(f"key{k}(args[{k}])")
            guards.append(f"isinstance(args[{k}], Ndarray)")
    text = _TEMPLATE.format(
        refuse=" or ".join(guards),
        key="".join(f"{key}, " for key in keys),
        bound=" or ".join(f"{a}._session is not session or {a}._sg_binding is None" for a in arrays if a) or "False",
        scalars="".join(f"{s}, " for s in scalars),
        arrays="".join(f"{a}._sg_binding, " if a else "None, " for a in arrays),
    )
    exec(text, names)
    call: QuickCall = names["call"]
    return call


_TEMPLATE = """def call(args, session):
    if {refuse}:
        return None
    found = found_for(({key}))
    if not found:
        return None
    made = found[0]
    if made.captures or not (made.constant or made.holds(args)) or {bound}:
        return None
    return made, Arguments(({scalars}), ({arrays}), made.trees)
"""
