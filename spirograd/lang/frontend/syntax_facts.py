"""Facts about statements from their syntax alone: which names they may assign, which jumps they may take."""

from __future__ import annotations

import ast
import itertools
from collections.abc import Callable, Iterator, Sequence

from spirograd.base.records import dataclass

# Names that no Python program can spell: the flags of jumps and the value of a function, which loops carry like variables.
BREAK, CONTINUE, RETURNED, RESULT, RNG = "%break", "%continue", "%returned", "%result", "%rng"
CHOSEN = "%chosen"  # the value of a conditional expression
_FLAGS = {ast.Break: {BREAK}, ast.Continue: {CONTINUE}, ast.Return: {RETURNED, RESULT}}
_LOOPS = (ast.For, ast.While)
# Augmented assignments that are one atomic operation on memory; the others read, compute and write.
ATOMIC_UPDATES: dict[type[ast.operator], str] = {
    ast.Add: "add",
    ast.Sub: "sub",
    ast.Mult: "mul",
    ast.BitAnd: "and",
    ast.BitOr: "or",
    ast.BitXor: "xor",
}
# The arguments of a call that the callee may change (parameters taken by reference).
References = Callable[[ast.Call], Sequence[ast.expr]]


def assigned(statements: Sequence[ast.stmt], references: References) -> set[str]:
    """Return names that the statements may bind or change, the flags of their jumps included."""
    out: set[str] = set()
    for statement in statements:
        names, calls = _facts(statement)
        out |= names
        for call in calls:
            for argument in references(call):
                _targets(argument, out)
    return out


# What a node binds by itself, the flags of its jumps included, and the calls in it.
_Facts = tuple[frozenset[str], tuple[ast.Call, ...]]


def _facts(node: ast.AST) -> _Facts:
    """Return the facts of ``node``, kept with it: each unrolled iteration asks again."""
    facts: _Facts | None = getattr(node, "sg_facts", None)
    if facts is None:
        facts = node.sg_facts = _find_facts(node)  # type: ignore[attr-defined]
    return facts


def written(node: ast.AST) -> str:
    """Return the text of ``node``, kept with it, like its facts."""
    text: str | None = getattr(node, "sg_text", None)
    if text is None:
        text = node.sg_text = ast.unparse(node)  # type: ignore[attr-defined]
    return text


def _find_facts(node: ast.AST) -> _Facts:
    if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
        return frozenset((node.name,)), ()
    if isinstance(node, (ast.Name, ast.Constant, ast.Lambda)):
        return frozenset(), ()
    inner: set[str] = set()
    calls = [node] if isinstance(node, ast.Call) else []
    for child in ast.iter_child_nodes(node):
        child_names, child_calls = _facts(child)
        inner |= child_names
        calls += child_calls
    out = inner - {BREAK, CONTINUE} if isinstance(node, _LOOPS) else inner
    if isinstance(node, (ast.Assign, ast.Delete)):
        for target in node.targets:
            _targets(target, out)
    elif isinstance(node, (ast.AugAssign, ast.AnnAssign, ast.NamedExpr, ast.For)):
        _targets(node.target, out)
    elif type(node) in _FLAGS:
        out |= _FLAGS[type(node)]  # type: ignore[index]
    return frozenset(out), tuple(calls)


def _targets(target: ast.expr, out: set[str]) -> None:
    """Add the variables that ``target`` names, or names parts of."""
    for part in parts_of(target):
        base = base_of(part)
        if isinstance(base, ast.Name):
            out.add(base.id)
        elif base is not part:
            _targets(base, out)


def parts_of(target: ast.expr) -> Iterator[ast.expr]:
    """Return the targets that a tuple of targets is made of."""
    if isinstance(target, (ast.Tuple, ast.List)):
        for element in target.elts:
            yield from parts_of(element)
    else:
        yield target


def base_of(node: ast.expr) -> ast.expr:
    """Return what a target is a part of."""
    while isinstance(node, (ast.Subscript, ast.Attribute, ast.Starred)):
        node = node.value
    return node


def object_of(node: ast.expr, of_name: Callable[[str], object]) -> object:
    """Return what a name or a dotted name stands for; None if that is not known. ``of_name``: gives what a name stands for."""
    if isinstance(node, ast.Attribute):
        base = object_of(node.value, of_name)
        return None if base is None else getattr(base, node.attr, None)
    return of_name(node.id) if isinstance(node, ast.Name) else None


def names_in(target: ast.expr) -> set[str]:
    """Return the names in the target of a loop."""
    return {n.id for n in ast.walk(target) if isinstance(n, ast.Name)}


def jumps(statements: Sequence[ast.stmt]) -> set[str]:
    """Return flags of the jumps that may leave the statements: break and continue of an enclosing loop, return."""
    out: set[str] = set()
    for statement in statements:
        out |= _facts(statement)[0]
    return out & {BREAK, CONTINUE, RETURNED}


def may_end(statements: Sequence[ast.stmt]) -> bool:
    """Return whether control may reach the end of the statements of a function. Where a compile-time test decides, the answer is no."""
    for statement in statements:
        if isinstance(statement, ast.Return):
            return False
        if isinstance(statement, ast.While) and isinstance(statement.test, ast.Constant) and statement.test.value:
            if BREAK not in jumps(statement.body):
                return False
        elif isinstance(statement, ast.If):
            static = any(map(is_static, ast.walk(statement.test)))
            if (static and RETURNED in jumps([statement])) or not (may_end(statement.body) or may_end(statement.orelse)):
                return False
    return True


def is_static(node: ast.AST) -> bool:
    """Return whether a node is a call of `static`, by its name."""
    return isinstance(node, ast.Call) and ast.unparse(node.func).rpartition(".")[2] == "static"


@dataclass(frozen=True, slots=True)
class _Place:
    """Where a statement stands. ``branches``: the one that is taken at each `if static(...)` around it. ``depends``: whether it stands in
    a loop or in another branch, so that how often it runs may depend on values of run time."""

    branches: dict[ast.AST, bool]
    depends: bool


def fixed_names(function: ast.AST) -> frozenset[str]:
    """Return names of variables that are assigned by ``name = static(...)`` only, so that each use is of one value that is known while
    compiling: they are assigned once, or in branches of `if static(...)` that exclude each other, or outside of loops and all other
    branches."""
    names: frozenset[str] | None = getattr(function, "sg_fixed_names", None)
    if names is None:
        fixed: dict[str, list[_Place]] = {}
        changed: list[str] = []
        for child in ast.iter_child_nodes(function):
            for node, place in _with_places(child, _Place({}, False)):
                if isinstance(node, ast.Name) and not isinstance(node.ctx, ast.Load):
                    changed.append(node.id)
                elif isinstance(node, ast.Assign) and is_static(node.value):
                    for target in node.targets:
                        if isinstance(target, ast.Name):
                            fixed.setdefault(target.id, []).append(place)
                elif isinstance(node, ast.Call) and "atomic_" in ast.unparse(node.func):
                    changed += [argument.id for argument in node.args[:1] if isinstance(argument, ast.Name)]
        names = function.sg_fixed_names = frozenset(  # type: ignore[attr-defined]
            name for name, places in fixed.items() if changed.count(name) == len(places) and _are_in_order(places)
        )
    return names


def _with_places(node: ast.AST, place: _Place) -> Iterator[tuple[ast.AST, _Place]]:
    """Yield ``node`` and all nodes below it, with the places where they stand."""
    yield node, place
    if isinstance(node, ast.If) and is_static(node.test):
        yield from _with_places(node.test, place)
        for statements, taken in ((node.body, True), (node.orelse, False)):
            for statement in statements:
                yield from _with_places(statement, _Place({**place.branches, node: taken}, place.depends))
        return
    inner = _Place(place.branches, True) if isinstance(node, ast.stmt) else place
    for child in ast.iter_child_nodes(node):
        yield from _with_places(child, inner)


def _are_in_order(places: Sequence[_Place]) -> bool:
    """Return whether no run of the function comes to two of the places, but in the order in which they are compiled."""
    return all(
        not (a.depends or b.depends) or any(b.branches.get(node, taken) != taken for node, taken in a.branches.items())
        for a, b in itertools.combinations(places, 2)
    )


def always_jumps(statements: Sequence[ast.stmt]) -> bool:
    """Return whether control never reaches the end of the statements."""
    for statement in statements:
        if type(statement) in _FLAGS:
            return True
        if isinstance(statement, ast.If) and always_jumps(statement.body) and always_jumps(statement.orelse):
            return True
    return False


def returns_end_branches(statements: Sequence[ast.stmt]) -> bool:
    """Return whether every `return` ends its branch, so that no flag is needed."""
    for k, node in enumerate(statements):
        if isinstance(node, ast.Return):
            return True
        if RETURNED not in jumps([node]):
            continue
        if not isinstance(node, ast.If):
            return False
        rest = list(statements[k + 1 :])
        body_jumps, else_jumps = always_jumps(node.body), always_jumps(node.orelse)
        if rest and not body_jumps and not else_jumps:
            return False
        sides = [*node.body, *([] if body_jumps else rest)], [*node.orelse, *([] if else_jumps else rest)]
        return all(map(returns_end_branches, sides))
    return True


def serializes(statement: ast.stmt | None) -> bool:
    """Return whether a statement is `loop_config(serialize=True)`."""
    call = statement.value if isinstance(statement, ast.Expr) else None
    options = call.keywords if isinstance(call, ast.Call) else []
    return any(o.arg == "serialize" and isinstance(o.value, ast.Constant) and bool(o.value.value) for o in options)
