"""The choice between implementations of one function by their run times."""

from __future__ import annotations

import inspect
import time
from collections.abc import Callable, Hashable
from dataclasses import field
from typing import Any, TypeVar, overload

from spirograd.base.errors import SpirogradRuntimeError
from spirograd.base.records import dataclass
from spirograd.lang import context

F = TypeVar("F", bound=Callable[..., object])
_REPEAT = 300  # Calls after which implementations are timed again, by default.


@dataclass(slots=True)
class Implementation:
    """A registered function. ``is_compatible``: whether it can run on some arguments; None if it always can."""

    function: Callable[..., object]
    is_compatible: Callable[..., bool] | None

    def fits(self, args: tuple[object, ...], kwargs: dict[str, object]) -> bool:
        return self.is_compatible is None or bool(self.is_compatible(*args, **kwargs))


@dataclass(slots=True)
class Trial:
    """The measurements of the implementations for one geometry. ``calls``: of each in this round; ``seconds``: the times that count."""

    calls: dict[int, int] = field(default_factory=dict)
    seconds: dict[int, float] = field(default_factory=dict)
    fastest: int | None = None
    calls_since: int = 0
    decided_at: float = 0.0
    rounds: int = 0


@dataclass(frozen=True, slots=True)
class Options:
    """The options of `perf_dispatch`. Numbers of calls and seconds after which the choice is made again are 0 for never."""

    get_geometry_hash: Callable[..., Hashable]
    first_warmup: int
    warmup: int
    active: int
    repeat_after_count: int
    repeat_after_seconds: float


class PerformanceDispatcher:
    """A function with several implementations; see `perf_dispatch`."""

    def __init__(self, function: Callable[..., object], options: Options) -> None:
        self.__name__ = function.__name__
        self.__doc__ = function.__doc__
        self.__signature__ = inspect.signature(function)
        self.options = options
        self._implementations: list[Implementation] = []
        self._trials: dict[Hashable, Trial] = {}

    @overload
    def register(self, implementation: F, *, is_compatible: Callable[..., bool] | None = None) -> F: ...

    @overload
    def register(self, implementation: None = None, *, is_compatible: Callable[..., bool] | None = None) -> Callable[[F], F]: ...

    def register(self, implementation: F | None = None, *, is_compatible: Callable[..., bool] | None = None) -> F | Callable[[F], F]:
        """Add an implementation, as a decorator. ``is_compatible``: called with the arguments of a call, returns whether this one can
        run."""

        def add(function: F) -> F:
            self._implementations.append(Implementation(function, is_compatible))
            return function

        return add if implementation is None else add(implementation)

    def __call__(self, *args: object, **kwargs: object) -> Any:
        """Run one of the implementations that can run on these arguments. Raises SpirogradRuntimeError if there is none."""
        fitting = [k for k, one in enumerate(self._implementations) if one.fits(args, kwargs)]
        if not fitting:
            what = "no implementation that can run on these arguments" if self._implementations else "no implementation"
            raise SpirogradRuntimeError(f"`{self.__name__}` has {what}: add one with `@{self.__name__}.register`")
        if len(fitting) == 1:
            return self._implementations[fitting[0]].function(*args, **kwargs)
        trial = self._trials.setdefault(self.options.get_geometry_hash(*args, **kwargs), Trial())
        if trial.fastest in fitting and not self._must_repeat(trial):
            trial.calls_since += 1
            return self._implementations[trial.fastest].function(*args, **kwargs)
        return self._try_next(trial, fitting, args, kwargs)

    def _must_repeat(self, trial: Trial) -> bool:
        """Return whether the implementations are to be timed again; if so, begin a new round."""
        late = self.options.repeat_after_seconds > 0 and time.monotonic() - trial.decided_at >= self.options.repeat_after_seconds
        if not late and not 0 < self.options.repeat_after_count <= trial.calls_since:
            return False
        trial.calls.clear()
        trial.seconds.clear()
        trial.fastest = None
        return True

    def _try_next(self, trial: Trial, fitting: list[int], args: tuple[object, ...], kwargs: dict[str, object]) -> object:
        """Run the implementation that ran least often in this round, and time it once it is warm."""
        warmup = self.options.first_warmup if trial.rounds == 0 else self.options.warmup
        chosen = min(fitting, key=lambda k: trial.calls.get(k, 0))
        context.session().sync()
        begin = time.perf_counter()
        result = self._implementations[chosen].function(*args, **kwargs)
        context.session().sync()
        if trial.calls.get(chosen, 0) >= warmup:
            trial.seconds[chosen] = trial.seconds.get(chosen, 0.0) + time.perf_counter() - begin
        trial.calls[chosen] = trial.calls.get(chosen, 0) + 1
        if all(trial.calls.get(k, 0) >= warmup + self.options.active for k in fitting):
            trial.fastest = min(fitting, key=lambda k: trial.seconds[k])
            trial.rounds += 1
            trial.calls_since, trial.decided_at = 0, time.monotonic()
        return result


def perf_dispatch(
    *,
    get_geometry_hash: Callable[..., Hashable],
    first_warmup: int = 1,
    warmup: int = 0,
    active: int = 1,
    repeat_after_count: int | None = None,
    repeat_after_seconds: float | None = None,
) -> Callable[[Callable[..., object]], PerformanceDispatcher]:
    """Decorate a function, whose body never runs, to have several implementations, of which calls find the fastest.

    Implementations are kernels or Python functions that launch them, added with ``@name.register`` or
    ``@name.register(is_compatible=...)``; all must have the same effects. The first calls run them in turn: each ``first_warmup`` times,
    and ``active`` times that are timed. Then the fastest runs. ``get_geometry_hash``: called with the arguments, gives a key for those on
    which the same one is fastest. After ``repeat_after_count`` further calls or ``repeat_after_seconds`` they are timed again, after
    ``warmup`` runs each; 0 means never, None for both means after 300 calls. Timing waits for the device.

    A call for which no implementation is compatible raises SpirogradRuntimeError.
    """
    if active < 1 or first_warmup < 0 or warmup < 0:
        raise SpirogradRuntimeError(f"`active` is at least 1 and warm-ups at least 0, not {active}, {first_warmup} and {warmup}")
    both = repeat_after_count is None and repeat_after_seconds is None
    repeat = _REPEAT if both else repeat_after_count or 0
    options = Options(get_geometry_hash, first_warmup, warmup, active, repeat, repeat_after_seconds or 0)
    return lambda function: PerformanceDispatcher(function, options)
