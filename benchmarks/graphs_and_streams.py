"""Many small launches as a graph, loops whose condition lies on the device, and work on several streams, on one back end:
`python -m benchmarks.graphs_and_streams cuda`."""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable

import spirograd as sg
from spirograd.lang import context

FLAG = sg.types.ndarray(sg.i32, ndim=0)


@sg.kernel
def bump(x: sg.types.ndarray(sg.f32, ndim=1)):
    for i in x:
        x[i] += 1.0


@sg.kernel(graph=True)
def count_down(x: sg.types.ndarray(sg.f32, ndim=1), left: FLAG):
    while sg.graph.do_while(left):
        for i in x:
            x[i] += 1.0
        left[None] -= 1


@sg.kernel
def spin(x: sg.types.ndarray(sg.f32, ndim=1), times: sg.i32):
    for i in x:
        v = x[i]
        for _ in range(times):
            v = v * 0.999 + 1.0
        x[i] = v


def best(function: Callable[[], object], rounds: int) -> float:
    """Seconds of one call with a wait, the least of some."""
    times = []
    for _ in range(rounds):
        sg.sync()
        start = time.perf_counter()
        function()
        sg.sync()
        times.append(time.perf_counter() - start)
    return min(times)


def graph_of_launches(launches: int, arrays: int, rounds: int) -> float:
    """Return the microseconds per launch of a graph of launches that use the given number of arrays in turn."""
    made = [sg.ndarray(sg.f32, 64) for _ in range(arrays)]
    with sg.Graph() as graph:
        for k in range(launches):
            bump(made[k % arrays])
    return best(graph.launch, rounds) / launches * 1e6


def loop(trips: int, rounds: int) -> tuple[float, str]:
    """Microseconds an iteration, of two kernels, of a loop whose condition lies on the device, and who read it."""
    x, left = sg.ndarray(sg.f32, 64), sg.ndarray(sg.i32, ())

    def run() -> None:
        left.fill(trips)
        count_down(x, left)

    run()
    seconds = best(run, rounds)
    if left[None] != 0 or x[0] != trips * (rounds + 1):
        raise RuntimeError(f"the loop ran {x[0]} times instead of {trips * (rounds + 1)}")
    loops = context.session().device_loops
    return seconds / trips * 1e6, "host" if loops is None or loops.launches != rounds + 1 else "device"


def streams(count: int, times: int, rounds: int) -> tuple[float, float]:
    """Milliseconds of as many small kernels that take long: on one stream, and on as many."""
    arrays, made = [sg.ndarray(sg.f32, 64) for _ in range(count)], [sg.create_stream() for _ in range(count)]

    def one() -> None:
        for x in arrays:
            spin(x, times)

    def several() -> None:
        for x, stream in zip(arrays, made):
            spin(x, times, stream=stream)

    one(), several()
    return best(one, rounds) * 1e3, best(several, rounds) * 1e3


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("arch")
    parser.add_argument("--launches", type=int, default=1000)
    parser.add_argument("--rounds", type=int, default=50)
    given = parser.parse_args()
    sg.init(arch=given.arch)
    for arrays in (1, 4):
        each = graph_of_launches(given.launches, arrays, given.rounds)
        print(f"graph of {given.launches} launches on {arrays} arrays: {each:.3f} us each")
    each, reader = loop(200, given.rounds)
    print(f"loop on the device: {each:.3f} us an iteration of two kernels; the condition is read by the {reader}")
    one, several = streams(4, 60_000, 5)
    print(f"4 long kernels: {one:.2f} ms on one stream, {several:.2f} ms on four")


if __name__ == "__main__":
    main()
