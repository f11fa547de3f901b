"""Kernels whose argument is a nested frozen dataclass of 450 arrays, of which each uses a few, as engines for physics have them."""

import dataclasses

import spirograd as sg

_MEMBERS, _GROUPS = 45, 10
_annotations = {f"m{k}": sg.types.ndarray(sg.f32, 1) for k in range(_MEMBERS)}
_templates = {f"m{k}": sg.template() for k in range(_MEMBERS)}
Group = dataclasses.make_dataclass("Group", list(_annotations.items()), frozen=True)
FieldGroup = dataclasses.make_dataclass("FieldGroup", list(_templates.items()), frozen=True)
State = dataclasses.make_dataclass("State", [(f"g{k}", Group) for k in range(_GROUPS)], frozen=True)
FieldState = dataclasses.make_dataclass("FieldState", [(f"g{k}", FieldGroup) for k in range(_GROUPS)], frozen=True)


def make(state, group, array):
    return state(*(group(*(array() for _ in range(_MEMBERS))) for _ in range(_GROUPS)))


def launches(state):
    """Ten launches of two kernels that take ``state``."""
    kind = type(state)

    @sg.kernel
    def move(s: kind):
        for i in range(16):
            s.g0.m0[i] += s.g1.m1[i] * 0.5 + s.g2.m2[i]

    @sg.kernel
    def push(s: kind):
        for i in range(16):
            s.g1.m1[i] += s.g3.m40[i] - s.g9.m44[i]

    def step():
        for _ in range(5):
            move(state)
            push(state)

    return step


step = launches(make(State, Group, lambda: sg.ndarray(sg.f32, 16)))
step_fields = launches(make(FieldState, FieldGroup, lambda: sg.field(sg.f32, 16)))
CASES = {"450 arrays, 10 launches": (step, 20), "450 fields, 10 launches": (step_fields, 20)}
