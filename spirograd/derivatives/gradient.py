"""`kernel.grad`: the derivative of a kernel in reverse mode, compiled for the same arguments and launched with them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from spirograd.base.errors import SpirogradSyntaxError
from spirograd.base.near_names import NearNames
from spirograd.base.once import one_at_a_time
from spirograd.derivatives.explained import explained
from spirograd.derivatives.memory_plan import MemoryPlan
from spirograd.derivatives.specialized import SpecializedDerivative
from spirograd.ir.nodes import Kernel as KernelIR
from spirograd.lang import context
from spirograd.lang.frontend.compilation_stages import Staged
from spirograd.lang.frontend.kernel import Kernel
from spirograd.lang.frontend.native_calls import NativeCalls
from spirograd.lang.frontend.specialization import Specialization

if TYPE_CHECKING:
    from spirograd.lang.session_protocol import Session


class Gradient(Staged, NearNames):
    """The gradient of a kernel: ``kernel.grad(*args)`` runs the reverse pass of a launch with these arguments.

    It accumulates into the gradients of the memory that the kernel reads, from the gradients of the memory that it writes. Where the kernel
    overwrites an element, it consumes the gradient of the element. ``returned=`` gives the adjoint of the value that the kernel returns.
    `ir`, `spirv`, ... show the stages of what was compiled last. A call raises SpirogradCompilationError, with the line, for what has no
    derivative, and where the gradient needs values that the kernel overwrites.
    """

    __sg_is_kernel__ = True

    def __init__(self, kernel: Kernel) -> None:
        self.kernel = kernel
        self._last: SpecializedDerivative | None = None
        self._native = NativeCalls(None)  # of the last one

    def __repr__(self) -> str:
        return f"<gradient of kernel {self.kernel.function.__qualname__}>"

    def __call__(self, *args: object, returned: object = None, replay: bool = False, **kwargs: object) -> None:
        """Launch the gradient. ``returned``: the adjoint of the value that the kernel returns. By default 1, if that is a number, and all
        that the kernel computes from memory with gradients. ``replay``: memory holds what it held before the kernel; the kernel runs again
        and saves what its reverse needs, and afterwards memory holds the same again: for kernels that overwrite what they read.

        Raises SpirogradCompilationError, with the line, for what has no derivative, and where the gradient needs values that the kernel
        overwrites.
        """
        launch = self._native.launch
        if launch is not None and returned is None and not replay:
            args, kwargs = self.kernel.ordered(args, kwargs) if kwargs else (args, kwargs)
            if not kwargs and launch(args) is None:
                return
        if context.current_trace() is not None:
            raise SpirogradSyntaxError("a gradient cannot be launched from a kernel", None, "launch it from Python")
        session, specialization, bound = self.kernel.specialized(args, kwargs)
        derivative = self.of(session, specialization)
        if replay or derivative.needs_replay():
            derivative.check_bare(replayed=True)
            context.services().replay_gradient(self.kernel, session, specialization, bound, returned)
            return
        derivative.check_bare()
        packer = self.kernel.pack(session, specialization, bound, gradients=True)
        derivative.launch(packer, returned, specialization.last_number)
        self._native = native = derivative.native
        if native.device is not None and not derivative.returned and packer.transfers is None and native.is_due():
            derivative.prepare(bound, packer)

    def of(self, session: Session, specialization: Specialization) -> SpecializedDerivative:
        """Return the derivative of a compiled kernel, which is differentiated once."""
        derivative = specialization.derivatives.get("reverse") or self._differentiate(session, specialization)
        self._last = derivative
        return derivative

    @one_at_a_time
    def _differentiate(self, session: Session, specialization: Specialization) -> SpecializedDerivative:
        if "reverse" not in specialization.derivatives:
            specialization.derivatives["reverse"] = SpecializedDerivative(session, self.kernel, specialization, "reverse")
        return specialization.derivatives["reverse"]  # type: ignore[no-any-return]

    def bound_to(self, instance: object) -> BoundGradient:
        """Return the gradient of a method kernel, bound to one object."""
        return BoundGradient(self, instance)

    def explain(self, *args: object, **kwargs: object) -> str:
        """Describe the gradient in words: what is saved and why, what is recomputed, where gradients come from, go to, and end, and what
        `init(deterministic=True)` changes in its tasks.

        Without arguments of what was compiled last, otherwise of a launch with these arguments.
        """
        if self._last is None or args or kwargs:
            session, specialization, _ = self.kernel.specialized(args, kwargs)
            self.of(session, specialization)
        assert self._last is not None
        text = explained(self._last.label, self._last.primal.kernel.loc, self._last.last_derivative)
        if not context.session().cfg.deterministic:
            return text
        tasks = str(self._stages(generate=False).get("tasks.txt", "")).splitlines()
        return text + "".join([f"{line}\n" for line in tasks if ": deterministic, " in line])

    def memory_plan(self, *args: object, **kwargs: object) -> MemoryPlan:
        """Return the memory that a launch with these arguments would need now for the adstacks of its loops: entries, bytes and slots of
        each.

        The gradient does not run. At most kernels that count iterations run, for which the host blocks. Raises what a launch would raise:
        SpirogradCompilationError, with the line, for what has no derivative; OutOfDeviceMemory if the adstacks do not fit.
        """
        session, specialization, bound = self.kernel.specialized(args, kwargs)
        packer = self.kernel.pack(session, specialization, bound, gradients=True)
        return self.of(session, specialization).memory_plan(packer, specialization.last_number)

    @property
    def adstack_bytes(self) -> int:
        """Bytes of the adstacks of loops in the last launch; 0 before the first one, and if the gradient needs none."""
        return 0 if self._last is None else self._last.adstack_bytes

    def _compiled_last(self) -> KernelIR | None:
        return None if self._last is None else self._last.last_derivative.kernel

    def _label(self) -> str:
        return f"the gradient of kernel `{self.kernel.function.__name__}`"


class BoundGradient:
    """The gradient of a kernel that is a method, with its object."""

    __sg_is_kernel__ = True

    def __init__(self, gradient: Gradient, instance: object) -> None:
        self.gradient = gradient
        self.instance = instance

    def __call__(self, *args: object, returned: object = None, replay: bool = False, **kwargs: object) -> None:
        self.gradient(self.instance, *args, returned=returned, replay=replay, **kwargs)

    def explain(self, *args: object, **kwargs: object) -> str:
        """See `Gradient`."""
        return self.gradient.explain(self.instance, *args, **kwargs)

    def memory_plan(self, *args: object, **kwargs: object) -> MemoryPlan:
        """See `Gradient`."""
        return self.gradient.memory_plan(self.instance, *args, **kwargs)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.gradient, name)

    def __dir__(self) -> list[str]:
        return sorted({*super().__dir__(), *dir(self.gradient)})
