"""Tracing control flow: jumps become branches and flags, variables that change become results and carried values."""

from __future__ import annotations

import ast
from collections.abc import Callable, Sequence
from typing import Any

from spirograd.ir.nodes import Op
from spirograd.lang import scalar
from spirograd.lang.frontend import names as syntax
from spirograd.lang.frontend.calls import Calls
from spirograd.lang.frontend.names import BREAK, CONTINUE, RESULT, RETURNED, RNG
from spirograd.lang.frontend.state import ONE_BRANCH, ONE_KIND, Frame, LoopScope, Side, is_runtime, leaves, rebuild
from spirograd.lang.scalar import Value

Branch = Callable[[], None]
_LOOP_LOCAL = "it is assigned inside a loop; assign it before the loop to use it afterwards"


class StaticBreak(Exception):
    """`break` in an unrolled loop."""


class StaticContinue(Exception):
    """`continue` in an unrolled loop."""


class Control(Calls):
    """Blocks, `if` and `while`."""

    def statement(self, node: ast.stmt) -> None:
        raise NotImplementedError

    def names_of(self, statements: Sequence[ast.stmt]) -> set[str]:
        """What the statements may change: variables, flags of jumps, the counter of random numbers."""
        out = syntax.assigned(statements, self.references)
        return out | {RNG} if self.uses_random else out

    # --- blocks ----------------------------------------------------------------------------------------------------------

    def block(self, statements: Sequence[ast.stmt]) -> None:
        """Trace statements in order, up to a jump that is always taken."""
        for k, node in enumerate(statements):
            rest = statements[k + 1 :]
            if isinstance(node, ast.If):
                condition = self.condition(node.test)
                if not isinstance(condition, Value):
                    self.block([*(node.body if condition else node.orelse), *rest])
                    return
                if syntax.jumps([node]):
                    self.jumping_if(node, condition, rest)
                    return
                self.plain_if(node, condition)
                continue
            self.statement(node)
            if isinstance(node, (ast.Break, ast.Continue, ast.Return)):
                return
            if isinstance(node, (ast.For, ast.While)) and RETURNED in syntax.jumps([node]) and rest:
                self.unless([RETURNED], rest)
                return

    def condition(self, node: ast.expr) -> Any:
        """A test: a Python bool if it is known while compiling, else a value of type u1."""
        value = self.eval(node)
        self.at(node)
        return scalar.truth(value) if is_runtime(value) or scalar.is_number(value) else bool(value)

    def plain_if(self, node: ast.If, condition: Value) -> None:
        self.branch(condition, lambda: self.block(node.body), lambda: self.block(node.orelse))

    def jumping_if(self, node: ast.If, condition: Value, rest: Sequence[ast.stmt]) -> None:
        """An `if` that may jump: what follows it goes into the branch that does not, or is guarded by the flags."""
        body, orelse = list(node.body), list(node.orelse)
        body_jumps, else_jumps = syntax.always_jumps(body), syntax.always_jumps(orelse)
        self.no_parallel_loops(node, rest)
        if body_jumps or else_jumps:
            body += [] if body_jumps else rest
            orelse += [] if else_jumps else rest
            self.branch(condition, lambda: self.block(body), lambda: self.block(orelse))
            return
        self.plain_if(node, condition)
        if rest:
            self.unless(sorted(syntax.jumps([node])), rest)

    def no_parallel_loops(self, node: ast.If, rest: Sequence[ast.stmt]) -> None:
        pairs = zip([None, *rest], rest)
        loops = [s for before, s in pairs if isinstance(s, ast.For) and not self.only_unrolled(s) and not _serializes(before)]
        if self.at_top_level() and loops:
            hint = "let the loop test the condition instead"
            if not self.frame.is_kernel:
                hint += ", or put `sg.loop_config(serialize=True)` before it: at the top of a kernel it is parallel"
            problem = f"{self._returning()} cannot return under a run-time condition before a parallel loop"
            raise self.syntax_error(problem, node, hint)

    def only_unrolled(self, node: ast.For) -> bool:
        """Whether a loop and those in it are unrolled."""
        raise NotImplementedError

    def at_top_level(self) -> bool:
        """Whether a loop here would be parallel."""
        return self.b.depth == 1

    def unless(self, flags: Sequence[str], rest: Sequence[ast.stmt]) -> None:
        """Trace ``rest`` under the condition that none of the flags is set."""
        stopped: Any = False
        for name in flags:
            flag = self.frame.vars[name]
            stopped = flag if stopped is False else scalar.bit_or(stopped, flag)
        go = scalar.known(scalar.logical_not(stopped))
        if go is True:
            self.block(rest)
        elif go is not False:
            self.branch(go, lambda: self.block(rest), lambda: None)

    # --- branches --------------------------------------------------------------------------------------------------------

    def branch(self, condition: Value, then: Branch, orelse: Branch) -> None:
        """An `if` operation; variables that either side changes become its results."""
        before = dict(self.frame.vars)
        lost = dict(self.frame.lost)
        loc = self.b.loc
        sides: list[Side] = []
        for trace_side in (then, orelse):
            self.frame.vars = dict(before)
            self.b.begin()
            trace_side()
            sides.append((self.b.suspend(), self.frame.vars))
        self.frame.vars, self.frame.lost = dict(before), lost
        self.b.loc = loc
        (_, a), (_, c) = sides
        self.join(condition, sides, sorted(name for name in {*a, *c} if not a.get(name) is before.get(name) is c.get(name)))

    # --- loops -----------------------------------------------------------------------------------------------------------

    def while_statement(self, node: ast.While) -> None:
        if node.orelse:
            raise self.syntax_error("`else` of a loop is not supported in kernels", node.orelse[0], "use a flag")

        def condition() -> Value:
            value = self.condition(node.test)
            return value if isinstance(value, Value) else scalar.constant(value)

        self.frame.loops.append(LoopScope("serial", self.b.depth + 1))
        try:
            if self._condition_assigns(node.test):
                self.while_loop(lambda: scalar.constant(True), [_leave_unless(node.test), *node.body], set())
            else:
                self.while_loop(condition, node.body, set())
        finally:
            self.frame.loops.pop()

    def _condition_assigns(self, test: ast.expr) -> bool:
        """Whether evaluating the condition of a loop changes variables (or draws random numbers): its region could not pass them on."""
        draws = self.uses_random and any(isinstance(n, ast.Call) for n in ast.walk(test))
        return draws or bool(syntax.assigned([ast.Expr(test)], self.references))

    def while_loop(
        self,
        condition: Callable[[], Value],
        body: Sequence[ast.stmt],
        extra: set[str],
        start: Branch | None = None,
        step: Branch | None = None,
    ) -> None:
        """A `while` operation around ``body``, left early by its jumps; ``start`` and ``step`` begin and end each iteration."""
        jumps = syntax.jumps(body)
        changed = self.names_of(body) | extra
        saved = {name: self.frame.vars.get(name) for name in (BREAK, CONTINUE)}
        if BREAK in jumps:
            self.frame.vars[BREAK] = scalar.constant(False)
            changed.add(BREAK)
        flags = [f for f in (BREAK, RETURNED) if f in jumps]

        def go_on() -> Value:
            value = condition()
            for flag in flags:
                value = scalar.bit_and(scalar.logical_not(self.frame.vars[flag]), value)
            return value

        def once() -> None:
            self.frame.vars[CONTINUE] = scalar.constant(False)
            if start is not None:
                start()
            self.block(body)
            if step is not None:
                step()

        self._while_op(go_on, once, self.carried(changed - {CONTINUE}))
        for name, value in saved.items():
            self.frame.vars.pop(name, None)
            if value is not None:
                self.frame.vars[name] = value

    def _while_op(self, condition: Callable[[], Value], body: Branch, carried: Sequence[str]) -> None:
        before, loc = dict(self.frame.vars), self.b.loc
        models = {name: before[name] for name in carried}
        initial = self.values_of(carried)
        types = [op.type for op in initial]
        self.bind(carried, models, self.b.begin(*types, names=_names(carried, models)))
        test = condition()
        test_region = self.b.end([test.op])
        self.frame.vars = dict(before)
        self.bind(carried, models, self.b.begin(*types, names=_names(carried, models)))
        self._in_loop(body)
        body_region = self.b.end(self._final(carried, models))
        self.leave_loop(before)
        self.b.loc = loc
        self.bind(carried, models, self.b.while_(initial, test_region, body_region))

    def for_op(self, begin: Op, end: Op, body: Callable[[Value], None], changed: set[str]) -> None:
        """A serial `for` operation; ``body`` gets the index."""
        carried = self.carried(changed)
        before, loc = dict(self.frame.vars), self.b.loc
        models = {name: before[name] for name in carried}
        initial = self.values_of(carried)
        index, *params = self.b.begin(begin.type, *[op.type for op in initial], names=_names(carried, models))
        self.bind(carried, models, params)
        self._in_loop(lambda: body(Value(index)))
        region = self.b.end(self._final(carried, models))
        self.leave_loop(before)
        self.b.loc = loc
        self.bind(carried, models, self.b.for_(begin, end, initial, region))

    def _in_loop(self, body: Branch) -> None:
        self.frame.lost = dict(self.frame.lost)
        body()

    def _final(self, carried: Sequence[str], models: dict[str, Any]) -> list[Op]:
        out: list[Op] = []
        for name in carried:
            out += [scalar.cast(v, m.dtype).op for v, m in zip(leaves(self.frame.vars[name]), leaves(models[name]))]
        return out

    def leave_loop(self, before: dict[str, Any]) -> None:
        """End of a loop: what its body introduced is gone."""
        self.forget(before, _LOOP_LOCAL)
        self.frame.vars = dict(before)

    def _returning(self) -> str:
        """What a `return` here leaves."""
        return "a kernel" if self.frame.is_kernel else f"function `{self.frame.source.name}`, called at the top of a kernel,"

    # --- functions -------------------------------------------------------------------------------------------------------

    def function_body(self, statements: list[ast.stmt]) -> None:
        """Trace the body of the current frame; the value it returns is left in its variable RESULT."""
        if not _falls_through_regularly(statements):
            model = self.probe_result(statements)
            self.frame.vars[RETURNED] = scalar.constant(False)
            if is_runtime(model):
                zeros = [scalar.constant(0, v.dtype) for v in leaves(model)]
                self.frame.vars[RESULT] = rebuild(model, zeros)
        self.block(statements)
        self._check_result(statements)

    def _check_result(self, statements: list[ast.stmt]) -> None:
        """Every path of a function that returns a value must return one, all of one kind."""
        frame = self.frame
        why = frame.lost.get(RESULT, "") if RESULT not in frame.vars else ""
        flagged = RETURNED in frame.vars and RESULT in frame.vars
        if flagged and scalar.known(frame.vars[RETURNED]) is not True and syntax.may_end(statements):
            why = ONE_BRANCH
        if why and self.probing is not frame:
            what = "returns values of different kinds" if why == ONE_KIND else "returns a value, but not on every path"
            tree = frame.source.tree
            kind = "kernel" if frame.is_kernel else "function"
            raise self.syntax_error(f"{kind} `{tree.name}` {what}", tree, "end every path with `return`, and values of one shape")

    def probe_result(self, statements: list[ast.stmt]) -> Any:
        """What the function returns: trace it up to the first `return`, and throw that away."""
        frame, depth, outer = self.frame, self.b.depth, self.probing
        saved = (dict(frame.vars), dict(frame.lost), list(frame.loops), self.temps)
        self.probing = frame
        self.b.begin()
        model = None
        try:
            frame.vars[RETURNED] = scalar.constant(False)
            self.block(statements)
        except FoundReturn as found:
            model = found.value
        finally:
            self.probing = outer
            while self.b.depth > depth:
                self.b.suspend()
            frame.vars, frame.lost, frame.loops, self.temps = saved
            self.frame = frame
        return model

    probing: Frame | None = None  # the function whose first `return` is looked for


def _leave_unless(test: ast.expr) -> ast.If:
    """``if not test: break``, at the place of ``test``."""
    stop = ast.copy_location(ast.Break(), test)
    return ast.copy_location(ast.If(ast.copy_location(ast.UnaryOp(ast.Not(), test), test), [stop], []), test)


class FoundReturn(Exception):
    """The value of the first `return`, while probing for it."""

    def __init__(self, value: Any) -> None:
        super().__init__()
        self.value = value


def _falls_through_regularly(statements: Sequence[ast.stmt]) -> bool:
    """Whether every `return` ends its branch, so that no flag is needed."""
    for k, node in enumerate(statements):
        if isinstance(node, ast.Return):
            return True
        if RETURNED not in syntax.jumps([node]):
            continue
        if not isinstance(node, ast.If):
            return False
        rest = list(statements[k + 1 :])
        body_jumps, else_jumps = syntax.always_jumps(node.body), syntax.always_jumps(node.orelse)
        if rest and not body_jumps and not else_jumps:
            return False
        return all(
            _falls_through_regularly([*side, *([] if jumped else rest)])
            for side, jumped in ((node.body, body_jumps), (node.orelse, else_jumps))
        )
    return True


def _serializes(statement: ast.stmt | None) -> bool:
    """Whether a statement is `loop_config(serialize=True)`."""
    call = statement.value if isinstance(statement, ast.Expr) else None
    options = call.keywords if isinstance(call, ast.Call) else []
    return any(o.arg == "serialize" and isinstance(o.value, ast.Constant) and bool(o.value.value) for o in options)


def _names(carried: Sequence[str], models: dict[str, Any]) -> list[str | None]:
    """What the source calls each carried scalar; None for what only the compiler has."""
    names: list[str | None] = []
    for name in carried:
        parts = leaves(models[name])
        for k in range(len(parts)):
            names.append(None if name.startswith("%") else name if len(parts) == 1 else f"{name}[{k}]")
    return names
