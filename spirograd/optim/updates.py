"""One launch that changes all parameters of an optimiser.

The kernel has a loop for each parameter, which reads its gradient and its state. Numbers that change between steps, such as learning rates,
are an argument; what only some groups need, such as a second moment, is known when the kernel is compiled.
"""

# mypy: disable-error-code="no-untyped-def, valid-type"
from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cache

from spirograd.base.dtypes import DType
from spirograd.lang import arithmetic, forms
from spirograd.lang.annotations import VectorType
from spirograd.lang.data.ndarray import Ndarray
from spirograd.lang.frontend.decorators import data_oriented, kernel
from spirograd.lang.frontend.func import func
from spirograd.lang.matrix import Vector
from spirograd.lang.scalar import Value
from spirograd.optim.parameters import Memory, origin_of, working_type
from spirograd.types import template

States = dict[str, Value]  # of an element, by name
Numbers = Mapping[str, Value]
Options = Mapping[str, bool]
Update = tuple[Value, States]
Rule = Callable[[Value, Value, States, Numbers, Options], Update]


class Slot:
    """A parameter in the kernel. ``state``: its state by name, which is zero at first; ``options``: what its group has, by name;
    ``first``: the index of the first number of its group; ``names``: of these numbers."""

    def __init__(self, parameter: Memory, state: dict[str, Ndarray], options: Options, first: int, names: Sequence[str]) -> None:
        self.parameter, self.gradient = parameter, parameter.grad
        self.names, self.states, self.options = list(state), list(state.values()), options
        self.dtype = working_type([parameter])
        self.origin = origin_of(parameter)
        self.places = [(name, first + k) for k, name in enumerate(names)]


@data_oriented
class Updates:
    """The update of parameters. ``rule(p, g, state, numbers, options)``: returns the new parameter, and the new state by name, of one
    element, which may be a vector. It is traced."""

    def __init__(self, slots: Sequence[Slot], rule: Rule, dtype: DType) -> None:
        self.slots, self.rule = slots, rule
        self._kernel = _kernel_of(len(slots[-1].places) + slots[-1].places[0][1], dtype)

    def __call__(self, numbers: Sequence[float]) -> None:
        """Change the parameters, by ``numbers`` of all groups."""
        self._kernel(self, numbers)


@arithmetic.traceable
def _apply(updates, slot, parameter, gradient, states, numbers) -> list[object]:
    """Return the new values of a parameter and of its states, of one element."""
    values = {name: arithmetic.cast(numbers[place], slot.dtype) for name, place in slot.places}
    parameter, gradient = (arithmetic.cast(x, slot.dtype) for x in (parameter, gradient))
    changed, new = updates.rule(parameter, gradient, dict(zip(slot.names, states)), values, slot.options)
    return [arithmetic.cast(changed, slot.parameter.dtype), *(new[name] for name in slot.names)]


@func
def _change(updates: template(), slot: template(), at, index, numbers):
    changed = _apply(updates, slot, slot.parameter[at], slot.gradient[at], [state[index] for state in slot.states], numbers)
    slot.parameter[at] = changed[0]
    for k in forms.static(range(len(slot.states))):
        slot.states[k][index] = changed[k + 1]


@cache
def _kernel_of(width: int, dtype: DType) -> Callable[[Updates, Sequence[float]], None]:
    """Return the kernel of updates with ``width`` numbers."""

    @kernel
    def optimizer_step(updates: template(), numbers: VectorType(width, dtype)):
        for slot in forms.static(updates.slots):
            for at in forms.grouped(slot.parameter):
                if forms.static(slot.origin):
                    _change(updates, slot, at, at - Vector(slot.origin), numbers)
                else:
                    _change(updates, slot, at, at, numbers)

    return optimizer_step
