"""The base of optimisers: groups of parameters, steps, and their state, which is saved and loaded."""

from __future__ import annotations

import json
import zipfile
from collections.abc import Callable, Mapping, Sequence
from os import PathLike
from typing import TypedDict, TypeVar

import numpy as np

from spirograd.base.arrays import Array
from spirograd.base.errors import SpirogradTypeError, SpirogradValueError
from spirograd.base.near_names import NearNames
from spirograd.lang.context import session
from spirograd.lang.data.ndarray import Ndarray
from spirograd.lang.scalar import describe
from spirograd.optim.parameters import Memory, check_host_scope, checked_parameters, state_like, working_type
from spirograd.optim.updates import Rule, Slot, Updates

Group = dict[str, object]  # the arguments of a group by name, and its parameters under "params"
StateDict = Mapping[str, object]
T = TypeVar("T")
_FILE_GROUPS = "param_groups"  # the array of a file with the groups, as JSON


class State(TypedDict):
    """The state of an optimiser, in the form of torch."""

    state: dict[int, dict[str, object]]  # of each parameter that has made steps, by its number
    param_groups: list[Group]


def number(group: Group, name: str) -> float:
    """Return an argument of a group that is a number."""
    value = group[name]
    if isinstance(value, bool) or not isinstance(value, (int, float, np.number)):
        raise SpirogradTypeError(f"`{name}` is a number, got {describe(value)}")
    return float(value)


def flag(group: Group, name: str) -> bool:
    """Return an argument of a group that is true or false."""
    return bool(group[name])


def pair(group: Group, name: str) -> tuple[float, float]:
    """Return an argument of a group that is two numbers."""
    value = group[name]
    if not isinstance(value, (tuple, list)) or len(value) != 2:
        raise SpirogradTypeError(f"`{name}` is a pair of numbers, got {describe(value)}")
    return float(value[0]), float(value[1])


def members(group: Group) -> list[Memory]:
    """Return the parameters of a group."""
    params = group["params"]
    assert isinstance(params, list)
    return params


class Optimizer(NearNames):
    """The base of optimisers of ``params``, parameters or a list of groups. ``defaults``: the arguments of groups that have none of their
    own. ``param_groups``: dicts with the arguments of each group, which may change between steps, and its parameters; ``state``: for each
    parameter, its state by name.

    A subclass has the ``names`` of its numbers, the ``switches``, arguments of groups whose code differs if they are not zero, and the
    methods `state_names`, `numbers` and `rule`.
    """

    names: Sequence[str] = ()
    switches: Sequence[str] = ()
    rule: Rule

    def __init__(self, params: object, defaults: Group) -> None:
        self.defaults = defaults
        self.param_groups: list[Group] = []
        self.state: dict[Memory, dict[str, Ndarray]] = {}
        self._steps: list[int] = []  # the steps that each group has made
        self._updates: Updates | None = None
        self._compiled_for: object = None
        groups = isinstance(params, (list, tuple)) and bool(params) and all(isinstance(g, Mapping) and "params" in g for g in params)
        for group in params if groups and isinstance(params, (list, tuple)) else [{"params": params}]:
            self.add_param_group(group)

    def __repr__(self) -> str:
        count = sum(len(members(group)) for group in self.param_groups)
        return f"<{type(self).__name__} of {count} parameters in {len(self.param_groups)} groups>"

    # --- what subclasses have ----------------------------------------------------------------------------------------------

    def check(self, group: Group) -> None:
        """Raise SpirogradValueError for arguments out of range in ``group``."""
        for name, value in group.items():
            if isinstance(value, (int, float)) and value < 0:
                raise SpirogradValueError(f"`{name}` is at least 0, got {value}")

    def state_names(self, group: Group) -> Sequence[str]:
        """Return the names of the state of each parameter of ``group``. By default it has none."""
        return ()

    def numbers(self, group: Group, step: int) -> list[float]:
        """Return the numbers of ``group`` for the ``step``-th step, as ``names`` lists them."""
        raise NotImplementedError

    # --- steps -------------------------------------------------------------------------------------------------------------

    def add_param_group(self, param_group: Mapping[str, object]) -> None:
        """Add ``param_group``, a dict with ``params`` and arguments that differ from the defaults.

        Raises SpirogradTypeError for arguments that the optimiser does not have, SpirogradValueError for a parameter of another group.
        """
        unknown = [name for name in param_group if name != "params" and name not in self.defaults]
        if unknown or "params" not in param_group:
            problem = f"has no argument `{unknown[0]}`" if unknown else "needs `params`"
            raise SpirogradTypeError(f"a group of {type(self).__name__} {problem}", None, f"it takes {', '.join(self.defaults)}")
        known = [p for group in self.param_groups for p in members(group)]
        checked_parameters([*known, param_group["params"]])
        group: Group = {**self.defaults, **param_group, "params": checked_parameters(param_group["params"])}
        self.check(group)
        self.param_groups.append(group)
        self._steps.append(0)

    def zero_grad(self) -> None:
        """Set the gradients of all parameters to zero. A tape with a loss does that by itself."""
        for group in self.param_groups:
            for parameter in members(group):
                parameter.grad.fill(0)

    def step(self, closure: Callable[[], T] | None = None) -> T | None:
        """Change the parameters by their gradients, in one launch. ``closure``: computes the gradients first; what it returns is returned.

        Raises SpirogradRuntimeError in a tape and where a graph is recorded.
        """
        check_host_scope(f"{type(self).__name__}.step")
        loss = closure() if closure is not None else None
        updates = self._compiled()
        self._steps = [step + 1 for step in self._steps]
        updates([x for group, step in zip(self.param_groups, self._steps) for x in self.numbers(group, step)])
        return loss

    def _compiled(self) -> Updates:
        """Return the updates for the groups as they are now."""
        options = [{name: bool(group[name]) for name in self.switches} for group in self.param_groups]
        key = session(), options, [[id(p) for p in members(group)] for group in self.param_groups]
        if self._updates is None or key != self._compiled_for:
            slots = []
            for k, (group, known) in enumerate(zip(self.param_groups, options)):
                self.check(group)
                self._fill_state(group)
                for p in members(group):
                    state = {name: self.state[p][name] for name in self.state_names(group)}
                    slots.append(Slot(p, state, known, k * len(self.names), self.names))
            self._updates = Updates(slots, type(self).rule, working_type([slot.parameter for slot in slots]))
            self._compiled_for = key
        return self._updates

    def _fill_state(self, group: Group) -> None:
        """Allocate the state that parameters of a group do not have yet."""
        for p in members(group):
            state = self.state.setdefault(p, {})
            for name in self.state_names(group):
                if name not in state:
                    state[name] = state_like(p)

    # --- state -------------------------------------------------------------------------------------------------------------

    def state_dict(self) -> State:
        """Return the state as arrays of NumPy, and the arguments of groups, in the form of torch: parameters are numbers, in order."""
        state: dict[int, dict[str, object]] = {}
        groups: list[Group] = []
        index = 0
        for group, step in zip(self.param_groups, self._steps):
            own = members(group)
            for k, p in enumerate(own):
                if step:
                    arrays = {name: array.to_numpy() for name, array in self.state.get(p, {}).items()}
                    state[index + k] = {"step": step, **arrays}
            groups.append({**group, "params": list(range(index, index + len(own)))})
            index += len(own)
        return {"state": state, "param_groups": groups}

    def load_state_dict(self, state_dict: StateDict) -> None:
        """Set arguments and state to those of ``state_dict``, from `state_dict` or from the same optimiser of torch.

        Raises SpirogradValueError if it has other groups, or state of another shape. Arguments that this optimiser does not have are left
        out.
        """
        state, groups = state_dict["state"], state_dict["param_groups"]
        assert isinstance(state, Mapping)
        assert isinstance(groups, Sequence)
        sizes = [len(members(group)) for group in self.param_groups]
        if [len(group["params"]) for group in groups] != sizes:
            problem = f"groups of {[len(group['params']) for group in groups]} parameters"
            raise SpirogradValueError(f"the state has {problem}, {type(self).__name__} has {sizes}")
        loaded = [self._loaded_group(group, given, state) for group, given in zip(self.param_groups, groups)]
        for k, (group, given, (step, arrays)) in enumerate(zip(self.param_groups, groups, loaded)):
            group.update({name: value for name, value in given.items() if name in self.defaults})
            self._steps[k] = step
            self._fill_state(group)
            for p, values in zip(members(group), arrays):
                for name, array in self.state[p].items():
                    array.from_numpy(values[name]) if step else array.fill(0)

    def _loaded_group(self, group: Group, given: Group, state: Mapping[object, object]) -> tuple[int, list[dict[str, Array]]]:
        """Return the steps of a group and the state of each of its parameters. Raises SpirogradValueError if they do not fit."""
        wanted = self.state_names({**group, **{name: value for name, value in given.items() if name in self.defaults}})
        steps, arrays = set(), []
        places = given["params"]
        assert isinstance(places, Sequence)
        for p, place in zip(members(group), places):
            values = state.get(place, {})
            assert isinstance(values, Mapping)
            steps.add(int(values.get("step", 1 if values else 0)))
            arrays.append({name: _state_array(values, name, p, place) for name in wanted} if values else {})
        if len(steps) > 1:
            raise SpirogradValueError(f"the parameters of a group have made different numbers of steps: {sorted(steps)}")
        return steps.pop(), arrays

    def save(self, path: str | PathLike[str]) -> None:
        """Write the state to ``path``, a file of NumPy (``.npz``)."""
        saved = self.state_dict()
        arrays = {f"{index}.{name}": np.asarray(value) for index, values in saved["state"].items() for name, value in values.items()}
        np.savez(path, **arrays, **{_FILE_GROUPS: np.array(json.dumps(saved["param_groups"]))})  # type: ignore[arg-type]

    def load(self, path: str | PathLike[str]) -> None:
        """Set the state to that in ``path``, which `save` wrote. Raises as `load_state_dict`, and SpirogradValueError for other files."""
        state: dict[int, dict[str, object]] = {}
        with zipfile.ZipFile(path) as file:
            names = [name.removesuffix(".npy") for name in file.namelist()]
            if _FILE_GROUPS not in names:
                raise SpirogradValueError(f"`{path}` is no file of an optimiser: it has no `{_FILE_GROUPS}`")
            arrays = {name: _read_array(file, name) for name in names}
        groups = json.loads(str(arrays.pop(_FILE_GROUPS)))
        for key, array in arrays.items():
            index, _, name = key.partition(".")
            state.setdefault(int(index), {})[name] = array
        self.load_state_dict({"state": state, "param_groups": groups})


def _read_array(file: zipfile.ZipFile, name: str) -> Array:
    """Return an array of a file of NumPy. Arrays of objects are an error."""
    with file.open(f"{name}.npy") as member:
        array: Array = np.lib.format.read_array(member)
    return array


def _state_array(values: Mapping[str, object], name: str, parameter: Memory, place: object) -> Array:
    shape = (*parameter.shape, *parameter.element_shape)
    found = values.get(name)
    array = None if found is None else np.asarray(found)
    if array is None or array.shape != shape:
        what = "none" if array is None else f"shape {array.shape}"
        raise SpirogradValueError(f"the state `{name}` of parameter {place} has {what}, expected shape {shape}")
    return array.astype(working_type([parameter]).np)
