"""Python's random numbers and clocks in kernels: calls of them run once, while compiling, and kernels would take the result as a constant.

`check_callee` refuses such a function by what it is, so the name under which a kernel has it does not matter. A Python function that runs
while compiling may call one as well: `watching` sees calls of built-in functions as they are made, the state of global generators, and
after each Python function what the names in its code stood for, since Python does not report calls of functions compiled by Cython.
"""

from __future__ import annotations

import dis
import functools
import inspect
import sys
import types
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext

from spirograd.base.errors import SpirogradSyntaxError
from spirograd.base.loc import Loc
from spirograd.lang.frontend.tracer import Tracer

_ON_PURPOSE = "`sg.static(...)` around the call makes its result a constant on purpose"
_RANDOM_HINT = f"`sg.random()` and `sg.randn()` draw a number for each iteration; {_ON_PURPOSE}"
_CLOCK_HINT = f"pass the time as an argument of the kernel, or read `sg.clock_counter()`; {_ON_PURPOSE}"
_CLOCKS = {
    "time", "time_ns", "perf_counter", "perf_counter_ns", "monotonic", "monotonic_ns", "process_time", "process_time_ns", "thread_time",
    "thread_time_ns", "clock_gettime", "clock_gettime_ns", "gmtime", "localtime", "ctime", "asctime", "strftime", "sleep",
}  # fmt: skip
_SYSTEM = {"urandom": _RANDOM_HINT, "getrandom": _RANDOM_HINT, "times": _CLOCK_HINT}
_IDENTIFIERS = {"uuid1", "uuid4", "uuid6", "uuid7", "uuid8", "getnode"}
_DATES = {"now", "utcnow", "today"}
_OF_TENSORS = {
    "rand", "randn", "randint", "randperm", "rand_like", "randn_like", "randint_like", "normal", "bernoulli", "multinomial", "poisson",
    "binomial", "dropout", "alpha_dropout", "feature_dropout", "native_dropout", "rrelu", "seed", "uniform_", "normal_", "bernoulli_",
    "exponential_", "geometric_", "log_normal_", "cauchy_", "random_", "rrelu_", "dropout_",
}  # fmt: skip
# Modules of the standard library whose functions give random numbers or times to their callers; others, such as `logging`, keep them.
_GIVING = frozenset(("random", "secrets", "uuid", "datetime", "_pydatetime", "statistics", "__main__"))
_FOREIGN = frozenset(("numpy", "scipy", "torch", "jax", "cupy", "spirograd"))

Finding = tuple[str, str]  # the name of a function, and the hint of the message


def _finding(function: object) -> Finding | None:
    """Return what ``function`` is, if its results differ from call to call."""
    if isinstance(function, functools.partial):
        return _finding(function.func)
    if not callable(function):
        return None
    owner, name = getattr(function, "__self__", None), str(getattr(function, "__name__", ""))
    if owner is not None and not isinstance(owner, (type, types.ModuleType)):
        return _of_object(owner, name)
    if isinstance(owner, type) and any(c.__module__ in ("datetime", "_pydatetime") for c in owner.__mro__):
        return (f"{owner.__name__}.{name}", _CLOCK_HINT) if name in _DATES else None
    return _of_module(str(getattr(getattr(function, "__objclass__", function), "__module__", "")), name)


def _of_module(module: str, name: str) -> Finding | None:
    """Return what a function or a class of ``module`` is."""
    package = module.partition(".")[0]
    if module == "time" and name in _CLOCKS:
        return f"time.{name}", _CLOCK_HINT
    if module in ("posix", "nt", "os") and name in _SYSTEM:
        return f"os.{name}", _SYSTEM[name]
    if module in ("random", "secrets") or (module == "uuid" and name in _IDENTIFIERS):
        return f"{module}.{name}", _RANDOM_HINT
    if module.startswith(("numpy.random", "cupy.random")):
        return f"{package}.random.{name}", _RANDOM_HINT
    return (f"torch.{name}", _RANDOM_HINT) if package == "torch" and name in _OF_TENSORS else None


def _of_object(owner: object, name: str) -> Finding | None:
    """Return what the method ``name`` of ``owner`` is."""
    if is_generator(owner):
        shared = [module for module in ("random", "numpy.random") if _is_method_of(owner, module, name)]
        cls = type(owner)
        return f"{shared[0]}.{name}" if shared else f"{name}` of `{cls.__module__.partition('._')[0]}.{cls.__name__}", _RANDOM_HINT
    return _of_module(type(owner).__module__, name) if type(owner).__module__.partition(".")[0] == "torch" else None


def _is_method_of(owner: object, module: str, name: str) -> bool:
    return getattr(getattr(sys.modules.get(module), name, None), "__self__", None) is owner


def is_generator(value: object) -> bool:
    """Return whether ``value`` is a generator of random numbers, of Python or of NumPy."""
    return any(c.__module__ == "random" or c.__module__.startswith(("numpy.random", "cupy.random")) for c in type(value).__mro__)


def check_callee(callee: object, loc: Loc | None) -> None:
    """Raise SpirogradSyntaxError if ``callee`` gives random numbers or times."""
    finding = _finding(callee)
    if finding is not None:
        raise _refusal(finding, loc)


def _refusal(finding: Finding, loc: Loc | None, caller: str = "") -> SpirogradSyntaxError:
    name, hint = finding
    what = f"`{caller}`, which runs while compiling, uses `{name}`: that" if caller else f"`{name}`"
    return SpirogradSyntaxError(f"{what} would run once, while compiling, and all iterations and launches would get one value", loc, hint)


def watched(t: Tracer, callee: object, arguments: Sequence[object] = ()) -> AbstractContextManager[None]:
    """Return a context in which ``callee`` runs while compiling: see `watching`. Nothing is watched within `static`."""
    if t.in_static or not _may_run_python(callee, arguments):
        return nullcontext()
    return watching(t.b.loc, getattr(callee, "__name__", type(callee).__name__))


def _may_run_python(callee: object, arguments: Sequence[object]) -> bool:
    """Return whether a call may run functions written in Python."""
    built_in = isinstance(callee, types.BuiltinFunctionType) or type(callee).__module__ == "numpy"
    if isinstance(callee, type):
        built_in = not any(isinstance(getattr(callee, name, None), types.FunctionType) for name in ("__init__", "__new__", "__post_init__"))
    return not built_in or any(callable(a) or isinstance(a, Iterator) for a in arguments)


@contextmanager
def watching(loc: Loc | None, name: str) -> Iterator[None]:
    """Raise SpirogradSyntaxError at the end if what ran meanwhile has called a function that gives random numbers or times. ``name``: of
    what the kernel calls."""
    findings: list[Finding] = []
    outer, states = sys.getprofile(), _states()
    sys.setprofile(functools.partial(_look, findings, outer if callable(outer) else None))
    try:
        yield
    finally:
        enable: Callable[[], None] | None = None if callable(outer) else getattr(outer, "enable", None)
        sys.setprofile(outer if enable is None else None)
        if enable is not None:  # a profiler written in C, which `setprofile` does not take
            enable()
    findings += [(module, _RANDOM_HINT) for module, state in _states().items() if states.get(module, state) != state]
    if findings:
        raise _refusal(findings[0], loc, name)


def _states() -> dict[str, bytes]:
    """Return the states of the global generators of NumPy and torch, if these are loaded."""
    out: dict[str, bytes] = {}
    numpy_random, torch = sys.modules.get("numpy.random"), sys.modules.get("torch")
    if numpy_random is not None:
        state = numpy_random.get_state(legacy=False)
        out["numpy.random"] = repr((state["gauss"], state["state"]["pos"])).encode() + state["state"]["key"].tobytes()
    if torch is not None:
        out["torch"] = torch.get_rng_state().numpy().tobytes()
    return out


def _look(findings: list[Finding], outer: Callable[..., object] | None, frame: types.FrameType, event: str, arg: object) -> None:
    """Look, as the profile function, at a call of a built-in function, and at the frame of a Python function that returns."""
    if outer is not None:
        outer(frame, event, arg)
    if findings or event not in ("c_call", "return"):
        return
    package = str(frame.f_globals.get("__name__", "")).partition(".")[0]
    if package in sys.stdlib_module_names and package not in _GIVING:
        return
    if event == "c_call":
        one = _finding(arg) if package != "spirograd" else None
    else:
        one = None if package in _FOREIGN or package in sys.stdlib_module_names - {"__main__"} else _named_in(frame)
    if one is not None:
        findings.append(one)


# --- what the names in a frame stand for -------------------------------------------------------------------------------------

_NOTHING = object()


def _named_in(frame: types.FrameType) -> Finding | None:
    """Return the first function that the code of ``frame`` names and that gives random numbers."""
    scopes = frame.f_locals, frame.f_globals
    for first, *attributes in _dotted_names(frame.f_code):
        held = next((scope[first] for scope in scopes if first in scope), _NOTHING)
        for name in attributes:
            if held is not _NOTHING and is_generator(held):
                return _of_object(held, name)
            try:
                held = inspect.getattr_static(held, name)
            except AttributeError:
                held = _NOTHING
        compiled = not isinstance(held, (types.FunctionType, types.BuiltinFunctionType))  # calls of the others are seen
        finding = _finding(held) if compiled and held is not _NOTHING else None
        if finding is not None:
            return finding
    return None


@functools.lru_cache(maxsize=256)
def _dotted_names(code: types.CodeType) -> tuple[tuple[str, ...], ...]:
    """Return the dotted names in ``code``, such as ``np.random.rand``."""
    out: list[tuple[str, ...]] = []
    now: tuple[str, ...] = ()
    for instruction in dis.get_instructions(code):
        name = str(instruction.argval)
        if instruction.opname in ("LOAD_ATTR", "LOAD_METHOD") and now:
            now = (*now, name)
            continue
        if now:
            out.append(now)
        loads = instruction.opname.startswith(("LOAD_GLOBAL", "LOAD_NAME", "LOAD_FAST", "LOAD_DEREF"))
        now = (name,) if loads and isinstance(instruction.argval, str) else ()
    return tuple(dict.fromkeys(out))
