"""Calls of a kernel that compiled code launches, without Python.

At first, Python launches a kernel. After a few launches, it records how it launches: the objects or types that the arguments must have, and
the destination of their values (`Specialization.record`). From then on calls like the last one bypass Python. Calls that differ in any
respect go through Python as before.
"""

from __future__ import annotations

import sys
import weakref
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from spirograd.base import validity
from spirograd.base.arguments import Arguments, PreparedLaunch, PreparesLaunches
from spirograd.base.launch_cursor import StepKind
from spirograd.base.records import dataclass

if TYPE_CHECKING:
    from spirograd.base.protocols import Scalar
    from spirograd.lang.session_protocol import Session

# The number of launches by Python before one is recorded; it doubles each time, up to the second number.
_PATIENCE, _MOST_PATIENCE = 8, 4096
# The latest records of a kernel, which may be called with several objects in turn.
_RECORDS = 8


# (arguments of the call, recorder of them)
Steps = Callable[[Sequence[object], validity.StepRecorder], None]


@dataclass(slots=True, eq=False)
class _Record:
    """A recorded call. ``prepared``: see `runtime.native.launch_preparation.Prepared`. ``watched``: weak references to objects that it does
    not keep alive."""

    prepared: PreparedLaunch
    watched: list[weakref.ref[object]]


class NativeCalls:
    """The calls of one kernel in one session.

    ``launch``: takes the arguments of a call, as a tuple, and returns the result if it has launched the kernel, else NotImplemented; it is
    None if no call is prepared. ``device``: the device of the session if compiled code can launch on it. ``most``: the most kinds of calls
    that are prepared at a time. ``step``: for launches of an open tape, see `validity.Record`.
    """

    __slots__ = ("__weakref__", "_missed", "_most", "_of_tapes", "_patience", "_records", "_step", "device", "launch")

    def __init__(self, session: Session | None, most: int = _RECORDS, step: StepKind | None = None) -> None:
        self.launch: Callable[[tuple[object, ...]], object] | None = None
        self.device = None if session is None else session.native
        self._most = most
        self._records: list[_Record] = []
        self._of_tapes: list[_Record] = []
        self._step = step
        self._missed = 0
        self._patience = _PATIENCE

    def is_due(self) -> bool:
        """Return whether the launch that Python has just done is to be recorded, where there is a `device`."""
        self._missed += 1
        return self._missed >= self._patience

    def prepare(
        self,
        plan: PreparesLaunches,
        arguments: Arguments,
        args: Sequence[object],
        steps: Steps,
        result: Callable[[tuple[Scalar, ...]], object] | None = None,
    ) -> None:
        """Record the launch of ``plan`` with ``args``, which were packed as these ``arguments``.

        ``steps``: records the packing, see `Specialization.record`. ``result``: makes the result from the values that the kernel returns.
        """
        assert self.device is not None
        self._missed = 0
        self._patience = min(2 * self._patience, _MOST_PATIENCE)
        watched: list[object] = []
        number = validity.number()

        def record(into: validity.StepRecorder) -> None:
            steps(args, into)
            watched.extend(into.mortal)

        try:
            prepared = plan.prepared(self.device, arguments, validity.Record(number, len(args), record, result, self._step))
        except (validity.NotPrepared, AttributeError):  # An object of the launch may be gone.
            return
        others = [r for r in self._records if r.prepared.number == number and r.prepared.about != prepared.about]
        self._use([self._watched(prepared, watched), *others[: self._most - 1]], self._of_tapes)

    def share(self, calls: NativeCalls) -> None:
        """Launch by the records of ``calls``, too, which are those of a tape that follows a sequence."""
        number = validity.number()
        found = [(record.prepared, [reference() for reference in record.watched]) for record in calls._records]
        shared = [self._watched(prepared, watched) for prepared, watched in found if all(value is not None for value in watched)]
        others = [r for r in self._of_tapes if r.prepared.number == number]
        self._use(self._records, [*shared, *others[: _RECORDS - len(shared)]])

    def _watched(self, prepared: PreparedLaunch, watched: Sequence[object]) -> _Record:
        forget = _forgetter(weakref.ref(self), prepared)
        return _Record(prepared, [weakref.ref(value, forget) for value in watched])

    @property
    def prepared(self) -> PreparedLaunch | None:
        """The calls that were prepared last, None if there are none."""
        return self._records[0].prepared if self._records else None

    def forget(self, prepared: object = None) -> None:
        """Drop a record, or all of them."""
        records, of_tapes = ([] if prepared is None else _without(prepared, listed) for listed in (self._records, self._of_tapes))
        self._use(records, of_tapes)

    def _use(self, records: list[_Record], of_tapes: list[_Record]) -> None:
        """Launch by these records.

        It takes no lock, because finalizers call this. Several threads may: each function keeps alive the objects that its records watch,
        so that they are replaced when one of these is collected; objects collected meanwhile are checked afterwards.
        """
        self._records, self._of_tapes = records, of_tapes
        watched = [record.watched for record in (*records, *of_tapes)]
        device = self.device
        prepared = [record.prepared for record in (*records, *of_tapes)]
        self.launch = device.native_code().function(prepared, watched) if prepared and device is not None else None
        if any(reference() is None for references in watched for reference in references):
            self._use(_alive(records), _alive(of_tapes))


def _without(prepared: object, records: list[_Record]) -> list[_Record]:
    return [record for record in records if record.prepared is not prepared]


def _alive(records: list[_Record]) -> list[_Record]:
    return [record for record in records if all(reference() is not None for reference in record.watched)]


def _forgetter(calls: weakref.ref[NativeCalls], prepared: object) -> Callable[[object], None]:
    def forget(_: object) -> None:
        owner = calls()
        if owner is not None and not sys.is_finalizing():  # At the end of the process nothing can be imported, and nothing is launched.
            owner.forget(prepared)

    return forget
