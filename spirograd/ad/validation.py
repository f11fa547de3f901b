"""`Tape(validation=True)`: launches are tried before they run, by kernels that fail where they break the rule of global data access."""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from spirograd.ad import external_arrays
from spirograd.ad.entries import Launch, footprint_of
from spirograd.ad.memory_keys import Key, MemoryRef
from spirograd.ad.versions import Saved, Stored
from spirograd.base.dtypes import i32
from spirograd.base.protocols import Place
from spirograd.derivatives.specialized import SpecializedDerivative
from spirograd.ir.nodes import ArrayRef
from spirograd.lang import context
from spirograd.lang.frontend.steps import Packer

logger = logging.getLogger("spirograd")


class AccessRule:
    """The marks of one tape, by memory."""

    def __init__(self) -> None:
        self._marks: dict[Key, tuple[Place, Launch]] = {}

    def check(self, gradient: SpecializedDerivative, launch: Launch, packer: Packer) -> None:
        """Try a launch, and leave all memory but the marks as it was. Raises SpirogradAssertionError, with the line of the write."""
        plan, marked = gradient.access_check()
        if plan is None:
            return
        marks = [self._mark_of(ref, launch, packer) for ref in marked]
        with kept(launch, packer):
            plan.launch(packer.followed_by(*marks))
            launch.session.sync()

    def _mark_of(self, ref: MemoryRef, launch: Launch, packer: Packer) -> Place:
        if isinstance(ref, ArrayRef):
            array = launch.arrays[ref.arg]
            key: Key = ("array", id(array))
            shape = (*packer.array(ref.arg).shape, *ref.element_shape)
        else:
            key, shape = ("field", ref), (*ref.shape, *ref.element_shape)
        if key not in self._marks:
            self._marks[key] = (launch.session.scratch(i32, shape), launch)  # the launch keeps the array alive, and its number
        return self._marks[key][0]


def access_rule(validation: bool) -> AccessRule | None:
    """Return the marks of a tape with ``validation``; None, with a warning, unless the session runs in debug mode."""
    if not validation:
        return None
    if not context.session().cfg.debug:
        logger.warning("`Tape(validation=True)` checks nothing without `init(debug=True)`")
        return None
    return AccessRule()


@contextmanager
def kept(launch: Launch, packer: Packer) -> Iterator[None]:
    """Put back what a launch writes."""
    undo: list[Callable[[], None]] = []
    for access in footprint_of(launch.specialization).written:
        storage = launch.memory(access)[1]
        if storage is not None:
            undo.append(Saved(Stored(access.name, storage), None).swap)
        else:
            assert access.arg is not None
            array, binding = launch.external[access.arg], packer.array(access.arg)
            copy = external_arrays.device_copy(launch.session, array, binding)
            undo.append(functools.partial(external_arrays.put_back, copy, array, binding))
    try:
        yield
    finally:
        for run in undo:
            run()
