"""Kernels: specialisation, a compiled kernel for each signature, and launching."""

from __future__ import annotations

import functools
import inspect
import logging
import types
import weakref
from collections.abc import Callable, Hashable, Sequence
from typing import TYPE_CHECKING, Any

from spirograd.base import once
from spirograd.base.errors import SpirogradCallError, SpirogradCompilationError, SpirogradRuntimeError, SpirogradSyntaxError
from spirograd.base.near_names import NearNames
from spirograd.base.python_limits import gc_paused
from spirograd.base.records import dataclass, replace
from spirograd.base.spans import span
from spirograd.base.tracebacks import frames_hidden
from spirograd.ir import nodes
from spirograd.lang import context, streams
from spirograd.lang.frontend import plain_kernels, source
from spirograd.lang.frontend.argument_order import Order, argument_order, unordered
from spirograd.lang.frontend.compilation_stages import Staged
from spirograd.lang.frontend.fingerprints import is_dead
from spirograd.lang.frontend.func import bound_arguments, resolved_signature
from spirograd.lang.frontend.guards import Path
from spirograd.lang.frontend.kernel_tracing import NewReads, TracedKernel, no_reads, trace_kernel
from spirograd.lang.frontend.lost_gradients import warn_of_lost_gradients
from spirograd.lang.frontend.native_calls import NativeCalls
from spirograd.lang.frontend.parameters import (
    AggregateParameter,
    Parameter,
    ScalarParameter,
    TemplateParameter,
    key_function,
    make_parameter,
)
from spirograd.lang.frontend.specialization import Specialization
from spirograd.lang.frontend.steps import Packer, Step
from spirograd.lang.frontend.texts import text_of
from spirograd.lang.language_options import LanguageOptions

if TYPE_CHECKING:
    from spirograd.base.arguments import Plan
    from spirograd.lang.frontend.stored_traces import RecalledTrace
    from spirograd.lang.session_protocol import CompileTarget, OnOp, Session

logger = logging.getLogger("spirograd")


@dataclass(frozen=True, slots=True, eq=False)
class _InSession:
    """The state that a call of a kernel looks up, as one object that is read at once.

    ``positional``: the number of arguments of a call that gives them in order; -1 if some are given by name only. ``order``: orders the
    arguments of a call. ``key``: computes the key of ordered arguments that the compiled code depends on, if there is one.
    """

    session: Session | None
    positional: int
    order: Order
    key: Callable[[Sequence[object]], Hashable] | None
    specializations: dict[Hashable, list[Specialization]]


class Kernel(Staged, NearNames):
    """A function that runs on the device, made by `kernel`. Calling it launches it.

    It is compiled at the first call with each signature: types of arguments, values of template arguments. Methods `ir`, `spirv`,
    `spirv_asm`, `llvm` and `asm` show the stages of the last compilation. ``grad``: the kernel's gradient, a `Gradient`. A call raises
    SpirogradCompilationError if the kernel cannot be compiled, SpirogradRuntimeTypeError for arguments that do not fit the annotations, and
    on synchronous devices SpirogradAssertionError if a check fails.
    """

    __sg_is_kernel__ = True

    def __init__(self, function: Callable[..., object], unfused_by: str = "") -> None:
        functools.update_wrapper(self, function)
        self.function = function
        self._unfused_by = unfused_by
        self._is_method = False
        self._text = text_of(function)
        self._specializations: dict[Hashable, list[Specialization]] = {}
        self._parameters: list[Parameter] = []
        self._signature: inspect.Signature | None = None
        # With its session: another thread may begin one between two reads.
        self._in_session = _InSession(None, -1, unordered, None, {})
        self._native = NativeCalls(None)
        self._last: Specialization | None = None
        self.variants: dict[Hashable, Kernel] = {}  # With cells for numbers: see `scalar_cells`.
        self.repeats: object = None  # What tapes know of the sequences of launches that begin with it.

    @once.once
    def grad(self) -> Any:
        return context.services().gradient_of(self)

    @property
    def _primal(self) -> Kernel:
        """The kernel itself, by the name that programs of the Taichi family use."""
        return self

    @property
    def _adjoint(self) -> object:
        """The kernel's gradient, by the name that programs of the Taichi family use."""
        return self.grad

    def __set_name__(self, owner: object, name: str) -> None:
        self._is_method = True  # The first parameter is the object, under any name.

    def __get__(self, instance: object, owner: object = None) -> object:
        if instance is None:
            return self
        self._is_method = True  # As `__set_name__` does, which is not called for functions that become methods later.
        return BoundKernel(self, instance)

    def __repr__(self) -> str:
        return f"<kernel {self.function.__qualname__}>"

    def __call__(self, *args: object, **kwargs: object) -> Any:
        launch = self._native.launch
        if launch is not None:
            if kwargs:
                args, kwargs = self.ordered(args, kwargs)
            result = NotImplemented if kwargs else launch(args)
            if result is not NotImplemented:
                return result
        return self._call(args, kwargs)

    @functools.cached_property
    def _parameter_names(self) -> frozenset[str]:
        return frozenset(inspect.signature(self.function).parameters)

    def ordered(self, args: tuple[object, ...], kwargs: dict[str, object]) -> tuple[tuple[object, ...], dict[str, object]]:
        """Return all arguments of a call by position, if they fit, otherwise as they are."""
        return self._in_session.order(args, kwargs)

    def _call(self, args: tuple[object, ...], kwargs: dict[str, object]) -> object:
        """Launch the kernel by Python."""
        recorder = context.recorder()
        if recorder is not None and not kwargs and recorder.repeat(self, args):
            return None
        now = self._in_session
        session = now.session
        if not kwargs and len(args) == now.positional and session is not None and context.only_launches(session):
            key = () if now.key is None else now.key(args)
            for specialization in now.specializations.get(key, ()):
                if specialization.constant or specialization.holds(args):
                    break
            else:
                specialization = self._specialize(session, now.specializations, key, args)
            if specialization.outside.values and not specialization.outside.are_same():
                self._report_changes(specialization, session)
        else:
            if kwargs and (stream := streams.taken_from(kwargs, self._parameter_names)) is not None:
                with stream:
                    return self._call(args, kwargs)
            session = context.session()
            if session.plain:
                return self._run_as_python(session, args, kwargs)
            session, specialization, args = self.specialized(args, kwargs)
            if recorder is not None:
                return self._launch(session, specialization, args)
        packer = specialization.unpacked
        if packer is None:
            packer = Packer()  # Does the same as `pack`, without the call.
            packer.session, packer.trees = session, specialization.trees
            packer.transfers, packer.gradients = None, False
            packer.scalars, packer.arrays = specialization.pack(args, session, packer)
        if packer.transfers is not None and packer.transfers.torch_records:
            warn_of_lost_gradients(self.function, specialization, packer.transfers.tensors, session.warned)
        plan = specialization.plan
        values = plan.launch(packer)
        native = self._native
        if native.device is not None and native.is_due():
            native.prepare(plan, packer, args, specialization.record, specialization.make_result)
        if plan.diagnosed or packer.transfers is not None:
            specialization.finish(packer)
        return None if values is None and not specialization.results else specialization.result(values)

    def _run_as_python(self, session: Session, args: tuple[object, ...], kwargs: dict[str, object]) -> object:
        """Run the kernel on ``arch=sg.python``."""
        if session is not self._in_session.session:
            self._start(session)
        assert self._signature is not None
        return plain_kernels.run(self.function, self._parameters, self._signature, self._bind(args, kwargs))

    def specialized(self, args: tuple[object, ...], kwargs: dict[str, object]) -> tuple[Session, Specialization, tuple[object, ...]]:
        """Return the session, the specialization for these arguments, compiled if necessary, and the arguments as the signature orders
        them."""
        session = context.session()
        if session.plain:
            plain_kernels.refuse_gradients()
        if context.current_trace() is not None:
            raise SpirogradSyntaxError("a kernel cannot be called from a kernel", None, "make it a function with `@sg.func`")
        now = self._in_session
        if session is not now.session:
            now = self._start(session)
        if kwargs or len(args) != now.positional:
            args, kwargs = now.order(args, kwargs)
        if kwargs or len(args) != now.positional:
            args = self._bind(args, kwargs)
        return session, self._specialization(session, now, args), args

    def _specialization(self, session: Session, now: _InSession, args: Sequence[object]) -> Specialization:
        """Return the specialization for these arguments, compiled if necessary."""
        key = () if now.key is None else now.key(args)
        for specialization in now.specializations.get(key, ()):
            if specialization.constant or specialization.holds(args):
                if specialization.outside.values and not specialization.outside.are_same():
                    self._report_changes(specialization, session)
                return specialization
        return self._specialize(session, now.specializations, key, args)

    def _report_changes(self, specialization: Specialization, session: Session) -> None:
        """Warn of values from outside that have changed since the kernel was compiled."""
        if specialization.outside.report(self.function, session.warned):
            self._native.forget()

    # --- calling ---------------------------------------------------------------------------------------------------------

    def _start(self, session: Session) -> _InSession:
        """Drop the code of an earlier session, and resolve the signature."""
        with once.lock, frames_hidden():
            if self._in_session.session is session:  # Another thread was here first.
                return self._in_session
            signature = resolved_signature(self.function)
            options: LanguageOptions = session.language
            self._parameters = [self._parameter(p, k, options) for k, p in enumerate(signature.parameters.values())]
            self._signature = signature
            self._specializations = {}
            by_name = any(p.kind is p.KEYWORD_ONLY for p in signature.parameters.values())
            self._native = NativeCalls(None if by_name else session)
            self._last = None
            now = self._in_session = _InSession(
                session,
                -1 if by_name or session.plain else len(self._parameters),
                argument_order(signature),
                key_function(self._parameters),
                self._specializations,
            )
            return now

    def _parameter(self, p: inspect.Parameter, position: int, options: LanguageOptions) -> Parameter:
        if p.kind in (p.VAR_POSITIONAL, p.VAR_KEYWORD):
            raise SpirogradSyntaxError(
                f"kernel `{self.function.__name__}`: `*{p.name}` is not supported in the signature of a kernel: name each argument"
            )
        if position == 0 and (self._is_method or p.name == "self") and p.annotation is p.empty:
            return TemplateParameter(p.name, self.function.__name__)
        try:
            return make_parameter(p.name, p.annotation, options, self.function.__name__)
        except SpirogradCompilationError as error:
            where = self.source()
            arguments = where.tree.args
            node = next((a for a in (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs) if a.arg == p.name), where.tree)
            raise type(error)(error.message, error.loc or where.loc(node, None), error.hint) from None

    def _bind(self, args: tuple[object, ...], kwargs: dict[str, object]) -> tuple[object, ...]:
        assert self._signature is not None
        try:
            bound = bound_arguments(self._signature, args, kwargs)
        except TypeError as error:
            raise SpirogradCallError(f"kernel `{self.function.__name__}`: {error}") from None
        bound.apply_defaults()
        return tuple(bound.arguments.values())

    def parameters(self) -> list[Parameter]:
        """The parameters, with their annotations as the running session understands them."""
        session = context.session()
        if session is not self._in_session.session:
            self._start(session)
        return self._parameters

    def copied(self) -> list[str]:
        """The parameters whose values are copied into a launch. Known once the kernel was specialized."""
        return [p.name for p in self._parameters if isinstance(p, (ScalarParameter, AggregateParameter))]

    def pack(self, session: Session, specialization: Specialization, args: Sequence[object], gradients: bool = False) -> Packer:
        """Return the flat arguments of a launch. ``gradients``: whether the launch of a derivative works on the gradients of torch
        tensors."""
        packer = Packer.on_trees(session, specialization.trees, gradients)
        packer.scalars, packer.arrays = specialization.pack(args, session, packer)
        return packer

    def _launch(self, session: Session, specialization: Specialization, args: Sequence[object]) -> object:
        """Launch the kernel, by the recorder of this thread if it has one."""
        recorder = context.recorder()
        if recorder is not None and recorder.follows_numbers and (call := recorder.cells_of(self, args)) is not None:
            kernel, passed, cells = call
            recorder.numbers_passed(cells)
            return kernel(*passed)
        packer = self.pack(session, specialization, args)
        results = specialization.plan.launch(packer) if recorder is None else recorder.launch(self, specialization, packer, args)
        specialization.finish(packer)
        return specialization.result(results)

    # --- compiling -------------------------------------------------------------------------------------------------------

    def _specialize(
        self, session: Session, specializations: dict[Hashable, list[Specialization]], key: Hashable, args: Sequence[object]
    ) -> Specialization:
        with once.lock, frames_hidden(), gc_paused():
            for specialization in specializations.get(key, ()):
                if specialization.holds(args):
                    return specialization
            for dead in [key for key in list(specializations) if is_dead(key)]:
                specializations.pop(dead, None)
            traced, prepare = self._traced_or_recalled(session, args)
            specialization = Specialization(traced, prepare, key, self._steps(args))
            specialization.forget = _forgetter(weakref.ref(self), key, weakref.ref(specialization))
            if not any(step.size for step in specialization.steps):
                specialization.unpacked = self.pack(session, specialization, args)
            specializations.setdefault(key, []).append(specialization)
            self._last = specialization
            return specialization

    def _steps(self, args: Sequence[object]) -> list[Step]:
        return [step for k, (parameter, value) in enumerate(zip(self._parameters, args)) for step in parameter.steps(value, Path(k))]

    def launch_by(self, calls: NativeCalls) -> None:
        """Have compiled code launch by ``calls``, too: see `NativeCalls.share`."""
        self._native.share(calls)

    def forget(self, key: Hashable, specialization: Specialization | None) -> None:
        """Drop ``specialization`` for arguments with this key.

        It takes no lock (see `Specialization.release`): at worst an addition of another thread is dropped too, and compiled again.
        """
        others = [other for other in self._specializations.get(key, ()) if other is not specialization]
        if others:
            self._specializations[key] = others  # A new list: another thread may be reading the old one.
        else:
            self._specializations.pop(key, None)
        self._native.forget()

    def _traced_or_recalled(self, session: Session, args: Sequence[object]) -> tuple[TracedKernel | RecalledTrace, Callable[..., Plan]]:
        """Return the trace for arguments like ``args``, from the offline cache if it is there, and a function that prepares its launch."""
        part = self.traced_part()
        if not session.keeps_traces() or part is None:
            return self.trace(session, args), session.prepare
        from spirograd.lang.frontend import stored_traces

        assert self._signature is not None
        assert isinstance(self.function, types.FunctionType)
        function = stored_traces.Traced(self.function, self._text, part, self._parameters, self._signature)
        call = stored_traces.Call(session, function, args, self._language(session))
        with span(f"recall {self.function.__name__}", "compile"):
            recalled = stored_traces.recall(call)
        if recalled is not None:
            _warn(session, recalled)
            return recalled, functools.partial(stored_traces.prepare_recalled, session)
        traced = self.trace(session, args, call.new_reads)
        from spirograd.lang.frontend import trace_storing  # A process whose traces are in the cache stores none.

        with span(f"describe the trace of {self.function.__name__}", "cache"):
            entry = trace_storing.entry_of(call, traced)
        return traced, trace_storing.PrepareAndStore(session, entry)

    def traced_part(self) -> str | None:
        """Return the statements that are traced, as text, if they are a part of the function; None for a kernel that is not what its source
        says."""
        return ""

    def _language(self, session: CompileTarget) -> LanguageOptions:
        return replace(session.language, unfused_by=self._unfused_by) if self._unfused_by else session.language

    def trace(self, session: CompileTarget, args: Sequence[object], new_reads: NewReads = no_reads) -> TracedKernel:
        """Return the kernel as IR, for arguments like ``args``. ``new_reads``: see `trace_kernel`."""
        assert self._signature is not None
        where = self.source()
        with span(f"trace {self.function.__name__}", "compile"):
            returns, language = self._signature.return_annotation, self._language(session)
            traced = trace_kernel(where, self._parameters, returns, args, language, new_reads, session.probes)
        _warn(session, traced)
        return traced

    def source(self) -> source.Source:
        """Return the source of the kernel."""
        return source.of(self.function, self._text, "kernel")

    def explain(self, *args: object, **kwargs: object) -> str:
        """Describe the tasks of a launch with their lines, for neighbouring parallel loops whether they were fused, or why not, and which
        code launches have chosen by its time.

        Without arguments, it describes the last compilation, otherwise a launch with these arguments.
        """
        if self._last is None or args or kwargs:
            self.specialized(args, kwargs)
        text = str(self._stages(generate=False).get("tasks.txt", "The interpreter runs the kernel as it is written, as one task.\n"))
        if self._last is None:
            return text
        reason = self._last.traced_anew
        traced = [f"Each process traces the kernel, even if the offline cache has it: {reason}."] if reason else []
        return text + "".join([f"{line}\n" for line in (*self._last.measured_choices(), *traced)])

    def step(self, on_op: OnOp, *args: object, **kwargs: object) -> object:
        """Run on ``arch=sg.interpreter`` and call ``on_op(op, values)`` after each operation: ``op.code``, ``op.loc``, ``values[op]``.

        Raises SpirogradRuntimeError on other back ends.
        """
        session = context.session()
        if session.plain or not session.caps.target.interpreted:
            raise SpirogradRuntimeError("only the interpreter can step through a kernel: `sg.init(arch=sg.interpreter)`")
        if session is not self._in_session.session:
            self._start(session)
        bound = self._bind(args, kwargs)
        with frames_hidden():
            specialization = Specialization(
                self.trace(session, bound), lambda kernel: session.prepare(kernel, on_op), (), self._steps(bound)
            )
        return self._launch(session, specialization, bound)

    # --- inspection ------------------------------------------------------------------------------------------------------

    def _compiled_last(self) -> nodes.Kernel | None:
        return None if self._last is None else self._last.kernel

    def _label(self) -> str:
        return f"kernel `{self.function.__name__}`"


def _warn(session: CompileTarget, traced: TracedKernel | RecalledTrace) -> None:
    """Log the warnings of a trace, each once in a session: those of a trace from the cache are known by their texts alone."""
    for about, text in traced.warnings.items():
        if session.warned.isdisjoint((about, text)):
            session.warned |= {about, text}
            logger.warning(text)


def _forgetter(kernel: weakref.ref[Kernel], key: object, specialization: weakref.ref[Specialization]) -> Callable[[], None]:
    """Return a function that makes a kernel forget a specialization; it keeps neither alive."""

    def forget() -> None:
        owner = kernel()
        if owner is not None:
            owner.forget(key, specialization())

    return forget


class BoundKernel:
    """A kernel that is a method, bound to its object."""

    __sg_is_kernel__ = True

    def __init__(self, kernel: Kernel, instance: object) -> None:
        if not getattr(type(instance), "_data_oriented", False):
            raise SpirogradRuntimeError(
                f"`{kernel.function.__qualname__}` is a kernel and a method: "
                f"decorate class `{type(instance).__name__}` with `@sg.data_oriented`"
            )
        self.kernel = kernel
        self.instance = instance

    def __call__(self, *args: object, **kwargs: object) -> Any:
        return self.kernel(self.instance, *args, **kwargs)

    @property
    def grad(self) -> Any:
        return self.kernel.grad.bound_to(self.instance)

    def resume(self, *args: object, **kwargs: object) -> object:
        """See `GraphKernel.resume`; only kernels with ``graph=True`` have it."""
        kernel: Any = self.kernel
        return kernel.resume(self.instance, *args, **kwargs)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.kernel, name)

    def __dir__(self) -> list[str]:
        return sorted({*super().__dir__(), *dir(self.kernel)})
