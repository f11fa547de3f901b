"""Tracing `for`: ranges, index spaces, fields and arrays, unrolled loops; parallel at the outermost level of a kernel."""

from __future__ import annotations

import ast
import functools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from spirograd.base.dtypes import i32, i64, promote, u1, u32
from spirograd.base.wording import counted
from spirograd.ir import ops as ir
from spirograd.ir.nodes import LoopAttr, Op
from spirograd.lang import forms, randoms, scalar
from spirograd.lang.data.field import MatrixField, ScalarField, StructField
from spirograd.lang.data.scalar_field import indices_of
from spirograd.lang.data.tree import SNode
from spirograd.lang.frontend import names as syntax
from spirograd.lang.frontend.calls import RunTimeRange
from spirograd.lang.frontend.control import Control, StaticBreak, StaticContinue
from spirograd.lang.frontend.index_spaces import extent, product, range_number, range_type, strided
from spirograd.lang.frontend.memory import ArrayProxy
from spirograd.lang.frontend.names import BREAK, RETURNED, RNG
from spirograd.lang.frontend.sharing import ORDERED, PRIVATE, SHARED, sharing
from spirograd.lang.frontend.state import LoopScope, MemoryVariable, is_runtime
from spirograd.lang.matrix import make
from spirograd.lang.scalar import Value, describe, type_error

MAX_UNROLLED = 100_000
_INDEX = "it is the index of a loop, and ends with it; keep it in a variable that is assigned before the loop"
# Gives the loop's targets their values, from the index of the flat loop.
Bind = Callable[[Value], None]


class Loops(Control):
    """`for` in all its forms."""

    loop_options: dict[str, Any]
    parallel_loops = 0

    def for_statement(self, node: ast.For) -> None:
        if node.orelse:
            raise self.syntax_error("`else` of a loop is not supported in kernels", node.orelse[0], "use a flag")
        options, self.loop_options = self.loop_options, {}
        if self._is_static(node.iter):
            self.unroll(node)
            return
        space = self.eval(node.iter)
        self.at(node.iter)
        self.run_loop(node, space, options)

    def only_unrolled(self, node: ast.For) -> bool:
        return all(self._is_static(n.iter) for n in ast.walk(node) if isinstance(n, ast.For))

    def _is_static(self, node: ast.expr) -> bool:
        return isinstance(node, ast.Call) and self._static_callee(node.func) is forms.static

    # --- unrolled --------------------------------------------------------------------------------------------------------

    def static_iterable(self, node: ast.expr) -> list[Any]:
        unwrapped = node.args[0] if isinstance(node, ast.Call) and self._is_static(node) and len(node.args) == 1 else node
        space = self.eval(unwrapped)  # without `static`: the entries of a vector may be run-time values, their number is known
        self.at(node)
        if isinstance(space, (RunTimeRange, Value)):
            raise type_error(f"an unrolled loop needs bounds that are known while compiling, got {describe(space)}")
        try:
            items = list(space)
        except TypeError:
            raise type_error(f"cannot loop over {describe(space)} while compiling") from None
        if len(items) > MAX_UNROLLED:
            raise type_error(f"this loop would be unrolled {len(items)} times", "leave `sg.static` away to loop at run time")
        return items

    def unroll(self, node: ast.For) -> None:
        items = self.static_iterable(node.iter)
        self.frame.loops.append(LoopScope("static", self.b.depth))
        try:
            for item in items:
                self.bind_static(node.target, item)
                try:
                    self.block(node.body)
                except StaticContinue:
                    continue
                except StaticBreak:
                    break
        finally:
            self.frame.loops.pop()

    # --- run-time loops --------------------------------------------------------------------------------------------------

    def run_loop(self, node: ast.For, space: Any, options: dict[str, Any]) -> None:
        grouped = isinstance(space, forms.grouped)
        inner = space.space if isinstance(space, forms.grouped) else space
        if isinstance(inner, (range, RunTimeRange)):
            if grouped:
                raise type_error("`grouped` takes a field, an array or an ndrange, not a range", "write `for i in range(...)`")
            self.range_loop(node, inner, options)
            return
        if isinstance(inner, forms.ndrange):
            bounds, decode = self.ndrange_space(inner)
        elif isinstance(inner, (ScalarField, MatrixField, StructField, SNode)):
            bounds, decode = field_space(inner)
        elif isinstance(inner, ArrayProxy):
            bounds, decode = self.array_space(inner)
        else:
            hint = "to loop over a list or a vector while compiling: `for x in sg.static(...)`" if _is_iterable(inner) else ""
            hint = "write `range(...)`" if scalar.is_scalar(inner) else hint
            hint = "annotate the argument that it is `sg.types.NDArray`" if isinstance(inner, np.ndarray) else hint
            raise type_error(f"cannot loop over {describe(inner)}", hint)

        def bind(index: Value) -> None:
            indices = decode(index)
            self.bind_indices(node.target, indices, grouped)

        self.any_loop(node, scalar.constant(0, bounds.dtype), bounds, bind, options)

    def bind_indices(self, target: ast.expr, indices: Sequence[Value], grouped: bool) -> None:
        if isinstance(target, ast.Name):
            if grouped:
                self.frame.vars[target.id] = make(list(indices), (len(indices),))  # of a 0-d space: no indices
                return
            if len(indices) == 1:
                self.frame.vars[target.id] = indices[0]
                return
            raise self.syntax_error(
                f"this loop has {len(indices)} indices, and one name",
                target,
                f"name them all, or write `for {target.id} in sg.grouped(...)`",
            )
        if grouped:
            raise self.syntax_error("`grouped` gives one vector of indices", target, "write `for I in sg.grouped(...)`")
        if isinstance(target, (ast.Tuple, ast.List)) and len(target.elts) != len(indices):
            message = f"this loop has {counted(len(indices), 'index', 'indices')}, and {counted(len(target.elts), 'name')}"
            raise self.syntax_error(message, target)
        self.bind_static(target, list(indices))

    def range_loop(self, node: ast.For, space: Any, options: dict[str, Any]) -> None:
        if not isinstance(node.target, ast.Name):
            raise self.syntax_error("a loop over a range has one index, which is a name", node.target)
        name = node.target.id
        if isinstance(space, range):
            begin, end, step = space.start, space.stop, space.step
        else:
            begin, end, step = space.begin, space.end, space.step
        step = scalar.known(step)
        if scalar.is_number(step) and step == 0:
            raise type_error("the step of a range cannot be 0")
        t = range_type(begin, end, step)
        low, high, value = strided(range_number(begin, t), range_number(end, t), step)

        def bind(index: Value) -> None:
            self.frame.vars[name] = value(index)

        self.any_loop(node, low, high, bind, options)

    def ndrange_space(self, space: forms.ndrange, fits: bool = False) -> tuple[Value, Callable[[Value], list[Value]]]:
        """Number of points of an index space, and the decoding of a flat index into indices, the last axis fastest. ``fits``: see
        `product`."""
        extents, begins = [], []
        for begin, end in space.bounds:
            low, high = scalar.as_value(begin), scalar.as_value(end)
            if low.dtype.is_float or high.dtype.is_float:
                raise type_error("the bounds of an ndrange are integers", "cast them: `int(x)`; `//` divides integers to an integer")
            low, high, _ = scalar.unify(scalar.cast(low, i32) if low.dtype.bits < 32 else low, high)
            begins.append(low)
            extents.append(extent(low, high))
        total = product(extents, fits)
        order = [extents[axis][0] for axis in space.axes]
        t = functools.reduce(promote, [n.dtype for n in begins])

        def decode(index: Value) -> list[Value]:
            out: list[Value] = [index] * len(order)
            for position in reversed(range(len(order))):
                axis = space.axes[position]
                here = index if position == 0 else scalar.raw_mod(index, order[position])
                index = index if position == 0 else scalar.raw_div(index, order[position])
                out[axis] = scalar.cast(here, t) + begins[axis]
            return out

        return total, decode

    def array_space(self, array: ArrayProxy) -> tuple[Value, Callable[[Value], list[Value]]]:
        """As `ndrange_space`, of all elements of an array."""
        shape = array.shape
        if not shape:
            return scalar.constant(1), lambda index: []
        # The type of arrays tells whether they are larger.
        return self.ndrange_space(forms.ndrange(*[scalar.cast(n, i64) for n in shape] if array.decl.wide else shape), True)

    def any_loop(self, node: ast.For, begin: Value, end: Value, bind: Bind, options: dict[str, Any]) -> None:
        parallel = self.at_top_level() and not options.get("serialize", False) and not self._needs_order(node, begin, end)
        self.frame.loops.append(LoopScope("parallel" if parallel else "serial", self.b.depth + 1))
        try:
            if parallel:
                self.parallel_loop(node, begin.op, end.op, bind, options)
            else:
                self.serial_loop(node, begin, end, bind)
        finally:
            self.frame.loops.pop()

    def serial_loop(self, node: ast.For, begin: Value, end: Value, bind: Bind) -> None:
        jumps = syntax.jumps(node.body)
        targets = {n.id for n in ast.walk(node.target) if isinstance(n, ast.Name)}
        outer = {name: self.frame.vars.pop(name) for name in targets if name in self.frame.vars}
        if BREAK not in jumps and RETURNED not in jumps:

            def body(index: Value) -> None:
                bind(index)
                self.frame.vars["%continue"] = scalar.constant(False)
                self.block(node.body)

            self.for_op(begin.op, end.op, body, self.names_of(node.body) - targets)
        else:
            self._serial_with_jumps(node, begin, end, bind)
        self.frame.lost |= dict.fromkeys(targets, _INDEX)
        self.frame.vars.update(outer)

    def _serial_with_jumps(self, node: ast.For, begin: Value, end: Value, bind: Bind) -> None:
        counter = f"%index{len(self.frame.loops)}"
        self.frame.vars[counter] = begin

        def condition() -> Value:
            return scalar.cast(scalar.less(self.frame.vars[counter], end), u1)

        def start() -> None:
            bind(self.frame.vars[counter])

        def step() -> None:
            self.frame.vars[counter] = self.frame.vars[counter] + 1

        self.while_loop(condition, node.body, {counter}, start, step)
        del self.frame.vars[counter]

    # --- parallel loops --------------------------------------------------------------------------------------------------

    def parallel_loop(self, node: ast.For, begin: Op, end: Op, bind: Bind, options: dict[str, Any]) -> None:
        jumps = syntax.jumps(node.body)
        if BREAK in jumps:
            raise self.syntax_error(
                "`break` cannot leave a parallel loop",
                _find(node, ast.Break),
                "put `sg.loop_config(serialize=True)` before the loop, or loop in an inner loop",
            )
        if RETURNED in jumps:
            raise self.syntax_error(
                "a parallel loop cannot return from the kernel", _find(node, ast.Return), "store the result, and return it after the loop"
            )
        memory = {name: held for name, held in self.frame.vars.items() if isinstance(held, MemoryVariable)}
        self._share_variables(node)
        before, loc = dict(self.frame.vars) | memory, self.b.loc
        self.parallel_loops += 1
        (index,) = self.b.begin(begin.type)
        key = self.random_key if self.uses_random else None
        if self.uses_random:
            seed = Value(self.b.emit(ir.seed, type=u32))
            self.random_key = (randoms.stream_key(seed, self.parallel_loops), scalar.cast(Value(index), u32))
            self.frame.vars[RNG] = scalar.constant(0, u32)
        bind(Value(index))
        self.frame.vars["%continue"] = scalar.constant(False)
        self.block(node.body)
        region = self.b.end()
        self.leave_loop(before)
        self.frame.lost |= {n.id: _INDEX for n in ast.walk(node.target) if isinstance(n, ast.Name) and n.id not in before}
        if key is not None:
            self.random_key = key
        attr = LoopAttr(True, str(options.get("name") or ""), int(options.get("block_dim") or 0))
        self.b.loc = loc
        self.b.emit(ir.for_, begin, end, attr=attr, type=(), regions=(region,))

    def _needs_order(self, node: ast.For, begin: Value, end: Value) -> bool:
        """Whether a loop that could be parallel must run in order all the same.

        A function may leave its loops early; and the iterations of any loop may hand on values in variables.
        """
        if not self.frame.is_kernel and syntax.jumps(node.body) & {BREAK, RETURNED}:
            return True
        for name, use in self._outer_variables(node):
            if use == ORDERED:
                if _at_most_one(begin, end):
                    return True
                self.trace.warn(
                    ("order", str(self.b.loc), name),
                    f"{self.b.loc}: this loop runs in order, not in parallel: `{name}` carries a value from one iteration to the next or "
                    "to what follows. If the order does not matter, update it with `+=` or `sg.atomic_max(...)`; "
                    "`sg.loop_config(serialize=True)` silences this.",
                )
                return True
        return False

    def _outer_variables(self, node: ast.For) -> list[tuple[str, str]]:
        """Variables from outside that a parallel loop may change, and how its iterations use them."""
        targets = {n.id for n in ast.walk(node.target) if isinstance(n, ast.Name)}
        frame = self.frame
        held = (name for name in sorted(self.names_of(node.body) - targets) if not name.startswith("%"))
        names = [name for name in held if is_runtime(frame.vars.get(name)) or isinstance(frame.vars.get(name), MemoryVariable)]
        tree = frame.source.tree
        return [(name, sharing(name, node, tree, name in frame.by_reference, self.references, self._is_atomic)) for name in names]

    def _is_atomic(self, call: ast.Call) -> bool:
        callee = self._static_callee(call.func)
        return callee in forms.ATOMICS or callee in (forms.atomic_sub, forms.atomic_cas)

    def _share_variables(self, node: ast.For) -> None:
        """Variables from outside that the iterations update together move to memory; of the private ones each iteration gets a copy."""
        for name, use in self._outer_variables(node):
            held = self.frame.vars[name]
            if use == SHARED and not isinstance(held, MemoryVariable):
                self.to_memory(name)
            elif use == PRIVATE and isinstance(held, MemoryVariable):
                self.frame.vars[name] = held.place.load()


def _at_most_one(begin: Value, end: Value) -> bool:
    """Whether a loop is known to run once at most, as ``for _ in range(1)``, which makes what is inside run in order."""
    first, last = scalar.known(begin), scalar.known(end)
    return isinstance(first, int) and isinstance(last, int) and last - first <= 1


def field_space(field: ScalarField | MatrixField | StructField | SNode) -> tuple[Value, Callable[[Value], list[Value]]]:
    """Number of elements of a field, or of cells of a node, and the decoding of a flat index in the order of memory."""
    total = 1
    for n in field.shape:
        total *= n

    def decode(index: Value) -> list[Value]:
        if isinstance(field, SNode):
            return indices_of(field.decode(), len(field.shape), (), index)
        return list(field.loop_order(index))

    return scalar.constant(total, i64 if total > 2**31 - 1 else i32), decode


def _is_iterable(x: Any) -> bool:
    return hasattr(x, "__iter__")


def _find(node: ast.AST, kind: type[ast.AST]) -> ast.AST:
    return next(n for n in ast.walk(node) if isinstance(n, kind))
