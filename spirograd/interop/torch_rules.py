"""The rules by which torch differentiates the maps of an operator, in reverse and in forward mode.

They serve two families of functions: custom operators, which stay in compiled graphs, and functions of autograd, for `torch.func` and
forward mode. Custom operators cannot have rules for these: their tangents would be zero, with no error.

Arguments of the maps (see `kernel_function`), with `Active` before them:

==========  ==========  =============
launch      x           y
gradient    u, y, x     J(x)^T u
tangent     v, y, x     J(x) v
second      v, u, y, x  J(x) v and the Hessian of <u, f> times v, which has no derivative
==========  ==========  =============
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Iterable, Sequence
from types import ModuleType
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar

from spirograd.base.errors import SpirogradUnsupportedError
from spirograd.base.records import dataclass, replace
from spirograd.interop.torch_batches import VmapInfo, looped, over_autograd_batches
from spirograd.interop.torch_maps import Context, refuse_number

if TYPE_CHECKING:
    from torch import Tensor

    from spirograd.interop.torch_registration import Differentiable


T = TypeVar("T")
Values = Sequence[Any]  # tensors, numbers, and `Active`


@dataclass(frozen=True, slots=True)
class Active:
    """Which arguments of the kernel have directions or gradients (``along``), and with respect to which second derivatives are ``asked``.
    No tuple, which transforms would take apart."""

    along: tuple[bool, ...]
    asked: tuple[bool, ...] = ()


@dataclass(slots=True)
class Maps:
    """Functions of torch for the four maps."""

    launch: Callable[..., object]
    gradient: Callable[..., Sequence[Tensor]]
    tangent: Callable[..., Sequence[Tensor]]
    second: Callable[..., Sequence[Tensor]]


def functions_of(torch: ModuleType, operator: Differentiable, custom: Maps) -> Maps:
    """Return the maps as functions of autograd, which call those of ``custom`` operators."""
    maps = replace(custom)
    rules = Rules(torch, operator, maps)
    for name in ("launch", "gradient", "tangent", "second"):
        members = {part: getattr(rules, f"{part}_of_{name}") for part in ("setup_context", "backward", "jvp")}
        members["forward"] = _tupled(getattr(custom, name))
        members["vmap"] = functools.partial(_batched, torch, operator.name, maps, name)
        function: Any = type(f"{operator.name}_{name}", (torch.autograd.Function,), {k: staticmethod(m) for k, m in members.items()})
        setattr(maps, name, over_autograd_batches(torch, operator.name, function.apply))
    return maps


def _tupled(forward: Callable[..., object]) -> Callable[..., object]:
    def call(*args: object) -> object:
        results = forward(*args)
        return tuple(results) if isinstance(results, list) else results

    return call


def _batched(torch: ModuleType, label: str, maps: Maps, name: str, info: VmapInfo, dims: Sequence[int | None], *args: object) -> object:
    return looped(torch, label, getattr(maps, name), info, dims, args)


class Rules:
    """For each map, what it saves (``setup_context``), and its derivatives (``backward``, ``jvp``)."""

    def __init__(self, torch: ModuleType, operator: Differentiable, maps: Maps) -> None:
        self.torch, self.op, self.maps = torch, operator, maps
        self.results = max(len(operator.outputs), 1)

    def _save(self, ctx: Context, values: Sequence[object]) -> None:
        """Save values of any kind."""
        tensors = [v for v in values if isinstance(v, self.torch.Tensor)]
        ctx.save_for_backward(*tensors)
        ctx.save_for_forward(*tensors)
        ctx.others = [None if isinstance(v, self.torch.Tensor) else (v,) for v in values]

    def _saved(self, ctx: Context) -> Values:
        remaining = iter(ctx.saved_tensors)
        return [next(remaining) if other is None else other[0] for other in ctx.others]

    def _active(self, args: Values, flags: Iterable[object]) -> tuple[bool, ...]:
        """Return the arguments of the kernel that have gradients, among those with ``flags``. Raise for numbers among those."""
        flags = list(flags)
        for flag, name, value in zip(flags, self.op.inputs, args):
            if flag and name not in self.op.arrays and isinstance(value, self.torch.Tensor):
                refuse_number(self.op.label, name, "has a derivative")
        return tuple(bool(flag and n in self.op.arrays and v.is_floating_point()) for flag, n, v in zip(flags, self.op.inputs, args))

    def _filled(self, given: Sequence[Tensor | None], like: Sequence[Tensor]) -> list[Tensor]:
        return [self.torch.zeros_like(v) if g is None else g for g, v in zip(given, like)]

    def _chosen(self, values: Sequence[T], which: Sequence[bool]) -> list[T]:
        return [*itertools.compress(values, which)]

    def _spread(self, values: Iterable[T], which: Sequence[bool]) -> list[T | None]:
        remaining = iter(values)
        return [next(remaining) if chosen else None for chosen in which]

    def _floats(self, tensors: Sequence[Tensor]) -> list[bool]:
        return [tensor.is_floating_point() for tensor in tensors]

    def _refuse(self, problem: str, hint: str) -> NoReturn:
        raise SpirogradUnsupportedError(f"{self.op.label} has {problem}", None, hint)

    def _parts(self, count: int, flat: Values) -> tuple[Values, Sequence[Tensor], Values]:
        """Return the first ``count`` values, those of the outputs, and those of the arguments of the kernel."""
        return flat[:count], flat[count : count + self.results], flat[count + self.results :]

    # --- launch ------------------------------------------------------------------------------------------------------------

    def setup_context_of_launch(self, ctx: Context, inputs: Sequence[object], output: object) -> None:
        outputs = output if isinstance(output, tuple) else (output,)
        ctx.mark_non_differentiable(*(out for out in outputs if not out.is_floating_point()))
        self._save(ctx, [*outputs, *inputs])

    def backward_of_launch(self, ctx: Context, *adjoints: Tensor | None) -> tuple[Tensor | None, ...]:
        _, outputs, args = self._parts(0, self._saved(ctx))
        along = self._active(args, ctx.needs_input_grad)
        if not any(along):
            return (None,) * len(args)
        return tuple(self._spread(self.maps.gradient(Active(along), *self._filled(adjoints, outputs), *outputs, *args), along))

    def jvp_of_launch(self, ctx: Context, *tangents: Any) -> Any:
        _, outputs, args = self._parts(0, self._saved(ctx))
        along = self._active(args, [t is not None for t in tangents])
        directions = self._chosen(tangents, along)
        if self.op.result is not None:
            slopes = self.maps.gradient(Active(along), self.torch.ones_like(outputs[0]), *outputs, *args)
            return sum(((g * v).sum() for g, v in zip(slopes, directions)), self.torch.zeros_like(outputs[0]))
        results = self._spread(self.maps.tangent(Active(along), *directions, *outputs, *args), self._floats(outputs))
        return results[0] if len(results) == 1 else tuple(results)

    # --- gradient ------------------------------------------------------------------------------------------------------------

    def setup_context_of_gradient(self, ctx: Context, inputs: Values, output: object) -> None:
        self._save(ctx, inputs)

    def backward_of_gradient(self, ctx: Context, *cotangents: Tensor | None) -> tuple[Tensor | None, ...]:
        active, *flat = self._saved(ctx)
        adjoints, outputs, args = self._parts(self.results, flat)
        asked = self._active(args, ctx.needs_input_grad[-len(args) :])
        directions = self._filled(cotangents, self._chosen(args, active.along))
        results = iter(self.maps.second(Active(active.along, asked), *directions, *adjoints, *outputs, *args))
        by_adjoints = self._spread(results, self._floats(adjoints))
        return None, *by_adjoints, *[None] * self.results, *self._spread(results, asked)

    def jvp_of_gradient(self, ctx: Context, _: object, *tangents: Tensor | None) -> tuple[Tensor, ...]:
        active, *flat = self._saved(ctx)
        adjoints, outputs, args = self._parts(self.results, flat)
        by_adjoints, _, by_args = self._parts(self.results, tangents)
        parts = []
        if any(t is not None for t in by_adjoints):
            parts.append(self.maps.gradient(active, *self._filled(by_adjoints, adjoints), *outputs, *args))
        along = self._active(args, [t is not None for t in by_args])
        if any(along):
            results = self.maps.second(Active(along, active.along), *self._chosen(by_args, along), *adjoints, *outputs, *args)
            parts.append(results[sum(self._floats(adjoints)) :])
        if not parts:
            return tuple(self.torch.zeros_like(v) for v in self._chosen(args, active.along))
        return tuple(sum(terms[1:], terms[0]) for terms in zip(*parts))

    # --- tangent -------------------------------------------------------------------------------------------------------------

    setup_context_of_tangent = setup_context_of_gradient

    def backward_of_tangent(self, ctx: Context, *adjoints: Tensor | None) -> tuple[Tensor | None, ...]:
        active, *flat = self._saved(ctx)
        directions, outputs, args = self._parts(sum(active.along), flat)
        weights = self._filled(self._spread(adjoints, self._floats(outputs)), outputs)
        asked = self._active(args, ctx.needs_input_grad[-len(args) :])
        by_directions: Sequence[Tensor | None] = [None] * len(directions)
        if any(ctx.needs_input_grad[1 : 1 + len(directions)]):
            by_directions = self.maps.gradient(Active(active.along), *weights, *outputs, *args)
        by_args: Sequence[Tensor | None] = [None] * len(args)
        if any(asked):
            results = self.maps.second(Active(active.along, asked), *directions, *weights, *outputs, *args)
            by_args = self._spread(results[sum(self._floats(weights)) :], asked)
        return None, *by_directions, *[None] * self.results, *by_args

    def jvp_of_tangent(self, ctx: Context, _: object, *tangents: Tensor | None) -> tuple[Tensor, ...]:
        active, *flat = self._saved(ctx)
        directions, outputs, args = self._parts(sum(active.along), flat)
        by_directions, _, by_args = self._parts(len(directions), tangents)
        if any(self._active(args, [t is not None for t in by_args])):
            self._refuse("no forward mode over forward mode", "use `torch.func.jacfwd(torch.func.jacrev(f))`, or `torch.func.hessian(f)`")
        return tuple(self.maps.tangent(active, *self._filled(by_directions, directions), *outputs, *args))

    # --- second --------------------------------------------------------------------------------------------------------------

    def setup_context_of_second(self, ctx: Context, inputs: Sequence[object], output: object) -> None:
        """Save nothing: there are no third derivatives."""

    def backward_of_second(self, ctx: Context, *cotangents: Tensor | None) -> NoReturn:
        self._refuse("first and second derivatives, no third ones", "differentiate at most twice")

    def jvp_of_second(self, ctx: Context, *tangents: object) -> NoReturn:
        problem = "first and second derivatives, no third ones, and in forward mode a second one would have a tangent, which is a third"
        self._refuse(problem, "call `torch.autograd.grad` after the dual level, or differentiate at most twice")
