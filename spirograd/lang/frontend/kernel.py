"""`@kernel`: tracing, specialisation and launching."""

from __future__ import annotations

import ast
import functools
import inspect
import logging
import sys
import threading
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any
from weakref import WeakValueDictionary

from spirograd.base import knobs
from spirograd.base.dtypes import DType, u32
from spirograd.base.errors import SpirogradCompilationError, SpirogradRuntimeError, SpirogradRuntimeTypeError, SpirogradSyntaxError, render
from spirograd.base.near_names import NearNames
from spirograd.base.python_limits import deep_recursion
from spirograd.base.wording import did_you_mean
from spirograd.ir import nodes
from spirograd.ir import ops as ir
from spirograd.ir.builder import Builder
from spirograd.lang import context, leaves, ops, scalar
from spirograd.lang.context import LanguageOptions, Trace
from spirograd.lang.data.field import StructField
from spirograd.lang.data.ndarray import Ndarray
from spirograd.lang.data.scalar_field import Field
from spirograd.lang.data.tree import trees_of
from spirograd.lang.frontend import source
from spirograd.lang.frontend.calls import Foreseen, NeedsRandom, Unforeseen
from spirograd.lang.frontend.function import bound_arguments, plain_function, remember_outer_names, resolved_signature
from spirograd.lang.frontend.guards import Path, fingerprint, guards, is_dead, is_guardable, named_by
from spirograd.lang.frontend.memory import ArrayProxy, array_decl
from spirograd.lang.frontend.names import RESULT, RNG
from spirograd.lang.frontend.signature import (
    AggregateParameter,
    Declarations,
    Packer,
    Parameter,
    ScalarParameter,
    TemplateParameter,
    array_signature,
    make_parameter,
)
from spirograd.lang.frontend.stages import Staged
from spirograd.lang.frontend.state import Frame
from spirograd.lang.frontend.state import leaves as scalars_of
from spirograd.lang.frontend.statements import Tracer
from spirograd.lang.frontend.texts import text_of
from spirograd.lang.leaves import AggregateType
from spirograd.lang.scalar import Value

logger = logging.getLogger("spirograd")


class KernelTracer(Tracer):
    """A tracer that also collects what the kernel takes from outside: arguments, captured arrays, attributes it depends on."""

    def __init__(self, trace: Trace) -> None:
        super().__init__(trace)
        self.declarations = Declarations()
        self.captures: list[tuple[Any, Path | None]] = []
        self.guards: dict[Path, Any] = {}
        self._proxies: dict[Any, ArrayProxy] = {}
        self._paths: dict[int, Path] = {}

    def reachable(self, path: Path, obj: Any) -> None:
        """Attributes of ``obj``, which a launch reaches by ``path``, may change between launches: they are watched."""
        if obj is not None:
            self._paths[id(obj)] = path

    def captured(self, obj: Any, owner: tuple[Any, str] | None) -> Any:
        is_local = owner is not None and owner[0] is None and owner[1] in self.frame.vars
        if isinstance(obj, Field) and owner is not None and not is_local:  # an argument stands for other fields in other calls
            obj.suggest_name(owner[1])
        path = None
        if owner is not None and not isinstance(owner[0], (Field, type)):
            base = self._paths.get(id(owner[0]))
            path = None if base is None else base.then(owner[1])
        if isinstance(obj, Ndarray):
            found = path or id(obj)
            if found not in self._proxies:
                name = owner[1] if owner else f"array{len(self.captures)}"
                self._proxies[found] = self.declarations.array(array_decl(name, obj))
                self.captures.append((obj, path))
            return self._proxies[found]
        if path is not None and owner is not None and is_guardable(owner[0], owner[1], obj):
            self.guards[path] = obj
            self._paths.setdefault(id(obj), path)
        return obj


class Specialization:
    """A kernel traced for one signature, and compiled when it is first launched (`prepare` gives its launch plan): of one whose derivative
    alone is wanted, that is never. ``key``: what its kernel knows it by. ``guards``: attributes of template arguments that were constants
    of the compilation.

    Fields that the key or a guard names are not kept alive: without them nothing can launch it. Those that the kernel itself names are.
    """

    def __init__(
        self, kernel: nodes.Kernel, tracer: KernelTracer, prepare: Callable[[nodes.Kernel], Any], returns: Any, key: Any = ()
    ) -> None:
        self.kernel = kernel
        self._prepare = prepare
        self.returns = returns
        self.fields = WeakValueDictionary(tracer.fields)
        named = named_by((key, *map(fingerprint, tracer.guards.values())))
        mortal = {id(field) for obj in named for field in _with_members(obj)}
        self._kept = [field for field in tracer.fields.values() if id(field) not in mortal]
        self.footprint: Any = None  # what a tape knows of it
        self.trees = trees_of(self.fields.values(), self)
        self.forget: Callable[[], None] = lambda: None  # has its kernel forget it
        self.derivatives: dict[str, Any] = {}  # by mode: see `gradients.specialized`
        self.captures: list[tuple[Any, Any]] = [(array, None) if path is None else (None, path.getter()) for array, path in tracer.captures]
        self.guards = guards(tracer.guards)
        self.signatures = [(path.getter(), array_signature(array)) for array, path in tracer.captures if path is not None]
        self.constant = not self.guards and not self.signatures

    @functools.cached_property
    def plan(self) -> Any:
        with _frames_hidden():
            return self._prepare(self.kernel)

    @functools.cached_property
    def reports(self) -> bool:
        """Whether launches may print or fail."""
        return bool(self.plan.compiled.prints or self.plan.compiled.faults)

    @functools.cached_property
    def writes(self) -> set[int]:
        """The numbers of the array arguments that are written."""
        return {index for kind, index in self.plan.compiled.effects.writes if kind == "array"}

    def release(self) -> None:
        """One of its field trees was destroyed or collected: give back what was compiled. Nothing can launch it any more, but a tape that
        recorded it, which then finds that the memory is gone. Takes no lock: the collector may call this at any time, in any thread."""
        self.forget()
        self.__dict__.pop("plan", None)
        for derivative in list(self.derivatives.values()):
            derivative.release()

    @property
    def last_number(self) -> int | None:
        """That of the last launch, if there was one; see `LaunchPlan`."""
        number: int | None = self.plan.last_number if "plan" in self.__dict__ else None
        return number

    def holds(self, args: Sequence[Any]) -> bool:
        """Whether what was constant when this was compiled still is what it was."""
        try:
            for argument, look, checks in self.guards:
                for is_same, now in zip(checks, look(args[argument])):
                    if not is_same(now):
                        return False
            for get, signature in self.signatures:
                array = get(args)
                if not isinstance(array, Ndarray) or array_signature(array) != signature:
                    return False
        except AttributeError:
            return False
        return True

    def result(self, values: tuple[Any, ...] | None) -> Any:
        if self.returns is None or values is None:
            return None
        return leaves.build(self.returns, list(values))


class Kernel(Staged, NearNames):
    """A function that runs on the device, made by `kernel`. Calling it launches it.

    It is compiled at the first call with each signature: types of arguments, values of template arguments. Methods `ir`, `spirv`,
    `spirv_asm`, `llvm` and `asm` show the stages of what was compiled last. ``grad``: the kernel's gradient, a `Gradient`.

    A call raises SpirogradCompilationError if the kernel cannot be compiled, SpirogradRuntimeTypeError for arguments that do not fit the
    annotations, and on synchronous devices SpirogradAssertionError if a check fails.
    """

    __sg_is_kernel__ = True

    def __init__(self, function: Callable[..., Any]) -> None:
        functools.update_wrapper(self, function)
        self.function = function
        self._text = text_of(function)
        self._lock = threading.RLock()
        self._session: Any = None
        self._specializations: dict[Any, list[Specialization]] = {}
        self._parameters: list[Parameter] = []
        self._keys: list[tuple[int, Callable[[Any], Any]]] = []
        self._signature: inspect.Signature | None = None
        self._last: Specialization | None = None
        self.grad = context.gradient_of(self)

    def __get__(self, instance: Any, owner: Any = None) -> Any:
        return self if instance is None else BoundKernel(self, instance)

    def __repr__(self) -> str:
        return f"<kernel {self.function.__qualname__}>"

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self._launch(*self.specialized(args, kwargs))

    def specialized(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, Specialization, tuple[Any, ...]]:
        """The session, what is compiled for these arguments (now, if need be), and the arguments as the signature orders them."""
        session = context.session()
        if context.current_trace() is not None:
            raise SpirogradSyntaxError("a kernel cannot be called from a kernel", None, "make it a function with `@sg.func`")
        if session is not self._session:
            self._start(session)
        if kwargs or len(args) != len(self._parameters):
            args = self._bind(args, kwargs)
        key = tuple([key_of(args[k]) for k, key_of in self._keys])
        for specialization in self._specializations.get(key, ()):
            if specialization.constant or specialization.holds(args):
                return session, specialization, args
        return session, self._specialize(session, key, args), args

    # --- calling ---------------------------------------------------------------------------------------------------------

    def _start(self, session: Any) -> None:
        """Forget what was compiled for an earlier session, and resolve the signature."""
        with self._lock, _frames_hidden():
            signature = resolved_signature(self.function)
            options: LanguageOptions = session.language
            self._parameters = [self._parameter(p, k, options) for k, p in enumerate(signature.parameters.values())]
            self._keys = [(k, p.key) for k, p in enumerate(self._parameters) if p.keyed]
            self._signature = signature
            self._specializations = {}
            self._last = None
            self._session = session

    def _parameter(self, p: inspect.Parameter, position: int, options: LanguageOptions) -> Parameter:
        if p.kind in (p.VAR_POSITIONAL, p.VAR_KEYWORD):
            raise SpirogradSyntaxError(f"kernel `{self.function.__name__}`: `*{p.name}` is not supported in the signature of a kernel")
        if position == 0 and p.name == "self" and p.annotation is p.empty:
            return TemplateParameter("self", self.function.__name__)
        try:
            return make_parameter(p.name, p.annotation, options, self.function.__name__)
        except SpirogradCompilationError as error:
            where = source.of(self.function, self._text, "kernel")
            arguments = where.tree.args
            node = next((a for a in (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs) if a.arg == p.name), where.tree)
            raise type(error)(error.message, error.loc or where.loc(node, None), error.hint) from None

    def _bind(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, ...]:
        assert self._signature is not None
        try:
            bound = bound_arguments(self._signature, args, kwargs)
        except TypeError as error:
            raise SpirogradRuntimeTypeError(f"kernel `{self.function.__name__}`: {error}") from None
        bound.apply_defaults()
        return tuple(bound.arguments.values())

    def copied(self) -> list[str]:
        """The parameters whose values are copied into a launch. Known once the kernel was specialized."""
        return [p.name for p in self._parameters if isinstance(p, (ScalarParameter, AggregateParameter))]

    def pack(self, session: Any, specialization: Specialization, args: Sequence[Any], gradients: bool = False) -> Packer:
        """The flat arguments of a launch. ``gradients``: of a derivative, which works on the gradients of torch tensors."""
        packer = Packer(session, gradients)
        for parameter, value in zip(self._parameters, args):
            parameter.pack(value, packer)
        for array, get in specialization.captures:
            packer.put_array(array if get is None else get(args))
        return packer

    def _launch(self, session: Any, specialization: Specialization, args: Sequence[Any]) -> Any:
        packer = self.pack(session, specialization, args)
        recorder = context.recorder()
        if recorder is None:
            values = specialization.plan.launch(packer.scalars, packer.arrays, specialization.trees)
        else:
            values = recorder.launch(self, specialization, packer, args)
        if packer.transfers is not None:
            packer.transfers.finish(specialization.writes)
        if specialization.reports:
            session.launched()
        return specialization.result(values)

    # --- compiling -------------------------------------------------------------------------------------------------------

    def _specialize(self, session: Any, key: Any, args: Sequence[Any]) -> Specialization:
        with self._lock, _frames_hidden():
            for specialization in self._specializations.get(key, ()):
                if specialization.holds(args):
                    return specialization
            for dead in [key for key in list(self._specializations) if is_dead(key)]:
                self._specializations.pop(dead, None)
            kernel, tracer, returns = self.trace(session, args)
            made = Specialization(kernel, tracer, session.prepare, returns, key)
            made.forget = _forgetter(weakref.ref(self), key, weakref.ref(made))
            self._specializations.setdefault(key, []).append(made)
            self._last = made
            return made

    def forget(self, key: Any, specialization: Specialization | None) -> None:
        """Keep ``specialization`` no longer for arguments with this key. Without the lock (see `Specialization.release`): at worst what
        another thread adds meanwhile is forgotten too, and compiled again."""
        found = self._specializations.get(key, [])
        if specialization in found:
            found.remove(specialization)
        if not found:
            self._specializations.pop(key, None)

    def trace(self, session: Any, args: Sequence[Any]) -> tuple[nodes.Kernel, KernelTracer, Any]:
        """The kernel as IR, what it takes from outside, and the type of its result."""
        where, uses_random, foreseen = source.of(self.function, self._text, "kernel"), False, Foreseen()
        while True:
            try:
                traced = self._trace(session, args, where, uses_random, foreseen)
            except NeedsRandom:
                uses_random = True
            except Unforeseen as found:
                foreseen.setdefault(found.call, []).extend(found.arguments)
            else:
                break
        for about, text in traced[1].trace.warnings.items():
            if about not in session.warned:
                session.warned.add(about)
                logger.warning(text)
        return traced

    def _trace(
        self, session: Any, args: Sequence[Any], where: source.Source, uses_random: bool, foreseen: Foreseen
    ) -> tuple[nodes.Kernel, KernelTracer, Any]:
        assert self._signature is not None
        trace = Trace(Builder(), session.language)
        before = context.set_trace(trace)
        try:
            tracer = KernelTracer(trace)
            tracer.foreseen = foreseen
            trace.b.loc = where.loc(where.tree, None)
            annotation = self._signature.return_annotation
            returns = None if annotation in (inspect.Signature.empty, None, type(None)) else _result_type(annotation)
            frame = Frame(where, where.names(), True, returns, constants=frozenset(p.name for p in self._parameters))
            tracer.frame = frame
            trace.b.begin()
            for number, (parameter, value) in enumerate(zip(self._parameters, args)):
                for names, obj in parameter.constants(value):
                    tracer.reachable(Path(number, names), obj)
                frame.vars[parameter.name] = parameter.declare(value, tracer.declarations)
            if uses_random:
                tracer.uses_random = True
                seed = Value(trace.b.emit(ir.seed, type=u32))
                tracer.random_key = (seed, scalar.constant(0, u32))
                frame.vars[RNG] = scalar.constant(0, u32)
            _refuse_assigned_arguments(where, self._parameters)
            with deep_recursion():
                tracer.function_body(where.tree.body)
            results = _store_result(tracer, frame, returns, where)
            body = trace.b.end()
        finally:
            context.set_trace(before)
        loc = where.loc(where.tree, None)
        arguments, functions = tuple(tracer.declarations.args), tuple(tracer.real_functions.functions)
        return nodes.Kernel(self.function.__name__, arguments, body, results, loc, functions), tracer, returns

    def step(self, on_op: Callable[[Any, Any], None], *args: Any, **kwargs: Any) -> Any:
        """Run on ``arch=sg.interpreter`` and call ``on_op(op, values)`` after each operation: ``op.code``, ``op.loc``, ``values[op]``.

        Raises SpirogradRuntimeError on other back ends.
        """
        session = context.session()
        if session.arch != "interpreter":
            raise SpirogradRuntimeError("only the interpreter can step through a kernel: `sg.init(arch=sg.interpreter)`")
        if session is not self._session:
            self._start(session)
        bound = self._bind(args, kwargs)
        with _frames_hidden():
            kernel, tracer, returns = self.trace(session, bound)
            made = Specialization(kernel, tracer, lambda kernel: session.prepare(kernel, on_op), returns)
        return self._launch(session, made, bound)

    # --- seeing ----------------------------------------------------------------------------------------------------------

    def _compiled_last(self) -> nodes.Kernel | None:
        return None if self._last is None else self._last.kernel

    def _label(self) -> str:
        return f"kernel `{self.function.__name__}`"


def _with_members(obj: Any) -> Iterator[Any]:
    """``obj``, and if it is a field of structs, the fields of its members."""
    yield obj
    for member in obj.members.values() if isinstance(obj, StructField) else ():
        yield from _with_members(member)


def _forgetter(kernel: weakref.ref[Kernel], key: Any, made: weakref.ref[Specialization]) -> Callable[[], None]:
    """A function that has a kernel forget a specialization; it keeps neither alive."""

    def forget() -> None:
        owner = kernel()
        if owner is not None:
            owner.forget(key, made())

    return forget


class BoundKernel:
    """A kernel that is a method, with its object."""

    __sg_is_kernel__ = True

    def __init__(self, kernel: Kernel, instance: Any) -> None:
        if not getattr(type(instance), "__sg_data_oriented__", False):
            raise SpirogradRuntimeError(
                f"`{kernel.function.__qualname__}` is a kernel and a method: "
                f"decorate class `{type(instance).__name__}` with `@sg.data_oriented`"
            )
        self.kernel = kernel
        self.instance = instance

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.kernel(self.instance, *args, **kwargs)

    @property
    def grad(self) -> Any:
        return self.kernel.grad.bound_to(self.instance)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.kernel, name)

    def __dir__(self) -> list[str]:
        return sorted({*super().__dir__(), *dir(self.kernel)})


def _result_type(annotation: Any) -> Any:
    if isinstance(annotation, AggregateType):
        return annotation
    if isinstance(annotation, (tuple, list)) or getattr(annotation, "__origin__", None) is tuple:
        hint = "return a vector, `-> sg.types.Vector[2, sg.f32]`, or a struct, `-> sg.types.struct(n=sg.i32, x=sg.f32)`, or store to fields"
        raise scalar.type_error("a kernel returns one value", hint)
    return ops.as_dtype(annotation)


def _store_result(tracer: KernelTracer, frame: Frame, returns: Any, where: source.Source) -> tuple[nodes.TempRef, ...]:
    """Store the value of the kernel where the launcher reads it."""
    if returns is None:
        return ()
    value = frame.vars.get(RESULT)
    if value is None:
        raise SpirogradSyntaxError(
            f"kernel `{where.name}` says that it returns a value, but does not on every path",
            where.loc(where.tree, None),
            "end it with `return`",
        )
    types: tuple[DType, ...] = leaves.leaf_dtypes(returns)
    refs = []
    for k, (leaf, t) in enumerate(zip(scalars_of(value), types)):
        ref = nodes.TempRef(f"result{k}", t)
        tracer.b.store(ref, scalar.cast(leaf, t).op)
        refs.append(ref)
    return tuple(refs)


def _refuse_assigned_arguments(where: source.Source, parameters: Sequence[Parameter]) -> None:
    """Arguments of kernels are constants of the launch."""
    names = {p.name for p in parameters}
    for node in ast.walk(where.tree) if names else ():
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store) and node.id in names:
            raise SpirogradSyntaxError(
                f"argument `{node.id}` of a kernel cannot be assigned to", where.loc(node, None), f"copy it first: `{node.id}_ = {node.id}`"
            )


class _frames_hidden:
    """Errors of compilation end at the user's call: the compiler's own frames are dropped, unless a knob asks for them."""

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: Any, error: BaseException | None, traceback: Any) -> None:
        if isinstance(error, SpirogradCompilationError) and not knobs.flag("SG_TRACEBACK"):
            raise error.with_traceback(None) from error.__cause__


# What the family's decorators take.
_KERNEL_OPTIONS = ("checkpoints", "fastcache", "graph", "pure")
_CLASS_OPTIONS = ("stable_members", "template_primitives")


def check_options(what: str, given: Iterable[str], known: Sequence[str]) -> None:
    """Raise SpirogradRuntimeTypeError for the first option of ``what`` that is not among those ``known``."""
    for name in given:
        if name not in known:
            hint = did_you_mean(name, known) or f"it takes {', '.join(f'`{option}`' for option in known)}"
            raise SpirogradRuntimeTypeError(render(f"`{what}` has no option `{name}`", None, hint))


def kernel(function: Callable[..., Any] | None = None, **options: Any) -> Any:
    """Decorator: make a `Kernel` of a function. Options of the Taichi family (``fastcache``, ``graph`` ...) are accepted, without effect.

    Raises SpirogradRuntimeTypeError for other options.
    """
    check_options("kernel", options, _KERNEL_OPTIONS)
    frame = sys._getframe(1)
    if function is None:

        def decorate(f: Callable[..., Any]) -> Kernel:
            remember_outer_names(plain_function(f, "kernel"), frame)
            return Kernel(f)

        return decorate
    remember_outer_names(plain_function(function, "kernel"), frame)
    return Kernel(function)


def data_oriented(cls: Any = None, **options: Any) -> Any:
    """Decorator of a class whose methods are kernels and functions. Options of the Taichi family are accepted, without effect.

    Raises SpirogradRuntimeTypeError for other options.
    """
    check_options("data_oriented", options, _CLASS_OPTIONS)
    if cls is None:
        return lambda c: data_oriented(c, **options)
    cls.__sg_data_oriented__ = True
    return cls
