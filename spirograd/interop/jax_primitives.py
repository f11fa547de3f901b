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
from collections.abc import Callable, Mapping, Sequence
from types import ModuleType
from typing import TYPE_CHECKING

import numpy as np

from spirograd.base.errors import SpirogradUnsupportedError
from spirograd.base.once import once_in_process
from spirograd.interop import jax_calls
from spirograd.interop.jax_kernels import JaxCall

if TYPE_CHECKING:
    from jax import Array, ShapeDtypeStruct
    from jax.core import ShapedArray
    from jax.extend.core import Primitive
    from jax.interpreters.mlir import LoweringRuleContext
    from numpy.typing import DTypeLike

Names = tuple[str, ...]  # of arguments of the kernel


def alike(jax: ModuleType, args: Sequence[Array]) -> list[Array]:
    """Return the arguments of one call as values that differ between the same devices. Inside of `jax.shard_map` all arguments of an
    operation must: the derivative of this conversion adds up the gradients of all devices."""
    every: frozenset[object] = frozenset().union(*[_axes(jax.typeof(a)) for a in args])
    if not every:
        return list(args)
    return [jax.lax.pcast(a, tuple(sorted(every - _axes(jax.typeof(a)), key=str)), to="varying") for a in args]


def _axes(aval: ShapedArray) -> frozenset[object]:
    """Return the axes of the mesh of `jax.shard_map` along which a value differs."""
    axes: frozenset[object] = aval.vma if hasattr(aval, "vma") else aval.mat.varying if hasattr(aval, "mat") else frozenset()
    return axes


def _is_divided(aval: ShapedArray) -> bool:
    """Return whether the type of a value says that devices have parts of it."""
    return any(axis is not None for axis in aval.sharding.spec)


@once_in_process
def primitives() -> dict[str, Primitive]:
    """Return the primitives by name, created at the first use: importing JAX takes half a second."""
    import jax
    import jax.extend
    from jax.interpreters import ad, batching, mlir

    jax_calls.register()
    maps = {name: jax.extend.core.Primitive(f"spirograd_{name}") for name in (*_RESULTS, "curvature")}
    rules = _Rules(jax, ad, maps)
    for name, primitive in maps.items():
        primitive.multiple_results = True
        run = functools.partial(rules.run, name)
        primitive.def_abstract_eval(functools.partial(rules.abstract, name))
        primitive.def_impl(_by_jit(jax, run))
        mlir.register_lowering(primitive, functools.partial(_lowered, mlir.lower_fun(run, multiple_results=True)))
        batching.primitive_batchers[primitive] = functools.partial(rules.batch, primitive)
        ad.primitive_jvps[primitive] = functools.partial(rules.jvp, name)
        if name in _TRANSPOSE:
            ad.primitive_transposes[primitive] = functools.partial(rules.transpose, name)
    ad.primitive_jvps[maps["launch"]], ad.primitive_jvps[maps["curvature"]] = rules.jvp_of_launch, rules.jvp_of_curvature
    ad.primitive_transposes[maps["curvature"]] = rules.transpose_of_curvature
    return maps


def _lowered(rule: Callable[..., object], ctx: LoweringRuleContext, *args: object, call: JaxCall, **fixed: object) -> object:
    """Return what XLA compiles. Raise SpirogradUnsupportedError where JAX would write it to a file."""
    if ctx.module_context.lowering_parameters.for_export:
        hint = "export the parts around it, or compile the kernel ahead of time with `sg.aot`"
        raise SpirogradUnsupportedError(f"{call.function.label} is no part of a program that `jax.export` writes", None, hint)
    return rule(ctx, *args, call=call, **fixed)


def _by_jit(jax: ModuleType, run: Callable[..., object]) -> Callable[..., object]:
    """Return ``run`` for calls outside of traces, compiled once for each call, ``wanted`` and ``along``."""
    compiled = jax.jit(lambda *args, call, wanted, along: run(*args, call=call, wanted=wanted, along=along), static_argnames=_FIXED)
    return lambda *args, **fixed: compiled(*args, **fixed)


_FIXED = ("call", "wanted", "along")
# The arguments of the kernel, or outputs, that results have the types of.
_RESULTS: dict[str, Callable[..., Sequence[str]]] = {
    "launch": lambda call, wanted, along: call.function.results,
    "tangent": lambda call, wanted, along: call.active_outputs,
    "gradient": lambda call, wanted, along: wanted,
    "hessian": lambda call, wanted, along: wanted,
}


# The derivatives of maps with respect to x in a direction, and the maps that are their transposes.
_BY_X = {"tangent": "curvature", "gradient": "hessian"}
_TRANSPOSE = {"tangent": "gradient", "gradient": "tangent", "hessian": "hessian"}


def _linear(kind: str, call: JaxCall, along: Sequence[str]) -> list[tuple[int, int]]:
    """Return where the arguments are in which a map is linear, counted from the last argument."""
    adjoints, directions = len(call.active_outputs), len(along)
    if kind == "gradient":
        return [(adjoints, 0)]
    return [(directions, 0)] if kind == "tangent" else [(adjoints + directions, directions), (directions, 0)]


class _Rules:
    """Arguments: those of the call, the outputs (not of `launch`), adjoints of outputs with gradients, directions ``along``."""

    def __init__(self, jax: ModuleType, ad: ModuleType, primitives: Mapping[str, Primitive]) -> None:
        self.jax, self.ad, self.p = jax, ad, primitives

    # --- running ---------------------------------------------------------------------------------------------------------

    def abstract(self, kind: str, *avals: ShapedArray, call: JaxCall, wanted: Names, along: Names) -> list[ShapedArray]:
        """Return the types of the results."""
        names = _RESULTS["tangent" if kind == "curvature" else kind](call, wanted, along)
        types = dict(zip(call.names, avals)) | dict(zip(call.function.results, self._outputs(call)))
        results = [self._type(types[name].shape, types[name].dtype, avals) for name in names]
        if kind not in ("gradient", "hessian"):
            return results
        # The derivative by an argument is divided among the devices as the argument is, where its type says so: on explicit axes of a mesh.
        return [t.update(sharding=types[name].sharding) if _is_divided(types[name]) else t for name, t in zip(names, results)]

    def _type(self, shape: Sequence[int], dtype: DTypeLike, avals: Sequence[ShapedArray]) -> ShapedArray:
        """Return the type of a result, which differs between devices as arguments do: `alike` has made these the same."""
        like = next((aval for aval in avals if _axes(aval)), None)
        if like is None:
            plain: ShapedArray = self.jax.core.ShapedArray(shape, dtype)
            return plain
        spec = self.jax.sharding.PartitionSpec(*[None] * len(shape))
        sharding = self.jax.sharding.NamedSharding(like.sharding.mesh, spec)
        varying: ShapedArray = like.update(shape=shape, dtype=dtype, weak_type=False, sharding=sharding)
        return varying

    def _outputs(self, call: JaxCall) -> list[ShapeDtypeStruct]:
        return [self.jax.ShapeDtypeStruct(shape, np.dtype(dtype)) for shape, dtype in zip(call.shapes, call.dtypes)]

    def run(self, kind: str, *args: Array, call: JaxCall, wanted: Names, along: Names) -> list[Array]:
        """Call XLA's handler. Where a kernel adds to memory, that is a result in place of an argument."""
        if kind == "curvature":
            hint = "use `jax.jacfwd(jax.jacrev(f))`, which `jax.hessian` is, or `jax.jacrev(jax.jacfwd(f))`"
            raise SpirogradUnsupportedError(f"{call.function.label}: forward mode over forward mode is not supported", None, hint)
        if kind == "gradient":
            call.function.check_gradient(call, dict(zip(call.names, args)), wanted)
        types = self.abstract(kind, *map(self.jax.typeof, args), call=call, wanted=wanted, along=along)
        plain = [self._type(t.shape, t.dtype, types) for t in types]
        added = plain if kind == "gradient" or (kind == "launch" and call.function.outputs) else []
        zeros = [self.jax.numpy.zeros(t.shape, t.dtype) for t in added]
        used_up = [] if kind != "gradient" else args[len(args) - len(call.active_outputs) :]
        operands, results = alike(self.jax, [*args, *zeros]), [*(self._type(a.shape, a.dtype, types) for a in used_up), *plain]
        first = len(operands) - len(results)
        aliases = {first + k: k for k in range(len(results))} if added else {}
        target = self.jax.ffi.ffi_call(jax_calls.TARGET, results, input_output_aliases=aliases)
        values = target(*operands, call=np.int64(jax_calls.number_of((kind, call, wanted, along))))
        return [self.jax.sharding.reshard(r, t.sharding) if _is_divided(t) else r for r, t in zip(values[len(used_up) :], types)]

    def batch(self, primitive: Primitive, args: Sequence[Array], dims: Sequence[int | None], **fixed: object) -> object:
        """Call the primitive for each entry of a batch, one after the other."""
        mapped = [k for k, d in enumerate(dims) if d is not None]

        def one(entries: Sequence[Array]) -> object:
            every = list(args)
            for k, entry in zip(mapped, entries):
                every[k] = entry
            return primitive.bind(*every, **fixed)

        results = self.jax.lax.map(one, [self.jax.numpy.moveaxis(args[k], dims[k], 0) for k in mapped])
        return results, [0] * len(results)

    # --- forward mode ----------------------------------------------------------------------------------------------------

    def _is_zero(self, tangent: object) -> bool:
        return type(tangent) is self.ad.Zero

    def _zeros(self, tangents: Sequence[object]) -> list[Array]:
        return [self.ad.instantiate_zeros(t) for t in tangents]

    def _no_tangent(self, primal: Array) -> object:
        return self.ad.Zero(self.jax.typeof(primal).to_tangent_aval())

    def _along(self, call: JaxCall, tangents: Sequence[object]) -> tuple[Names, list[object]]:
        """Return the arguments of the call that have tangents, and these."""
        directions = {name: t for name, t in zip(call.names, tangents) if not self._is_zero(t)}
        call.function.check_differentiable(directions)
        return tuple(directions), list(directions.values())

    def jvp_of_launch(self, primals: Sequence[Array], tangents: Sequence[object], *, call: JaxCall, **fixed: object) -> object:
        along, directions = self._along(call, tangents)
        outputs = self.p["launch"].bind(*primals, call=call, **fixed)
        if not call.function.outputs:
            gradients = self.p["gradient"].bind(*primals, call=call, wanted=along, along=())
            tangent = sum(((g * t).sum() for g, t in zip(gradients, directions)), self.jax.numpy.zeros((), call.dtypes[0]))
            return outputs, [tangent.astype(call.dtypes[0])]
        slopes = iter(self.p["tangent"].bind(*primals, *outputs, *directions, call=call, wanted=(), along=along))
        active = call.active_outputs
        return outputs, [next(slopes) if name in active else self._no_tangent(y) for name, y in zip(call.function.outputs, outputs)]

    def jvp(self, kind: str, primals: Sequence[Array], tangents: Sequence[object], *, call: JaxCall, wanted: Names, along: Names) -> object:
        """Return the results of a map that is not `launch`, and their tangents: the map with each of its linear arguments replaced by the
        tangent of that, and the derivative with respect to x, which is another map."""
        if kind not in _BY_X and not all(map(self._is_zero, tangents[: len(call.names)])):
            call.function.refuse_third()
        bind = functools.partial(self.p[kind].bind, call=call, wanted=wanted, along=along)
        results, parts = bind(*primals), []
        for begin, end in _linear(kind, call, along):
            begin, end = len(primals) - begin, len(primals) - end
            if not all(map(self._is_zero, tangents[begin:end])):
                parts.append(bind(*primals[:begin], *self._zeros(tangents[begin:end]), *primals[end:]))
        by_x, directions = self._along(call, tangents)
        if by_x:
            names = along if kind == "tangent" else wanted
            parts.append(self.p[_BY_X[kind]].bind(*primals, *directions, call=call, wanted=names, along=by_x))
        if not parts:
            return results, [self._no_tangent(p) for p in results]
        return results, [functools.reduce(self.jax.numpy.add, terms) for terms in zip(*parts)]

    def jvp_of_curvature(self, primals: Sequence[object], tangents: Sequence[object], *, call: JaxCall, **fixed: object) -> object:
        call.function.refuse_third()

    # --- reverse mode ----------------------------------------------------------------------------------------------------

    def transpose(self, kind: str, adjoints: Sequence[object], *args: Array, call: JaxCall, wanted: Names, along: Names) -> list[object]:
        """Return the cotangents of the last linear arguments. Those that are known are zeros, which `_zeros` made."""
        first = len(args) - _linear(kind, call, along)[-1][0]
        linear = [self.ad.is_undefined_primal(a) for a in args]
        if any(linear[:first]):
            call.function.refuse_third()
        results = self.p[_TRANSPOSE[kind]].bind(*args[:first], *self._zeros(adjoints), call=call, wanted=along, along=wanted)
        return [*[None] * first, *(c if asked else None for c, asked in zip(results, linear[first:]))]

    def transpose_of_curvature(self, adjoints: Sequence[object], *args: Array, call: JaxCall, wanted: Names, along: Names) -> list[object]:
        """Return the cotangents of v^T H w for each output: ``wanted`` are the names of v, the directions of `tangent`, ``along`` of w."""
        outputs = len(call.names) + len(call.function.outputs)
        v, w = args[outputs : outputs + len(wanted)], args[outputs + len(wanted) :]
        one_unknown = [any(map(self.ad.is_undefined_primal, part)) for part in (v, w)]
        if any(map(self.ad.is_undefined_primal, args[:outputs])) or all(one_unknown):
            call.function.refuse_third()
        known, names, unknown = (w, along, wanted) if one_unknown[0] else (v, wanted, along)
        results = self.p["hessian"].bind(*args[:outputs], *self._zeros(adjoints), *known, call=call, wanted=unknown, along=names)
        empty = [None] * (len(wanted) if not one_unknown[0] else len(along))
        return [*[None] * outputs, *(results if one_unknown[0] else empty), *(empty if one_unknown[0] else results)]
