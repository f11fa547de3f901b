"""Kernels as primitives of JAX, and the rules by which JAX differentiates and batches them.

There are four that run, all through one handler of XLA (`jax_calls`), for a kernel y = f(x):

==========  ===================  =============================================================================
launch      x                    y
tangent     x, y, v              J(x) v; linear in v, its transpose is `gradient`
gradient    x, y, u              J(x)^T u; linear in u, its transpose is `tangent`
hessian     x, y, u, v           the Hessian of <u, f> times v; linear and symmetric in v
==========  ===================  =============================================================================

The derivative of `tangent` with respect to x, `curvature`, only has a transpose, which is `hessian`: reverse mode over forward mode works,
forward mode over forward mode does not. y is passed along where gradients read what a kernel wrote; derivatives with respect to x are
total, so that y as an argument has none. The adjoint of a number that a kernel returns is 1: multiplying with another one is left to JAX.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np

from spirograd.base.errors import SpirogradUnsupportedError
from spirograd.base.once import once_in_process
from spirograd.interop import jax_calls
from spirograd.interop.jax_calls import Call


def alike(jax: Any, args: Sequence[Any]) -> list[Any]:
    """Arguments of one call as values that differ between the same devices. Inside of `jax.shard_map` all arguments of an operation must:
    the derivative of what makes them so adds up the gradients of what all devices have."""
    every: frozenset[Any] = frozenset().union(*[_axes(jax.typeof(a)) for a in args])
    if not every:
        return list(args)
    return [jax.lax.pcast(a, tuple(sorted(every - _axes(jax.typeof(a)), key=str)), to="varying") for a in args]


def _axes(aval: Any) -> frozenset[Any]:
    """The axes of the mesh of `jax.shard_map` along which a value differs."""
    found: frozenset[Any] = aval.vma if hasattr(aval, "vma") else aval.mat.varying if hasattr(aval, "mat") else frozenset()
    return found


def _is_divided(aval: Any) -> bool:
    """Whether the type of a value says that devices have parts of it."""
    return any(axis is not None for axis in aval.sharding.spec)


@once_in_process
def primitives() -> SimpleNamespace:
    """The primitives, by name. Made at the first use: JAX takes half a second to import."""
    import jax
    import jax.extend
    from jax.interpreters import ad, batching, mlir

    jax_calls.register()
    made = {name: jax.extend.core.Primitive(f"spirograd_{name}") for name in (*_RESULTS, "curvature")}
    rules = _Rules(jax, ad, SimpleNamespace(**made))
    for name, primitive in made.items():
        primitive.multiple_results = True
        run = functools.partial(rules.run, name)
        primitive.def_abstract_eval(functools.partial(rules.abstract, name))
        primitive.def_impl(_by_jit(jax, run))
        mlir.register_lowering(primitive, functools.partial(_lowered, mlir.lower_fun(run, multiple_results=True)))
        batching.primitive_batchers[primitive] = functools.partial(rules.batch, primitive)
        ad.primitive_jvps[primitive] = getattr(rules, f"jvp_of_{name}")
        if name != "launch":
            ad.primitive_transposes[primitive] = getattr(rules, f"transpose_of_{name}")
    return rules.p


def _lowered(rule: Callable[..., Any], ctx: Any, *args: Any, call: Call, **fixed: Any) -> Any:
    """What XLA compiles. Raises SpirogradUnsupportedError where JAX would write it to a file."""
    if ctx.module_context.lowering_parameters.for_export:
        hint = "export the parts around it, or compile the kernel ahead of time with `sg.aot`"
        raise SpirogradUnsupportedError(f"{call.function.label} is no part of a program that `jax.export` writes", None, hint)
    return rule(ctx, *args, call=call, **fixed)


def _by_jit(jax: Any, run: Callable[..., Any]) -> Callable[..., Any]:
    """``run`` outside of traces, compiled once for each call, ``wanted`` and ``along``."""
    compiled = jax.jit(lambda *args, call, wanted, along: run(*args, call=call, wanted=wanted, along=along), static_argnames=_FIXED)
    return lambda *args, **fixed: compiled(*args, **fixed)


_FIXED = ("call", "wanted", "along")
# The arguments that results have the types of: of the kernel by name, or its outputs.
_RESULTS: dict[str, Callable[..., Sequence[str]]] = {
    "launch": lambda call, wanted, along: call.function.results,
    "tangent": lambda call, wanted, along: call.function.active_outputs(call),
    "gradient": lambda call, wanted, along: wanted,
    "hessian": lambda call, wanted, along: wanted,
}


class _Rules:
    """Arguments: those of the call, the outputs (not of `launch`), adjoints of outputs with gradients, directions ``along``."""

    def __init__(self, jax: Any, ad: Any, primitives: SimpleNamespace) -> None:
        self.jax, self.ad, self.p = jax, ad, primitives

    # --- running ---------------------------------------------------------------------------------------------------------

    def abstract(self, kind: str, *avals: Any, call: Call, wanted: tuple[str, ...], along: tuple[str, ...]) -> list[Any]:
        """The types of the results."""
        names = _RESULTS["tangent" if kind == "curvature" else kind](call, wanted, along)
        types = dict(zip(call.names, avals)) | dict(zip(call.function.results, self._outputs(call)))
        results = [self._type(types[name].shape, types[name].dtype, avals) for name in names]
        if kind not in ("gradient", "hessian"):
            return results
        # The derivative by an argument is divided among the devices as the argument is, where its type says so: on explicit axes of a mesh.
        return [t.update(sharding=types[name].sharding) if _is_divided(types[name]) else t for name, t in zip(names, results)]

    def _type(self, shape: Sequence[int], dtype: Any, avals: Sequence[Any]) -> Any:
        """The type of a result, which differs between devices as arguments do: `alike` has made these the same."""
        like = next((aval for aval in avals if _axes(aval)), None)
        if like is None:
            return self.jax.core.ShapedArray(shape, dtype)
        spec = self.jax.sharding.PartitionSpec(*[None] * len(shape))
        return like.update(shape=shape, dtype=dtype, weak_type=False, sharding=self.jax.sharding.NamedSharding(like.sharding.mesh, spec))

    def _outputs(self, call: Call) -> list[Any]:
        return [self.jax.ShapeDtypeStruct(shape, np.dtype(dtype)) for shape, dtype in zip(call.shapes, call.dtypes)]

    def run(self, kind: str, *args: Any, call: Call, wanted: tuple[str, ...], along: tuple[str, ...]) -> list[Any]:
        """The call of XLA's handler. Where a kernel adds to memory, that is a result in place of an argument."""
        if kind == "curvature":
            hint = "use `jax.jacfwd(jax.jacrev(f))`, which `jax.hessian` is, or `jax.jacrev(jax.jacfwd(f))`"
            raise SpirogradUnsupportedError(f"{call.function.label}: forward mode over forward mode is not supported", None, hint)
        if kind == "gradient":
            call.function.check_gradient(call, dict(zip(call.names, args)), wanted)
        types = self.abstract(kind, *map(self.jax.typeof, args), call=call, wanted=wanted, along=along)
        plain = [self._type(t.shape, t.dtype, types) for t in types]
        added = plain if kind == "gradient" or (kind == "launch" and call.function.outputs) else []
        zeros = [self.jax.numpy.zeros(t.shape, t.dtype) for t in added]
        used_up = [] if kind != "gradient" else args[len(args) - len(call.function.active_outputs(call)) :]
        operands, results = alike(self.jax, [*args, *zeros]), [*(self._type(a.shape, a.dtype, types) for a in used_up), *plain]
        first = len(operands) - len(results)
        aliases = {first + k: k for k in range(len(results))} if added else {}
        target = self.jax.ffi.ffi_call(jax_calls.TARGET, results, input_output_aliases=aliases)
        found = target(*operands, call=np.int64(jax_calls.number_of((kind, call, wanted, along))))
        return [self.jax.sharding.reshard(r, t.sharding) if _is_divided(t) else r for r, t in zip(found[len(used_up) :], types)]

    def batch(self, primitive: Any, args: Sequence[Any], dims: Sequence[Any], **fixed: Any) -> Any:
        """One call for each entry of a batch, one after the other."""
        mapped = [k for k, d in enumerate(dims) if d is not None]

        def one(entries: Sequence[Any]) -> Any:
            every = list(args)
            for k, entry in zip(mapped, entries):
                every[k] = entry
            return primitive.bind(*every, **fixed)

        found = self.jax.lax.map(one, [self.jax.numpy.moveaxis(args[k], dims[k], 0) for k in mapped])
        return found, [0] * len(found)

    # --- forward mode ----------------------------------------------------------------------------------------------------

    def _is_zero(self, tangent: Any) -> bool:
        return type(tangent) is self.ad.Zero

    def _zeros(self, tangents: Sequence[Any]) -> list[Any]:
        return [self.ad.instantiate_zeros(t) for t in tangents]

    def _no_tangent(self, primal: Any) -> Any:
        return self.ad.Zero(self.jax.typeof(primal).to_tangent_aval())

    def _along(self, call: Call, tangents: Sequence[Any]) -> tuple[tuple[str, ...], list[Any]]:
        """The arguments of the call that have tangents, and these."""
        found = {name: t for name, t in zip(call.names, tangents) if not self._is_zero(t)}
        call.function.check_differentiable(found)
        return tuple(found), list(found.values())

    def _sum(self, parts: Sequence[Sequence[Any]], primals: Sequence[Any]) -> list[Any]:
        if not parts:
            return [self._no_tangent(p) for p in primals]
        return [functools.reduce(self.jax.numpy.add, terms) for terms in zip(*parts)]

    def jvp_of_launch(self, primals: Sequence[Any], tangents: Sequence[Any], *, call: Call, **fixed: Any) -> Any:
        along, directions = self._along(call, tangents)
        outputs = self.p.launch.bind(*primals, call=call, **fixed)
        if not call.function.outputs:
            gradients = self.p.gradient.bind(*primals, call=call, wanted=along, along=())
            tangent = sum(((g * t).sum() for g, t in zip(gradients, directions)), self.jax.numpy.zeros((), call.dtypes[0]))
            return outputs, [tangent.astype(call.dtypes[0])]
        found = iter(self.p.tangent.bind(*primals, *outputs, *directions, call=call, wanted=(), along=along))
        active = call.function.active_outputs(call)
        return outputs, [next(found) if name in active else self._no_tangent(y) for name, y in zip(call.function.outputs, outputs)]

    def jvp_of_tangent(self, primals: Sequence[Any], tangents: Sequence[Any], *, call: Call, wanted: Any, along: tuple[str, ...]) -> Any:
        first = len(primals) - len(along)
        primal = self.p.tangent.bind(*primals, call=call, wanted=wanted, along=along)
        parts = []
        if not all(map(self._is_zero, tangents[first:])):
            parts.append(self.p.tangent.bind(*primals[:first], *self._zeros(tangents[first:]), call=call, wanted=wanted, along=along))
        second, directions = self._along(call, tangents)
        if second:
            parts.append(self.p.curvature.bind(*primals, *directions, call=call, wanted=along, along=second))
        return primal, self._sum(parts, primal)

    def jvp_of_gradient(self, primals: Sequence[Any], tangents: Sequence[Any], *, call: Call, wanted: tuple[str, ...], along: Any) -> Any:
        first = len(call.names) + len(call.function.outputs)
        primal = self.p.gradient.bind(*primals, call=call, wanted=wanted, along=along)
        parts = []
        if not all(map(self._is_zero, tangents[first:])):
            parts.append(self.p.gradient.bind(*primals[:first], *self._zeros(tangents[first:]), call=call, wanted=wanted, along=along))
        names, directions = self._along(call, tangents)
        if names:
            parts.append(self.p.hessian.bind(*primals, *directions, call=call, wanted=wanted, along=names))
        return primal, self._sum(parts, primal)

    def jvp_of_hessian(self, primals: Sequence[Any], tangents: Sequence[Any], *, call: Call, wanted: Any, along: tuple[str, ...]) -> Any:
        outputs = len(call.names) + len(call.function.outputs)
        first = len(primals) - len(along)
        if not all(map(self._is_zero, tangents[: len(call.names)])):
            call.function.refuse_third()
        primal = self.p.hessian.bind(*primals, call=call, wanted=wanted, along=along)
        ranges = [(outputs, first), (first, len(primals))]  # it is linear in the adjoints, and in the directions
        parts = []
        for begin, end in ranges:
            if not all(map(self._is_zero, tangents[begin:end])):
                args = [*primals[:begin], *self._zeros(tangents[begin:end]), *primals[end:]]
                parts.append(self.p.hessian.bind(*args, call=call, wanted=wanted, along=along))
        return primal, self._sum(parts, primal)

    def jvp_of_curvature(self, primals: Sequence[Any], tangents: Sequence[Any], *, call: Call, **fixed: Any) -> Any:
        call.function.refuse_third()

    # --- reverse mode ----------------------------------------------------------------------------------------------------

    def _transposed(self, args: Sequence[Any], first: int, found: Callable[[], Sequence[Any]], call: Call) -> list[Any]:
        """Cotangents: ``found`` of the arguments from ``first`` on. Those among them that are known are zeros which `_zeros` made."""
        linear = [self.ad.is_undefined_primal(a) for a in args]
        if any(linear[:first]):
            call.function.refuse_third()
        return [*[None] * first, *(c if asked else None for c, asked in zip(found(), linear[first:]))]

    def transpose_of_tangent(self, adjoints: Sequence[Any], *args: Any, call: Call, wanted: Any, along: tuple[str, ...]) -> list[Any]:
        first = len(args) - len(along)
        return self._transposed(
            args, first, lambda: self.p.gradient.bind(*args[:first], *self._zeros(adjoints), call=call, wanted=along, along=()), call
        )

    def transpose_of_gradient(self, adjoints: Sequence[Any], *args: Any, call: Call, wanted: tuple[str, ...], along: Any) -> list[Any]:
        first = len(call.names) + len(call.function.outputs)
        return self._transposed(
            args, first, lambda: self.p.tangent.bind(*args[:first], *self._zeros(adjoints), call=call, wanted=(), along=wanted), call
        )

    def transpose_of_hessian(self, adjoints: Sequence[Any], *args: Any, call: Call, wanted: Any, along: tuple[str, ...]) -> list[Any]:
        first = len(args) - len(along)
        return self._transposed(
            args, first, lambda: self.p.hessian.bind(*args[:first], *self._zeros(adjoints), call=call, wanted=along, along=wanted), call
        )

    def transpose_of_curvature(self, adjoints: Sequence[Any], *args: Any, call: Call, wanted: Any, along: tuple[str, ...]) -> list[Any]:
        """Of v^T H w for each output: ``wanted`` are the names of v, the directions of `tangent`, and ``along`` those of w."""
        outputs = len(call.names) + len(call.function.outputs)
        v, w = args[outputs : outputs + len(wanted)], args[outputs + len(wanted) :]
        weights = self._zeros(adjoints)
        one_unknown = [any(map(self.ad.is_undefined_primal, part)) for part in (v, w)]
        if any(map(self.ad.is_undefined_primal, args[:outputs])) or all(one_unknown):
            call.function.refuse_third()
        known, names, unknown = (w, along, wanted) if one_unknown[0] else (v, wanted, along)
        found = self.p.hessian.bind(*args[:outputs], *weights, *known, call=call, wanted=unknown, along=names)
        empty = [None] * (len(wanted) if not one_unknown[0] else len(along))
        return [*[None] * outputs, *(found if one_unknown[0] else empty), *(empty if one_unknown[0] else found)]
