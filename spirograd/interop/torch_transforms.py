"""Operators of torch under `torch.func` and in forward mode: the kernel, its gradient, its tangents, and their derivatives as functions of
autograd, which have rules for these transforms. Custom operators cannot have such rules: their tangents would be zero, with no error.

For a kernel y = f(x):

==========  =============  ================================================================
function    arguments      results
==========  =============  ================================================================
launch      x              y
gradient    u, y, x        J(x)^T u; linear in u
tangent     v, y, x        J(x) v; linear in v
second      v, u, y, x     J(x) v and the Hessian of <u, f> times v, which has no derivative
==========  =============  ================================================================

y is passed along where gradients read what a kernel wrote; derivatives with respect to x are total, so that y as an argument has none.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator, Sequence
from types import SimpleNamespace
from typing import Any

from spirograd.base.errors import SpirogradUnsupportedError
from spirograd.base.records import dataclass


@dataclass(frozen=True, slots=True)
class Which:
    """The arguments of the kernel that directions or gradients are for: ``needed`` and ``asked``, as `torch_op` has them. No tuple, which
    transforms would take apart."""

    needed: tuple[bool, ...]
    asked: tuple[bool, ...] = ()


def functions_of(operator: Any) -> SimpleNamespace:
    """The four functions of an operator of `torch_op`."""
    import torch

    made = SimpleNamespace()
    rules = _Rules(torch, operator, made)
    for name in ("launch", "gradient", "tangent", "second"):
        members = {part: staticmethod(getattr(rules, f"{part}_of_{name}")) for part in ("forward", "setup", "backward", "jvp")}
        members["setup_context"] = members.pop("setup")
        members["vmap"] = staticmethod(functools.partial(_looped, torch, operator.label, made, name))
        function: Any = type(f"{operator.label}_{name}", (torch.autograd.Function,), members)
        setattr(made, name, over_autograd_batches(torch, operator.label, function.apply))
    return made


def _looped(torch: Any, label: str, made: Any, name: str, info: Any, dims: Sequence[Any], *args: Any) -> Any:
    """The function for each entry of a batch."""
    axes = [d if isinstance(a, torch.Tensor) else None for a, d in zip(args, dims)]
    results = [getattr(made, name)(*(a if d is None else a.select(d, k) for a, d in zip(args, axes))) for k in range(info.batch_size)]
    if not results:
        raise no_entries(label)
    if isinstance(results[0], torch.Tensor):
        return torch.stack(results), 0
    stacked = tuple([torch.stack(parts) for parts in zip(*results)])
    return stacked, (0,) * len(stacked)


def no_entries(label: str) -> SpirogradUnsupportedError:
    """The error for an empty batch, of whose results nothing is known."""
    return SpirogradUnsupportedError(f"`{label}` is called for a batch of no entries", None, "leave the call away where there are none")


def over_autograd_batches(torch: Any, label: str, operator: Callable[..., Any]) -> Callable[..., Any]:
    """``operator`` for each entry of a batch that autograd makes: `torch.autograd.grad(is_grads_batched=True)`,
    `torch.autograd.functional.jacobian(vectorize=True)`. These are not batches of `torch.func.vmap`: torch has no rules for them, and what
    a function of autograd returns for one would lose its history. They may be nested, each at a level of its own, from 1 on."""
    batched = torch._C._functorch.is_legacy_batchedtensor

    def is_batched(value: Any) -> bool:
        return any(map(is_batched, value)) if isinstance(value, (list, tuple)) else isinstance(value, torch.Tensor) and batched(value)

    def apart(value: Any, level: int) -> Any:
        """A value with the batch of this level as a `_Batch`."""
        if isinstance(value, (list, tuple)):
            return [apart(v, level) for v in value]
        if not is_batched(value):
            return value
        whole, other = (torch._remove_batch_dim(value, level, size, 0) for size in (1, 2))  # the size is for values without this level
        return _Batch(whole) if whole.shape == other.shape else value

    def at(level: int, args: Sequence[Any]) -> Any:
        if not is_batched(args):
            return operator(*args)
        parts = [apart(a, level) for a in args]
        size = next(_sizes(parts), None)
        if size is None:
            return at(level - 1, args)
        if not size:
            raise no_entries(label)
        results = [at(level - 1, [_entry(part, k) for part in parts]) for k in range(size)]
        if isinstance(results[0], torch.Tensor):
            return torch._add_batch_dim(torch.stack(results), 0, level)
        return [torch._add_batch_dim(torch.stack(entries), 0, level) for entries in zip(*results)]

    def call(*args: Any) -> Any:
        if not is_batched(args):
            return operator(*args)
        level = torch._C._vmapmode_increment_nesting() - 1
        torch._C._vmapmode_decrement_nesting()
        return at(level, args)

    return call


@dataclass(frozen=True, slots=True)
class _Batch:
    """Entries along the first axis."""

    whole: Any


def _sizes(parts: Sequence[Any]) -> Iterator[int]:
    """How many entries each batch has."""
    for part in parts:
        if isinstance(part, list):
            yield from _sizes(part)
        elif isinstance(part, _Batch):
            yield part.whole.shape[0]


def _entry(part: Any, k: int) -> Any:
    return [_entry(p, k) for p in part] if isinstance(part, list) else part.whole[k] if isinstance(part, _Batch) else part


class _Rules:
    """Of each function what it computes (forward), what it keeps (setup), and its derivatives (backward, jvp)."""

    def __init__(self, torch: Any, operator: Any, functions: Any) -> None:
        self.torch, self.op, self.f = torch, operator, functions
        self.names = list(operator.inputs)
        self.results = max(len(operator.outputs), 1)

    def _keep(self, ctx: Any, values: Sequence[Any]) -> None:
        """Save values of any kind."""
        tensors = [v for v in values if isinstance(v, self.torch.Tensor)]
        ctx.save_for_backward(*tensors)
        ctx.save_for_forward(*tensors)
        ctx.kept = [None if isinstance(v, self.torch.Tensor) else (v,) for v in values]

    def _kept(self, ctx: Any) -> list[Any]:
        left = iter(ctx.saved_tensors)
        return [next(left) if one is None else one[0] for one in ctx.kept]

    def _active(self, args: Sequence[Any], flags: Iterable[Any]) -> tuple[bool, ...]:
        """The arguments of the kernel that have gradients, among those that ``flags`` chooses. Raises for numbers among those."""
        flags = list(flags)
        for flag, n, v in zip(flags, self.names, args):
            if flag and n not in self.op.tensors and isinstance(v, self.torch.Tensor):
                self.op.function.refuse_number(n, "has a derivative")
        return tuple(bool(flag and n in self.op.tensors and v.is_floating_point()) for flag, n, v in zip(flags, self.names, args))

    def _filled(self, given: Sequence[Any], like: Sequence[Any]) -> list[Any]:
        return [self.torch.zeros_like(v) if g is None else g for g, v in zip(given, like)]

    def _chosen(self, values: Sequence[Any], which: Sequence[bool]) -> list[Any]:
        return [v for v, chosen in zip(values, which) if chosen]

    def _spread(self, found: Iterable[Any], which: Sequence[bool]) -> list[Any]:
        left = iter(found)
        return [next(left) if chosen else None for chosen in which]

    def _sum(self, parts: Sequence[Sequence[Any]]) -> Any:
        return tuple(sum(terms[1:], terms[0]) for terms in zip(*parts))

    def _refuse(self, what: str, hint: str) -> Any:
        raise SpirogradUnsupportedError(f"kernel `{self.op.label}` has {what}", None, hint)

    # --- launch ------------------------------------------------------------------------------------------------------------

    def forward_of_launch(self, *args: Any) -> Any:
        return self.op.forward(*args)

    def setup_of_launch(self, ctx: Any, inputs: Sequence[Any], output: Any) -> None:
        outputs = output if isinstance(output, tuple) else (output,)
        ctx.mark_non_differentiable(*(out for out in outputs if not out.is_floating_point()))
        self._keep(ctx, [*outputs, *inputs])

    def _of_launch(self, ctx: Any) -> tuple[list[Any], list[Any]]:
        values = self._kept(ctx)
        return values[: self.results], values[self.results :]

    def backward_of_launch(self, ctx: Any, *adjoints: Any) -> Any:
        outputs, args = self._of_launch(ctx)
        needed = self._active(args, ctx.needs_input_grad)
        if not any(needed):
            return (None,) * len(args)
        return tuple(self._spread(self.f.gradient(Which(needed), *self._filled(adjoints, outputs), *outputs, *args), needed))

    def jvp_of_launch(self, ctx: Any, *tangents: Any) -> Any:
        outputs, args = self._of_launch(ctx)
        along = self._active(args, [t is not None for t in tangents])
        directions = self._chosen(tangents, along)
        if self.op.result is not None:
            slopes = self.f.gradient(Which(along), self.torch.ones_like(outputs[0]), *outputs, *args)
            return sum(((g * v).sum() for g, v in zip(slopes, directions)), self.torch.zeros_like(outputs[0]))
        floats = [out.is_floating_point() for out in outputs]
        found = self._spread(self.f.tangent(Which(along), *directions, *outputs, *args), floats)
        return found[0] if len(found) == 1 else tuple(found)

    # --- gradient ------------------------------------------------------------------------------------------------------------

    def _parts(self, count: int, flat: Sequence[Any]) -> tuple[Sequence[Any], Sequence[Any], Sequence[Any]]:
        """What comes first, the outputs, the arguments of the kernel."""
        return flat[:count], flat[count : count + self.results], flat[count + self.results :]

    def forward_of_gradient(self, which: Which, *flat: Any) -> Any:
        adjoints, outputs, args = self._parts(self.results, flat)
        return tuple(self.op._gradient(list(adjoints), list(which.needed), list(outputs), *args))

    def setup_of_gradient(self, ctx: Any, inputs: Sequence[Any], output: Any) -> None:
        self._keep(ctx, inputs)

    def backward_of_gradient(self, ctx: Any, *cotangents: Any) -> Any:
        which, *flat = self._kept(ctx)
        adjoints, outputs, args = self._parts(self.results, flat)
        asked = self._active(args, ctx.needs_input_grad[1 + 2 * self.results :])
        given = self._filled(cotangents, self._chosen(args, which.needed))
        found = iter(self.f.second(Which(which.needed, asked), *given, *adjoints, *outputs, *args))
        by_adjoints = self._spread(found, [a.is_floating_point() for a in adjoints])
        return None, *by_adjoints, *[None] * self.results, *self._spread(found, asked)

    def jvp_of_gradient(self, ctx: Any, _: Any, *tangents: Any) -> Any:
        which, *flat = self._kept(ctx)
        adjoints, outputs, args = self._parts(self.results, flat)
        by_adjoints, _, by_args = self._parts(self.results, tangents)
        parts = []
        if any(t is not None for t in by_adjoints):
            parts.append(self.f.gradient(which, *self._filled(by_adjoints, adjoints), *outputs, *args))
        along = self._active(args, [t is not None for t in by_args])
        if any(along):
            found = self.f.second(Which(along, which.needed), *self._chosen(by_args, along), *adjoints, *outputs, *args)
            parts.append(found[sum(a.is_floating_point() for a in adjoints) :])
        return self._sum(parts) if parts else tuple(self.torch.zeros_like(v) for v in self._chosen(args, which.needed))

    # --- tangent -------------------------------------------------------------------------------------------------------------

    def forward_of_tangent(self, which: Which, *flat: Any) -> Any:
        directions, outputs, args = self._parts(sum(which.needed), flat)
        return tuple(self.op._tangent(list(directions), list(which.needed), list(outputs), *args))

    def setup_of_tangent(self, ctx: Any, inputs: Sequence[Any], output: Any) -> None:
        self._keep(ctx, inputs)

    def backward_of_tangent(self, ctx: Any, *adjoints: Any) -> Any:
        which, *flat = self._kept(ctx)
        directions, outputs, args = self._parts(sum(which.needed), flat)
        weights = self._filled(self._spread(adjoints, [out.is_floating_point() for out in outputs]), outputs)
        asked = self._active(args, ctx.needs_input_grad[1 + len(directions) + self.results :])
        by_directions: Sequence[Any] = [None] * len(directions)
        if any(ctx.needs_input_grad[1 : 1 + len(directions)]):
            by_directions = self.f.gradient(Which(which.needed), *weights, *outputs, *args)
        by_args: list[Any] = [None] * len(args)
        if any(asked):
            found = self.f.second(Which(which.needed, asked), *directions, *weights, *outputs, *args)
            by_args = self._spread(found[sum(w.is_floating_point() for w in weights) :], asked)
        return None, *by_directions, *[None] * self.results, *by_args

    def jvp_of_tangent(self, ctx: Any, _: Any, *tangents: Any) -> Any:
        which, *flat = self._kept(ctx)
        directions, outputs, args = self._parts(sum(which.needed), flat)
        by_directions, _, by_args = self._parts(len(directions), tangents)
        if any(self._active(args, [t is not None for t in by_args])):
            self._refuse("no forward mode over forward mode", "use `torch.func.jacfwd(torch.func.jacrev(f))`, or `torch.func.hessian(f)`")
        return tuple(self.f.tangent(which, *self._filled(by_directions, directions), *outputs, *args))

    # --- second --------------------------------------------------------------------------------------------------------------

    def forward_of_second(self, which: Which, *flat: Any) -> Any:
        count = sum(which.needed)
        adjoints, outputs, args = self._parts(self.results, flat[count:])
        return tuple(self.op._second(list(flat[:count]), list(adjoints), list(which.needed), list(which.asked), list(outputs), *args))

    def setup_of_second(self, ctx: Any, inputs: Sequence[Any], output: Any) -> None:
        """Nothing is kept: there are no third derivatives."""

    def backward_of_second(self, ctx: Any, *cotangents: Any) -> Any:
        self._refuse("first and second derivatives, no third ones", "differentiate at most twice")

    def jvp_of_second(self, ctx: Any, *tangents: Any) -> Any:
        problem = "first and second derivatives, no third ones, and in forward mode a second one would have a tangent, which is a third"
        self._refuse(problem, "call `torch.autograd.grad` after the dual level, or differentiate at most twice")
