"""Functions of tensors with four maps (see `kernel_function`) as operators of torch: registration, with rules for derivatives."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Sequence
from types import ModuleType
from typing import TYPE_CHECKING, NoReturn

from spirograd.base.dtypes import DType
from spirograd.base.errors import SpirogradRuntimeError, SpirogradUnsupportedError, render
from spirograd.interop.kernel_function import Arguments, Outputs
from spirograd.interop.torch_batches import looped, over_autograd_batches
from spirograd.interop.torch_maps import Context, refuse_number
from spirograd.interop.torch_rules import Active, Maps, Rules, Values, functions_of

if TYPE_CHECKING:
    from torch import Tensor
    from torch._library.custom_ops import CustomOpDef

Tensors = Sequence["Tensor"]
Flags = Sequence[bool]  # one for each input


class Differentiable:
    """A function that torch is to know as an operator. ``inputs``: the names of its arguments in order; ``arrays``: those of them that are
    tensors with derivatives; ``outputs``: by name; ``result``: the type of the number that it returns in place of outputs. ``label``: what
    messages call it."""

    torch: ModuleType
    name: str
    label: str
    inputs: list[str]
    arrays: frozenset[str]
    outputs: Outputs
    result: DType | None = None
    gradient_follows = True  # whether torch may ask for the gradient of the current call; True where that is not known

    # --- the maps --------------------------------------------------------------------------------------------------------

    def run(self, *args: object) -> Tensor | tuple[Tensor, ...]:
        """Return the outputs."""
        raise NotImplementedError

    def fake(self, *args: object) -> Tensor | tuple[Tensor, ...]:
        """Return tensors like those of `run`, without contents."""
        raise NotImplementedError

    def gradients(self, adjoints: Tensors, along: Flags, outputs: Tensors, *args: object) -> list[Tensor]:
        """Return the gradients of the arguments ``along``, from those of the outputs."""
        raise NotImplementedError

    def tangents(self, directions: Tensors, along: Flags, outputs: Tensors, *args: object) -> list[Tensor]:
        """Return the tangents of the outputs of floats, from those of the arguments ``along``."""
        raise NotImplementedError

    def seconds(self, directions: Tensors, adjoints: Tensors, along: Flags, asked: Flags, outputs: Tensors, *args: object) -> list[Tensor]:
        """Return the derivatives of `gradients` along ``directions`` of the arguments ``along``: with respect to the adjoints of floats,
        and to the arguments that are ``asked`` for."""
        raise NotImplementedError

    def schema_type(self, name: str) -> str:
        """Return the type of an argument in torch's language for schemas."""
        raise NotImplementedError

    def documentation(self) -> str | None:
        """Return the docstring of the operator."""
        raise NotImplementedError

    # --- registering -----------------------------------------------------------------------------------------------------

    def register(self, name: str) -> Callable[..., object]:
        """Register the four maps with torch, and return the function that users call. ``name``: `"namespace::name"`."""
        maps = self._custom_operators(name)
        forward = maps.launch
        functions = functions_of(self.torch, self, maps)

        def eager(*args: object, **kwargs: object) -> object:
            given = {**dict(zip(self.inputs, args)), **kwargs}
            self._refuse_active_numbers(given)
            if given.keys() == set(self.inputs) and self._is_transformed(given.values()):
                return functions.launch(*(given[name] for name in self.inputs))
            self.gradient_follows = self.torch.is_grad_enabled() and any(getattr(v, "requires_grad", False) for v in given.values())
            try:
                return forward(*args, **kwargs)
            finally:
                self.gradient_follows = True

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

        operator.__dict__.update(__name__=self.name, __doc__=self.documentation(), operator=forward)
        return operator

    def _custom_operators(self, name: str) -> Maps:
        """Return the maps as custom operators, with rules for reverse mode."""
        count = max(len(self.outputs), 1)
        arguments = [f"{self.schema_type(name)} {name}" for name in self.inputs]
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

        def split(flat: Values, *counts: int) -> list[Values]:
            remaining = iter(flat)
            return [*([*itertools.islice(remaining, n)] for n in (*counts, count)), [*remaining]]

        def call_gradient(active: Active, *flat: object) -> Tensors:
            adjoints, outputs, args = split(flat, count)
            results: Tensors = batched[0](adjoints, [*active.along], outputs, *args)
            return results

        def call_tangent(active: Active, *flat: object) -> Tensors:
            directions, outputs, args = split(flat, sum(active.along))
            results: Tensors = tangent(directions, [*active.along], outputs, *args)
            return results

        def call_second(active: Active, *flat: object) -> Tensors:
            directions, adjoints, outputs, args = split(flat, sum(active.along), count)
            results: Tensors = batched[1](directions, adjoints, [*active.along], [*active.asked], outputs, *args)
            return results

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

    def _refuse_third(self, ctx: Context, *cotangents: object) -> NoReturn:
        problem = f"{self.label} has first and second derivatives, no third ones"
        raise SpirogradRuntimeError(render(problem, None, "differentiate a second time without `create_graph=True`"))

    # --- arguments that derivatives do not reach ---------------------------------------------------------------------------

    def _is_transformed(self, values: Iterable[object]) -> bool:
        """Return whether `torch.func` or forward mode is active, which use rules that custom operators cannot have."""
        if self.torch._C._are_functorch_transforms_active():
            return True
        unpack = self.torch.autograd.forward_ad.unpack_dual
        return any(isinstance(v, self.torch.Tensor) and unpack(v).tangent is not None for v in values)

    def _refuse_active_numbers(self, given: Arguments) -> None:
        """Raise for numbers with derivatives: torch converts them, and derivatives by them would be zero, with no error."""
        for name in given.keys() & set(self.inputs) - set(self.arrays):
            value = given[name]
            for one in value if isinstance(value, (list, tuple)) else (value,):
                if isinstance(one, self.torch.Tensor) and one.requires_grad and self.torch.is_grad_enabled():
                    refuse_number(self.label, name, "requires a gradient")
                if isinstance(one, self.torch.Tensor) and self.torch.autograd.forward_ad.unpack_dual(one).tangent is not None:
                    refuse_number(self.label, name, "has a tangent")

    def refuse_tangents(self, args: Sequence[object]) -> None:
        """Raise where a graph that was compiled without tangents gets some: those of its results would be zero, with no error."""
        forward = self.torch.autograd.forward_ad
        if forward._current_level < 0 or not self.torch._C._is_fwd_grad_enabled():
            return
        if any(isinstance(v, self.torch.Tensor) and forward.unpack_dual(v).tangent is not None for v in args):
            problem = f"a graph with {self.label} was compiled without tangents, and gets some"
            raise SpirogradUnsupportedError(problem, None, "call what is not compiled, or compile it in the dual level")


def _floats(tensors: Tensors) -> list[Tensor]:
    return [tensor for tensor in tensors if tensor.is_floating_point()]


def _alike(tensors: Iterable[Tensor]) -> list[Tensor]:
    return [tensor.new_empty(tensor.shape) for tensor in tensors]
