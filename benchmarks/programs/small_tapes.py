"""A tape of 100 steps of two kernels of 1,000 elements, and its gradient: launches are what counts. Steps have a slice of memory each, or
overwrite the state of the step before, which the tape saves.
"""

import numpy as np

import spirograd as sg

N, STEPS = 1000, 100
x = sg.field(sg.f32, (STEPS + 1, N), needs_grad=True)
v = sg.field(sg.f32, (STEPS + 1, N), needs_grad=True)
place = sg.field(sg.f32, N, needs_grad=True)
speed = sg.field(sg.f32, N, needs_grad=True)
loss = sg.field(sg.f32, (), needs_grad=True)


@sg.kernel
def push(t: sg.i32):
    for i in range(N):
        v[t + 1, i] = v[t, i] * 0.99 - 0.01 * x[t, i] * x[t, i] * x[t, i]


@sg.kernel
def move(t: sg.i32):
    for i in range(N):
        x[t + 1, i] = x[t, i] + 0.01 * v[t + 1, i]


@sg.kernel
def measure():
    for i in range(N):
        loss[None] += x[STEPS, i] * x[STEPS, i]


@sg.kernel
def push_in_place():
    for i in range(N):
        speed[i] = speed[i] * 0.99 - 0.01 * place[i] * place[i] * place[i]


@sg.kernel
def move_in_place():
    for i in range(N):
        place[i] = place[i] + 0.01 * speed[i]


@sg.kernel
def measure_in_place():
    for i in range(N):
        loss[None] += place[i] * place[i]


def with_slices():
    with sg.ad.Tape(loss):
        for t in range(STEPS):
            push(t)
            move(t)
        measure()


def in_place():
    place.from_numpy(START)
    speed.fill(0.0)
    with sg.ad.Tape(loss):
        for _ in range(STEPS):
            push_in_place()
            move_in_place()
        measure_in_place()


START = np.linspace(0, 1, N).astype(np.float32)
whole = np.zeros((STEPS + 1, N), np.float32)
whole[0] = START
x.from_numpy(whole)
CASES = {"tape of 100 x 2, slices": (with_slices, 10), "tape of 100 x 2, in place": (in_place, 10)}
