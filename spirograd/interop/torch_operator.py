"""Kernels as operators of torch, which `torch.compile` and `torch.export` keep as one node of a graph.

The operator and its gradient are custom operators (`torch.library`): functions of their arguments that allocate what they return. Kernels
that touch other memory, or draw random numbers, are no such functions: torch merges and repeats calls, and would not know.
"""

from __future__ import annotations

import itertools
import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from spirograd.base.dtypes import DType
from spirograd.base.errors import SpirogradRuntimeError, SpirogradTypeError, SpirogradUnsupportedError, render
from spirograd.interop.pure_kernels import COPY_HINT, check_pure, check_writes, result_type
from spirograd.interop.torch_functions import TorchFunction, traced
from spirograd.interop.torch_second import Call, contiguous
from spirograd.interop.torch_transforms import functions_of, no_entries, over_autograd_batches
from spirograd.lang.frontend.kernel import BoundKernel, Kernel
from spirograd.lang.frontend.parameters import AggregateParameter, ArrayParameter, Parameter, ScalarParameter, TemplateParameter

_numbers = itertools.count()


def torch_op(
    kernel: Any, outputs: Mapping[str, Any] | None = None, name: str = "", template_args: Mapping[str, Any] | None = None
) -> Callable[..., Any]:
    """Make of ``kernel`` an operator of torch that `torch.compile` keeps in one graph: ``f = torch_op(kernel, {"y": "x"}); y = f(x)``.

    ``outputs``: the parameters that the kernel writes, each with the shape to allocate, as zeros: the name of a parameter of the same
    shape, a shape, or a function of the arguments (tensors without contents, numbers) that returns a shape. The other parameters are the
    arguments of the operator, by position or by name; numbers and tensors, and sequences of numbers for vectors. The operator returns the
    outputs, one or a tuple; without outputs the result of the kernel as a tensor. Its attribute `operator` is torch's own
    object. ``name``: that of the operator, ``"namespace::name"``; by default in the namespace `spirograd`. ``template_args``: values of
    template arguments, which are fixed.

    Gradients come from ``kernel.grad``, tangents and second derivatives (`create_graph=True`) from forward mode, the latter over reverse
    mode, on copies of the tensors; third ones, and forward mode over forward mode, raise an error. So `torch.func.grad`, `jvp`, `jacrev`,
    `jacfwd` and `hessian` work; in compiled functions, the operator then runs outside of the graphs. `torch.func.vmap` loops over the
    batch, and so do `is_grads_batched=True` and `vectorize=True` of `torch.autograd`. Under autocast operators get tensors as they are.

    Raises SpirogradTypeError if ``kernel`` is no kernel or has no such parameter, or for parameters that torch has no type for. A call
    raises SpirogradRuntimeError if the kernel writes to other tensors, uses fields or ndarrays, or draws random numbers. Needs torch.
    """
    if not isinstance(kernel, (Kernel, BoundKernel)):
        raise SpirogradTypeError("`torch_op` takes a kernel: a function decorated with `@sg.kernel`")
    import torch

    operator = _Operator(kernel, dict(outputs or {}), dict(template_args or {}), torch)
    made: Callable[..., Any] = operator.register(name or f"spirograd::{operator.label}_{next(_numbers)}")
    return made


class _Operator:
    """A kernel as torch sees it."""

    def __init__(self, kernel: Any, outputs: dict[str, Any], constants: dict[str, Any], torch: Any) -> None:
        self.function = TorchFunction(kernel, outputs)
        self.kernel = self.function.kernel
        self.label: str = self.kernel.function.__name__
        self.torch = torch
        self.constants = constants
        self._checked: weakref.WeakSet[Any] = weakref.WeakSet()
        parameters = {p.name: p for p in self.kernel.parameters()}
        unknown = [name for name in constants if name not in parameters]
        if unknown:
            raise SpirogradTypeError(f"kernel `{self.label}` has no parameter `{unknown[0]}`")
        self.outputs = {name: (spec, parameters[name]) for name, spec in outputs.items()}
        self.inputs = {name: parameters[name] for name in self.function.inputs if name not in constants}
        self.tensors = [name for name, p in self.inputs.items() if isinstance(p, ArrayParameter)]
        self.result = None if outputs else result_type(self.kernel)

    # --- registering -----------------------------------------------------------------------------------------------------

    def register(self, name: str) -> Any:
        library = self.torch.library
        arguments = ", ".join(f"{_schema_type(p, self.label)} {parameter}" for parameter, p in self.inputs.items())
        count = max(len(self.outputs), 1)
        returns = "Tensor" if count == 1 else f"({', '.join(['Tensor'] * count)})"
        forward = library.custom_op(name, self.run, mutates_args=(), schema=f"({arguments}) -> {returns}")
        forward.register_fake(self.fake)
        schema = f"(Tensor[] adjoints, bool[] needed, Tensor[] outputs{', ' * bool(arguments)}{arguments}) -> Tensor[]"
        self._gradient = library.custom_op(f"{name}_gradient", self.gradient, mutates_args=(), schema=schema)
        self._gradient.register_fake(self.fake_gradient)
        lists = "Tensor[] cotangents, Tensor[] adjoints, bool[] needed, bool[] asked, Tensor[] outputs"
        self._second = library.custom_op(
            f"{name}_second", self.second, mutates_args=(), schema=f"({lists}{', ' * bool(arguments)}{arguments}) -> Tensor[]"
        )
        self._second.register_fake(self.fake_second)
        schema = f"(Tensor[] directions, bool[] along, Tensor[] outputs{', ' * bool(arguments)}{arguments}) -> Tensor[]"
        self._tangent = library.custom_op(f"{name}_tangent", self.tangent, mutates_args=(), schema=schema)
        self._tangent.register_fake(self.fake_tangent)
        self._gradient.register_autograd(self._backward_twice, setup_context=self._keep_gradient)
        self._second.register_autograd(self._refuse_third)
        forward.register_autograd(self._backward, setup_context=self._keep)

        self.forward = forward
        self._gradient, self._second = (over_autograd_batches(self.torch, self.label, one) for one in (self._gradient, self._second))
        functions = functions_of(self)

        def eager(*args: Any, **kwargs: Any) -> Any:
            given = {**dict(zip(self.inputs, args)), **kwargs}
            self._refuse_active_numbers(given)
            if given.keys() != self.inputs.keys() or not self._is_transformed(given.values()):
                return forward(*args, **kwargs)
            return functions.launch(*(given[name] for name in self.inputs))

        outside = [eager]  # of graphs

        def traces_derivatives() -> bool:
            """Called while `torch.compile` traces: whether it does so for forward mode, or for `torch.func.grad` and the like."""
            outside[0] = self.torch.compiler.disable(eager)  # not before, because that imports torch's compiler
            functorch = self.torch._C._functorch
            levels = functorch.get_interpreter_stack() or ()
            differentiates = (functorch.TransformType.Jvp, functorch.TransformType.Grad)
            return self.torch.autograd.forward_ad._current_level >= 0 or any(one.key() in differentiates for one in levels)

        traces_derivatives._dynamo_marked_constant = True  # type: ignore[attr-defined] # as `torch.compiler.assume_constant_result` does

        def operator(*args: Any, **kwargs: Any) -> Any:
            if not self.torch.compiler.is_compiling():
                return eager(*args, **kwargs)
            # In a graph tangents would be zero, with no error; and for transforms torch does not trace custom operators with gradients.
            return outside[0](*args, **kwargs) if traces_derivatives() else forward(*args, **kwargs)

        forward.register_vmap(lambda info, dims, *args: self._batched(forward, info, dims, args))
        operator.__dict__.update(__name__=self.label, __doc__=self.kernel.function.__doc__, operator=forward)
        return operator

    # --- forward ---------------------------------------------------------------------------------------------------------

    def run(self, *args: Any) -> Any:
        """Launch the kernel."""
        self._refuse_tangents(args)
        given = {name: traced(v, False) if isinstance(v, self.torch.Tensor) else v for name, v in zip(self.inputs, args)}
        made = self._allocated(given, "new_zeros")
        values = {**self.constants, **given, **made}
        self._check(values)
        result = self.function.run(values, None)[0]
        if self.result is not None:
            return self.torch.tensor(result, dtype=self._torch_type(self.result), device=self._device(given))
        return self._returned(made)

    def _is_transformed(self, values: Iterable[Any]) -> bool:
        """Whether `torch.func` or forward mode is active, which use rules that custom operators cannot have."""
        if self.torch._C._are_functorch_transforms_active():
            return True
        unpack = self.torch.autograd.forward_ad.unpack_dual
        return any(isinstance(v, self.torch.Tensor) and unpack(v).tangent is not None for v in values)

    def _refuse_active_numbers(self, given: Mapping[str, Any]) -> None:
        """Raise for numbers with derivatives: torch converts them, and derivatives by them would be zero, with no error."""
        for name in given.keys() & self.inputs.keys() - self.tensors:
            value = given[name]
            for one in value if isinstance(value, (list, tuple)) else (value,):
                if isinstance(one, self.torch.Tensor) and one.requires_grad and self.torch.is_grad_enabled():
                    self.function.refuse_number(name, "requires a gradient")
                if isinstance(one, self.torch.Tensor) and self.torch.autograd.forward_ad.unpack_dual(one).tangent is not None:
                    self.function.refuse_number(name, "has a tangent")

    def _refuse_tangents(self, args: Sequence[Any]) -> None:
        """Raise where a graph that was compiled without tangents gets some: those of its results would be zero, with no error."""
        forward = self.torch.autograd.forward_ad
        if forward._current_level < 0 or not self.torch._C._is_fwd_grad_enabled():
            return
        if any(isinstance(v, self.torch.Tensor) and forward.unpack_dual(v).tangent is not None for v in args):
            problem = f"a graph with kernel `{self.label}` was compiled without tangents, and gets some"
            raise SpirogradUnsupportedError(problem, None, "call what is not compiled, or compile it in the dual level")

    def fake(self, *args: Any) -> Any:
        """What a launch would return, without contents."""
        given = dict(zip(self.inputs, args))
        if self.result is not None:
            return self.torch.empty((), dtype=self._torch_type(self.result), device=self._device(given))
        return self._returned(self._allocated(given, "new_empty"))

    def _returned(self, made: Mapping[str, Any]) -> Any:
        found = tuple(made.values())
        return found[0] if len(found) == 1 else found

    def _allocated(self, given: Mapping[str, Any], how: str) -> dict[str, Any]:
        """Tensors for the outputs, row-major."""
        made = {}
        for name, (spec, parameter) in self.outputs.items():
            like = given[spec] if isinstance(spec, str) else self._first(given)
            shape = like.shape if isinstance(spec, str) else spec(**given) if callable(spec) else spec
            declared = parameter.t.dtype if isinstance(parameter, ArrayParameter) else None
            options = {} if declared is None else {"dtype": self._torch_type(declared)}
            if like is None:
                made[name] = getattr(self.torch, how.removeprefix("new_"))(tuple(shape), **options)
            else:
                made[name] = getattr(like, how)(tuple(shape), **options)
        return made

    def _first(self, given: Mapping[str, Any]) -> Any:
        """The first tensor of floats, else the first tensor, else None."""
        tensors = [given[name] for name in self.tensors]
        return next((t for t in tensors if t.is_floating_point()), tensors[0] if tensors else None)

    def _device(self, given: Mapping[str, Any]) -> Any:
        first = self._first(given)
        return None if first is None else first.device

    def _torch_type(self, dtype: DType) -> Any:
        return getattr(self.torch, dtype.np.name)

    def _check(self, values: dict[str, Any]) -> Any:
        """The specialization for these arguments. Raise unless it is a function of them."""
        session, specialization, args = self.kernel.specialized(self.function.bound, values)
        if specialization not in self._checked:
            check_writes(self.kernel, specialization, self.outputs)
            check_pure(
                self.kernel,
                specialization,
                "an operator of torch, which merges and repeats calls",
                "a tensor",
                ", or use `sg.ad.torch_function`",
            )
            self._checked.add(specialization)
        return session, specialization, args

    # --- gradients -------------------------------------------------------------------------------------------------------

    def _keep(self, ctx: Any, inputs: Sequence[Any], output: Any) -> None:
        outputs = output if isinstance(output, tuple) else (output,)
        tensors = [v for v, name in zip(inputs, self.inputs) if name in self.tensors]
        ctx.save_for_backward(*outputs, *tensors)
        ctx.count = len(outputs)
        ctx.others = [None if name in self.tensors else v for v, name in zip(inputs, self.inputs)]
        ctx.needed = [
            need and name in self.tensors and v.is_floating_point() for need, name, v in zip(ctx.needs_input_grad, self.inputs, inputs)
        ]

    def _backward(self, ctx: Any, *adjoints: Any) -> Any:
        saved = ctx.saved_tensors
        outputs, left = list(saved[: ctx.count]), iter(saved[ctx.count :])
        args = [next(left) if name in self.tensors else other for name, other in zip(self.inputs, ctx.others)]
        given = [self.torch.zeros_like(out) if a is None else a for a, out in zip(adjoints, outputs)]
        needed = [bool(need) for need in ctx.needed]
        found = iter(self._gradient(given, needed, outputs, *args))
        gradients = tuple([next(found) if need else None for need in needed])
        return gradients if len(gradients) > 1 else gradients[0] if gradients else None

    def gradient(self, adjoints: Sequence[Any], needed: Sequence[bool], outputs: Sequence[Any], *args: Any) -> list[Any]:
        """The gradients of the arguments that are ``needed``, from those of the outputs, as they are after the launch."""
        values = dict(self.constants)
        for name, value, need in zip(self.inputs, args, needed):
            values[name] = traced(value, need) if isinstance(value, self.torch.Tensor) else value
        for name, out, adjoint in zip(self.outputs, outputs, adjoints):
            values[name] = traced(out, True)
            if values[name].requires_grad:
                values[name].grad = contiguous(adjoint)
        wanted = [values[name] for name, need in zip(self.inputs, needed) if need]
        for tensor in wanted:
            tensor.grad = tensor.detach().new_zeros(tensor.shape)
        session, specialization, bound = self._check(values)
        made = self.kernel.grad.of(session, specialization)
        made.check_bare(COPY_HINT.format(framework="torch"))
        packer = self.kernel.pack(session, specialization, bound, gradients=True)
        made.launch(packer, adjoints[0].item() if self.result is not None and made.returned else None, None)
        return [tensor.grad for tensor in wanted]

    def fake_gradient(self, adjoints: Sequence[Any], needed: Sequence[bool], outputs: Sequence[Any], *args: Any) -> list[Any]:
        """What `gradient` would return, without contents."""
        return [value.new_empty(value.shape) for value, need in zip(args, needed) if need]

    # --- second derivatives ------------------------------------------------------------------------------------------------

    def _keep_gradient(self, ctx: Any, inputs: Sequence[Any], output: Any) -> None:
        adjoints, needed, outputs, *args = inputs
        ctx.counts = len(adjoints), len(outputs)
        ctx.save_for_backward(*adjoints, *outputs, *(v for v, name in zip(args, self.inputs) if name in self.tensors))
        ctx.others = [None if name in self.tensors else v for v, name in zip(args, self.inputs)]
        ctx.needed = list(needed)

    def _backward_twice(self, ctx: Any, cotangents: Sequence[Any]) -> Any:
        adjoints, outputs = ctx.counts
        left = iter(ctx.saved_tensors)
        first = [next(left) for _ in range(adjoints)]
        kept = [next(left) for _ in range(outputs)]
        args = [next(left) if name in self.tensors else other for name, other in zip(self.inputs, ctx.others)]
        wanted = [v for v, need in zip(args, ctx.needed) if need]
        given = [self.torch.zeros_like(v) if u is None else u for u, v in zip(cotangents, wanted)]
        # Has the form of the arguments here, but not in `_keep_gradient`, where lists are flat.
        needs = zip(ctx.needs_input_grad[3:], self.inputs, args)
        asked = [name in self.tensors and need and v.is_floating_point() for need, name, v in needs]
        found = iter(self._second(given, first, ctx.needed, asked, kept, *args))
        by_adjoints = [next(found) if a.is_floating_point() else None for a in first]
        return by_adjoints, None, [None] * outputs, *[next(found) if ask else None for ask in asked]

    def second(
        self, cotangents: Sequence[Any], adjoints: Sequence[Any], needed: Sequence[bool], asked: Sequence[bool], outputs: Sequence[Any],
        *args: Any,
    ) -> list[Any]:  # fmt: skip
        """The derivatives of `gradient` along ``cotangents``: by the adjoints of floats, and by the arguments that are ``asked`` for."""
        names = list(self.inputs)
        tensors = {name: v for name, v in zip(names, args) if name in self.tensors} | dict(zip(self.outputs, outputs))
        active = [name for name, need, ask in zip(names, needed, asked) if need or ask]
        values = {**self.constants, **dict(zip(names, args)), **dict.fromkeys(tensors)}
        wanted = active + [name for name in self.outputs if tensors[name].is_floating_point()]
        of_args = dict(zip(names, asked))
        call = Call(self.function, values, wanted, [n for n in names if of_args[n]], list(self.outputs), None, [])
        self._check({**values, **tensors})
        given = dict(zip((name for name, need in zip(names, needed) if need), cotangents))
        by_adjoints, by_values = call.second(adjoints, [tensors[n] for n in values if n in tensors], [given.get(n) for n in values])
        found = dict(zip(values, by_values))
        return [b for a, b in zip(adjoints, by_adjoints) if a.is_floating_point()] + [found[n] for n in names if of_args[n]]

    def fake_second(
        self, cotangents: Sequence[Any], adjoints: Sequence[Any], needed: Sequence[bool], asked: Sequence[bool], outputs: Sequence[Any],
        *args: Any,
    ) -> list[Any]:  # fmt: skip
        """What `second` would return, without contents."""
        return [v.new_empty(v.shape) for v in adjoints if v.is_floating_point()] + [v.new_empty(v.shape) for v, a in zip(args, asked) if a]

    def tangent(self, directions: Sequence[Any], along: Sequence[bool], outputs: Sequence[Any], *args: Any) -> list[Any]:
        """The tangents of the outputs of floats, from those of the arguments that are ``along``."""
        names = list(self.inputs)
        tensors = {name: v for name, v in zip(names, args) if name in self.tensors} | dict(zip(self.outputs, outputs))
        values = {**self.constants, **dict(zip(names, args)), **dict.fromkeys(tensors)}
        active = [name for name, chosen in zip(names, along) if chosen]
        wanted = active + [name for name in self.outputs if tensors[name].is_floating_point()]
        self._check({**values, **tensors})
        call = Call(self.function, values, wanted, [], list(self.outputs), None, [])
        return call.tangents([tensors[n] for n in values if n in tensors], dict(zip(active, directions)))

    def fake_tangent(self, directions: Sequence[Any], along: Sequence[bool], outputs: Sequence[Any], *args: Any) -> list[Any]:
        """What `tangent` would return, without contents."""
        return [out.new_empty(out.shape) for out in outputs if out.is_floating_point()]

    def _refuse_third(self, ctx: Any, *cotangents: Any) -> Any:
        problem = f"kernel `{self.label}` has first and second derivatives, no third ones"
        raise SpirogradRuntimeError(render(problem, None, "differentiate a second time without `create_graph=True`"))

    # --- batches ---------------------------------------------------------------------------------------------------------

    def _batched(self, operator: Any, info: Any, dims: Sequence[Any], args: Sequence[Any]) -> Any:
        """The operator for each entry of a batch, in a loop."""
        axes = [d if isinstance(a, self.torch.Tensor) else None for a, d in zip(args, dims)]
        entries = [[a if d is None else a.select(d, k) for a, d in zip(args, axes)] for k in range(info.batch_size)]
        results = [operator(*entry) for entry in entries]
        if not results:
            raise no_entries(self.label)
        if isinstance(results[0], self.torch.Tensor):
            return self.torch.stack(results), 0
        stacked = tuple([self.torch.stack(parts) for parts in zip(*results)])
        return stacked, (0,) * len(stacked)


def _schema_type(p: Parameter, label: str) -> str:
    if isinstance(p, ArrayParameter):
        return "Tensor"
    if isinstance(p, ScalarParameter):
        return "float" if p.t.is_float else "bool" if p.t.kind == "bool" else "SymInt"
    if isinstance(p, AggregateParameter) and len({t.is_float for t in p.t.leaf_dtypes()}) == 1:
        return "float[]" if p.t.leaf_dtypes()[0].is_float else "SymInt[]"
    template = isinstance(p, TemplateParameter)
    hint = f"`torch_op(..., template_args={{{p.name!r}: ...}})`" if template else "pass its members one by one"
    what = "a template argument" if template else "no number, tensor or vector"
    raise SpirogradTypeError(f"kernel `{label}`: `{p.name}` is {what}, which an operator of torch cannot take", None, hint)


__all__ = ["torch_op"]
