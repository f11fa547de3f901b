"""Kernels as operators of torch, which `torch.compile` and `torch.export` keep as one node of a graph.

The operator and its derivatives are custom operators (`torch.library`): functions of their arguments that allocate what they return.
Kernels that touch other memory, or draw random numbers, are no such functions: torch merges and repeats calls, and would not know.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from types import ModuleType
from typing import TYPE_CHECKING, Any, NoReturn

from spirograd.base.dtypes import DType
from spirograd.base.errors import SpirogradRuntimeError, SpirogradUnsupportedError, render
from spirograd.interop.kernel_function import Arguments, Framework, PureFunction
from spirograd.interop.linearization import Linearization
from spirograd.interop.torch_batches import looped, over_autograd_batches
from spirograd.interop.torch_maps import Context, contiguous, leaf, refuse_number, second
from spirograd.interop.torch_rules import Active, Maps, Rules, Values, functions_of
from spirograd.lang.data.device_arrays import is_torch
from spirograd.lang.data.ndarray import Ndarray
from spirograd.lang.frontend.parameters import AggregateParameter, ArrayParameter, Parameter, ScalarParameter

if TYPE_CHECKING:
    import torch
    from torch import Tensor
    from torch._library.custom_ops import CustomOpDef

Tensors = Sequence["Tensor"]
Flags = Sequence[bool]  # one for each argument of the kernel

_numbers = itertools.count()


def torch_op(
    kernel: object, outputs: Mapping[str, object] | None = None, name: str = "", template_args: Mapping[str, object] | None = None
) -> Callable[..., Any]:
    """Make of ``kernel`` an operator of torch that `torch.compile` keeps in one graph: ``f = torch_op(kernel, {"y": "x"}); y = f(x)``.

    ``outputs``: the parameters that the kernel writes, each with the shape to allocate, as zeros: the name of a parameter of the same
    shape, a shape, or a function of the arguments (tensors without contents, numbers) that returns a shape. The other parameters are the
    arguments of the operator, by position or by name; numbers and tensors, and sequences of numbers for vectors. The operator returns the
    outputs, one or a tuple; without outputs the result of the kernel as a tensor. Its attribute `operator` is torch's own
    object. ``name``: the name of the operator, ``"namespace::name"``; by default in the namespace `spirograd`. ``template_args``: values
    of template arguments, which are fixed.

    Gradients come from ``kernel.grad``, tangents and second derivatives (`create_graph=True`) from forward mode, the latter over reverse
    mode, on copies of the tensors; third ones, and forward mode over forward mode, raise an error. So `torch.func.grad`, `jvp`, `jacrev`,
    `jacfwd` and `hessian` work; in compiled functions, the operator then runs outside of the graphs. `torch.func.vmap` loops over the
    batch, and so do `is_grads_batched=True` and `vectorize=True` of `torch.autograd`. Under autocast operators get tensors as they are.

    Raises SpirogradTypeError if ``kernel`` is no kernel or has no such parameter, or for parameters that torch has no type for. A call
    raises SpirogradRuntimeError if the kernel writes to other tensors, uses fields or ndarrays, or draws random numbers. Needs torch.
    """
    operator = TorchOperator(kernel, outputs or {}, template_args)
    return operator.register(name or f"spirograd::{operator.name}_{next(_numbers)}")


class TorchOperator(PureFunction):
    """A kernel as torch sees it."""

    framework = Framework(
        "torch", is_torch, Ndarray.from_torch, "torch_op", "an operator of torch", "tensor", ", or use `sg.ad.torch_function`"
    )

    def __init__(self, kernel: object, outputs: Mapping[str, object], constants: Arguments | None = None) -> None:
        super().__init__(kernel, outputs, constants)
        import torch

        self.torch: ModuleType = torch

    # --- registering -----------------------------------------------------------------------------------------------------

    def register(self, name: str) -> Callable[..., object]:
        """Register the four maps with torch, and return the function that users call."""
        maps = self._custom_operators(name)
        forward = maps.launch
        functions = functions_of(self.torch, self, maps)

        def eager(*args: object, **kwargs: object) -> object:
            given = {**dict(zip(self.inputs, args)), **kwargs}
            self._refuse_active_numbers(given)
            if given.keys() != set(self.inputs) or not self._is_transformed(given.values()):
                return forward(*args, **kwargs)
            return functions.launch(*(given[name] for name in self.inputs))

        outside = [eager]  # of graphs

        def traces_derivatives() -> bool:
            """Return, while `torch.compile` traces, whether it does so for forward mode, or for `torch.func.grad` and the like."""
            outside[0] = self.torch.compiler.disable(eager)  # not before, because that imports torch's compiler
            functorch = self.torch._C._functorch
            levels = functorch.get_interpreter_stack() or ()
            differentiates = (functorch.TransformType.Jvp, functorch.TransformType.Grad)
            return self.torch.autograd.forward_ad._current_level >= 0 or any(one.key() in differentiates for one in levels)

        traces_derivatives._dynamo_marked_constant = True  # type: ignore[attr-defined] # as `torch.compiler.assume_constant_result` does

        def operator(*args: object, **kwargs: object) -> object:
            if not self.torch.compiler.is_compiling():
                return eager(*args, **kwargs)
            # In a graph tangents would be zero, with no error; and for transforms torch does not trace custom operators with gradients.
            return outside[0](*args, **kwargs) if traces_derivatives() else forward(*args, **kwargs)

        operator.__dict__.update(__name__=self.name, __doc__=self.kernel.function.__doc__, operator=forward)
        return operator

    def _custom_operators(self, name: str) -> Maps:
        """Return the maps as custom operators, with rules for reverse mode."""
        count = max(len(self.outputs), 1)
        arguments = [f"{self._schema_type(self.parameters[name])} {name}" for name in self.inputs]
        result = "Tensor" if count == 1 else f"({', '.join(['Tensor'] * count)})"
        forward = self._custom(name, self.run, self.fake, arguments, result)
        adjoints, along, outputs = "Tensor[] adjoints", "bool[] along", ["Tensor[] outputs", *arguments]
        fake_gradients = lambda adjoints, along, outputs, *args: _alike(itertools.compress(args, along))  # noqa: E731
        fake_tangents = lambda directions, along, outputs, *args: _alike(_floats(outputs))  # noqa: E731
        fake_seconds = lambda v, u, along, asked, y, *args: _alike([*_floats(u), *itertools.compress(args, asked)])  # noqa: E731
        gradient = self._custom(f"{name}_gradient", self.gradients, fake_gradients, [adjoints, along, *outputs])
        tangent = self._custom(f"{name}_tangent", self.tangents, fake_tangents, ["Tensor[] directions", along, *outputs])
        lists = ["Tensor[] directions", adjoints, along, "bool[] asked"]
        second = self._custom(f"{name}_second", self.seconds, fake_seconds, [*lists, *outputs])
        batched = [over_autograd_batches(self.torch, self.name, one) for one in (gradient, second)]

        def split(flat: Values, *counts: int) -> list[list[Any]]:
            remaining = iter(flat)
            return [*([*itertools.islice(remaining, n)] for n in (*counts, count)), [*remaining]]

        def call_gradient(active: Active, *flat: object) -> Any:
            adjoints, outputs, args = split(flat, count)
            return batched[0](adjoints, [*active.along], outputs, *args)

        def call_tangent(active: Active, *flat: object) -> Any:
            directions, outputs, args = split(flat, sum(active.along))
            return tangent(directions, [*active.along], outputs, *args)

        def call_second(active: Active, *flat: object) -> Any:
            directions, adjoints, outputs, args = split(flat, sum(active.along), count)
            return batched[1](directions, adjoints, [*active.along], [*active.asked], outputs, *args)

        maps = Maps(forward, call_gradient, call_tangent, call_second)
        rules = Rules(self.torch, self, maps)

        def save(ctx: Context, inputs: Values, output: Tensor) -> None:
            adjoints, along, outputs, *args = inputs
            rules.setup_context_of_gradient(ctx, (Active(tuple(along)), *adjoints, *outputs, *args), output)

        def backward(ctx: Context, cotangents: Tensors) -> object:
            _, *flat = rules.backward_of_gradient(ctx, *cotangents)
            return flat[:count], None, flat[count : 2 * count], *flat[2 * count :]

        forward.register_autograd(rules.backward_of_launch, setup_context=rules.setup_context_of_launch)
        forward.register_vmap(lambda info, dims, *args: looped(self.torch, self.name, forward, info, dims, args))
        gradient.register_autograd(backward, setup_context=save)
        second.register_autograd(self._refuse_third)
        return maps

    def _custom(
        self, name: str, run: Callable[..., object], fake: Callable[..., object], arguments: Sequence[str], result: str = "Tensor[]"
    ) -> CustomOpDef:
        """Register a custom operator. ``fake``: returns tensors like the results, without contents."""
        operator: CustomOpDef = self.torch.library.custom_op(name, run, mutates_args=(), schema=f"({', '.join(arguments)}) -> {result}")
        operator.register_fake(fake)
        return operator

    def _schema_type(self, p: Parameter) -> str:
        if isinstance(p, ArrayParameter):
            return "Tensor"
        if isinstance(p, ScalarParameter):
            return "float" if p.t.is_float else "bool" if p.t.kind == "bool" else "SymInt"
        assert isinstance(p, AggregateParameter)
        return "float[]" if p.t.leaf_dtypes()[0].is_float else "SymInt[]"

    def _refuse_third(self, ctx: Context, *cotangents: object) -> NoReturn:
        problem = f"{self.label} has first and second derivatives, no third ones"
        raise SpirogradRuntimeError(render(problem, None, "differentiate a second time without `create_graph=True`"))

    # --- the maps --------------------------------------------------------------------------------------------------------

    def run(self, *args: Any) -> Tensor | tuple[Tensor, ...]:
        """Launch the kernel."""
        self._refuse_tangents(args)
        given = {name: leaf(v, False) if name in self.arrays else v for name, v in zip(self.inputs, args)}
        outputs = self._allocated(given, self.torch.zeros)
        result = self.launch({**self.constants, **given, **outputs})
        if self.result is not None:
            number: Tensor = self.torch.tensor(result, dtype=self._torch_type(self.result), device=self._device(given))
            return number
        return _unpacked(outputs)

    def fake(self, *args: object) -> Tensor | tuple[Tensor, ...]:
        """Return tensors like those of `run`, without contents."""
        given = dict(zip(self.inputs, args))
        if self.result is not None:
            number: Tensor = self.torch.empty((), dtype=self._torch_type(self.result), device=self._device(given))
            return number
        return _unpacked(self._allocated(given, self.torch.empty))

    def gradients(self, adjoints: Tensors, along: Flags, outputs: Tensors, *args: object) -> list[Tensor]:
        """Return the gradients of the arguments ``along``, from those of the outputs."""
        values: dict[str, Any] = {**self.constants, **dict(zip(self.inputs, args))}
        wanted = self._chosen(along)
        for name in self.arrays:
            values[name] = leaf(values[name], name in wanted)
        for name, output, adjoint in zip(self.outputs, outputs, adjoints):
            values[name] = leaf(output, True)
            if values[name].requires_grad:
                values[name].grad = contiguous(adjoint)
        for name in wanted:
            values[name].grad = values[name].detach().new_zeros(values[name].shape)
        self.gradient(values, None if self.result is None else adjoints[0].item())
        return [values[name].grad for name in wanted]

    def tangents(self, directions: Tensors, along: Flags, outputs: Tensors, *args: object) -> list[Tensor]:
        """Return the tangents of the outputs of floats, from those of the arguments ``along``."""
        values, active = self._values(outputs, args, along)
        run = Linearization(self, values, active, dict(zip(self._chosen(along), directions)), list(self.outputs))
        run.tangent()
        return [run.copies[name].dual.to_torch(values[name].device) for name in self.outputs if name in active]

    def seconds(self, directions: Tensors, adjoints: Tensors, along: Flags, asked: Flags, outputs: Tensors, *args: object) -> list[Tensor]:
        """Return the derivatives of `gradients` along ``directions`` of the arguments ``along``: with respect to the adjoints of floats,
        and to the arguments that are ``asked`` for."""
        values, active = self._values(outputs, args, [a or b for a, b in zip(along, asked)])
        named, wanted = dict(zip(self._chosen(along), directions)), self._chosen(asked)
        by_adjoints, by_values = second(self, values, active, named, adjoints, wanted, list(self.outputs))
        return [b for b in by_adjoints if b is not None] + [by_values[name] for name in wanted]

    def _chosen(self, flags: Iterable[bool]) -> list[str]:
        return [*itertools.compress(self.inputs, flags)]

    def _values(self, outputs: Tensors, args: Sequence[object], flags: Iterable[bool]) -> tuple[Arguments, Collection[str]]:
        """Return the arguments of the kernel by name, and those with gradients: inputs with ``flags``, and outputs of floats."""
        values: Arguments = {**self.constants, **dict(zip(self.inputs, args)), **dict(zip(self.outputs, outputs))}
        return values, {*self._chosen(flags), *(name for name in self.outputs if values[name].is_floating_point())}

    # --- allocation ------------------------------------------------------------------------------------------------------

    def _allocated(self, given: Arguments, create: Callable[..., Tensor]) -> dict[str, Tensor]:
        """Return tensors for the outputs, row-major."""
        outputs = {}
        for name, spec in self.outputs.items():
            shape, declared = self.output_shape(name, given), self.output_type(name)
            like = given[spec] if isinstance(spec, str) else self._first(given)
            dtype = self._torch_type(declared) if declared is not None else None if like is None else like.dtype
            outputs[name] = create(shape, dtype=dtype, device=None if like is None else like.device)
        return outputs

    def _first(self, given: Arguments) -> Tensor | None:
        """Return the first tensor of floats, else the first tensor, else None."""
        tensors: list[Tensor] = [given[name] for name in self.inputs if name in self.arrays]
        return next((t for t in tensors if t.is_floating_point()), tensors[0] if tensors else None)

    def _device(self, given: Arguments) -> torch.device | None:
        first = self._first(given)
        return None if first is None else first.device

    def _torch_type(self, dtype: DType) -> torch.dtype:
        converted: torch.dtype = getattr(self.torch, dtype.np.name)
        return converted

    # --- arguments that derivatives do not reach ---------------------------------------------------------------------------

    def _is_transformed(self, values: Iterable[object]) -> bool:
        """Return whether `torch.func` or forward mode is active, which use rules that custom operators cannot have."""
        if self.torch._C._are_functorch_transforms_active():
            return True
        unpack = self.torch.autograd.forward_ad.unpack_dual
        return any(isinstance(v, self.torch.Tensor) and unpack(v).tangent is not None for v in values)

    def _refuse_active_numbers(self, given: Arguments) -> None:
        """Raise for numbers with derivatives: torch converts them, and derivatives by them would be zero, with no error."""
        for name in given.keys() & set(self.inputs) - self.arrays:
            value = given[name]
            for one in value if isinstance(value, (list, tuple)) else (value,):
                if isinstance(one, self.torch.Tensor) and one.requires_grad and self.torch.is_grad_enabled():
                    refuse_number(self, name, "requires a gradient")
                if isinstance(one, self.torch.Tensor) and self.torch.autograd.forward_ad.unpack_dual(one).tangent is not None:
                    refuse_number(self, name, "has a tangent")

    def _refuse_tangents(self, args: Sequence[object]) -> None:
        """Raise where a graph that was compiled without tangents gets some: those of its results would be zero, with no error."""
        forward = self.torch.autograd.forward_ad
        if forward._current_level < 0 or not self.torch._C._is_fwd_grad_enabled():
            return
        if any(isinstance(v, self.torch.Tensor) and forward.unpack_dual(v).tangent is not None for v in args):
            problem = f"a graph with {self.label} was compiled without tangents, and gets some"
            raise SpirogradUnsupportedError(problem, None, "call what is not compiled, or compile it in the dual level")


def _unpacked(outputs: Mapping[str, Tensor]) -> Tensor | tuple[Tensor, ...]:
    tensors = tuple(outputs.values())
    return tensors[0] if len(tensors) == 1 else tensors


def _floats(tensors: Tensors) -> list[Tensor]:
    return [tensor for tensor in tensors if tensor.is_floating_point()]


def _alike(tensors: Iterable[Tensor]) -> list[Tensor]:
    return [tensor.new_empty(tensor.shape) for tensor in tensors]


__all__ = ["torch_op"]
