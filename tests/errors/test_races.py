"""`detect_races`: what is a race between iterations of a parallel loop, what is none, and how a race is reported."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

import spirograd as sg
from spirograd.simt import block

BLOCK, N = 4, 12
Place = Callable[[], sg.ScalarField]


@pytest.fixture(autouse=True)
def session():
    sg.init(arch=sg.interpreter, detect_races=True, debug=True)


def dense() -> sg.ScalarField:
    return sg.field(sg.i32, N)


def sparse(kind: str) -> Place:
    def make() -> sg.ScalarField:
        x = sg.field(sg.i32)
        getattr(sg.root, kind)(sg.i, N // BLOCK).dense(sg.i, BLOCK).place(x)
        return x

    return make


def nested() -> sg.ScalarField:
    x = sg.field(sg.i32)
    sg.root.pointer(sg.i, 3).bitmasked(sg.i, 2).pointer(sg.i, 2).place(x)
    return x


def entries() -> sg.ScalarField:
    x = sg.field(sg.i32)
    sg.root.dynamic(sg.i, N, chunk_size=BLOCK).place(x)
    return x


PLACES = {"dense": dense, **{kind: sparse(kind) for kind in ("pointer", "hash", "bitmasked")}, "nested": nested, "dynamic": entries}
places = pytest.mark.parametrize("place", PLACES.values(), ids=PLACES)


def race(first: str, second: str) -> pytest.RaisesContext[sg.SpirogradRuntimeError]:
    """A report that names both accesses, the line of the first, and the line of the second."""
    return pytest.raises(sg.SpirogradAssertionError, match=rf"race: {second}, which {first} \(.*test_races\.py:\d+\)")


def lines(error: pytest.ExceptionInfo[sg.SpirogradRuntimeError]) -> list[str]:
    """The words of the source line under the message."""
    return [line.split("|", 1)[1].strip() for line in str(error.value).splitlines() if "|" in line]


@places
def test_own_elements_are_no_race(place: Place) -> None:
    """Nor is activation, of cells which several iterations write to."""
    x = place()

    @sg.kernel
    def write():
        for i in range(N):
            x[i] = i + 1

    @sg.kernel
    def change():
        for i in x:
            x[i] = 2 * x[i]
        for i in x:
            x[i] += x[i] % 3

    write()
    change()
    numbers = 2 * np.arange(1, N + 1)
    np.testing.assert_array_equal(x.to_numpy(), numbers + numbers % 3)


@places
def test_reads_and_atomics_are_no_race(place: Place) -> None:
    x, y = place(), sg.field(sg.i32, N)

    @sg.kernel
    def count():
        for i in range(N):
            x[i // 3] += 1
            sg.atomic_max(x[N - 1], i)

    @sg.kernel
    def gather():
        for i in range(N):
            y[i] = x[0] + x[N - 1]

    count()
    gather()
    np.testing.assert_array_equal(x.to_numpy(), [3, 3, 3, 3, *[0] * 7, N - 1])
    np.testing.assert_array_equal(y.to_numpy(), 3 + N - 1)


def test_a_loop_over_compare_and_swap_is_no_race() -> None:
    x = sg.field(sg.i32, ())

    @sg.kernel
    def work():
        for i in range(N):
            done = False
            while not done:
                old = x[None]
                done = sg.atomic_cas(x[None], old, old + i) == old

    work()
    assert x[None] == sum(range(N))


@places
def test_two_writes(place: Place) -> None:
    x = place()

    @sg.kernel
    def work():
        for i in range(2, N):
            x[i // 3 + 3] = i

    with race(r"iteration 3 writes", r"iteration 4 writes `\w+\[4\]`") as error:
        work()
    assert lines(error)[0] == "x[i // 3 + 3] = i"


def test_two_writes_of_the_same_value() -> None:
    x = sg.field(sg.i32, ())

    @sg.kernel
    def work():
        for i in range(N):
            if i > 5:
                x[None] = 1

    with race("iteration 6 writes", r"iteration 7 writes `\w+\[None\]`"):
        work()


@places
def test_a_write_of_what_another_has_read(place: Place) -> None:
    x = place()

    @sg.kernel
    def fill():
        for i in range(N):
            x[i] = i

    @sg.kernel
    def shift():
        for i in x:
            if i < N - 1:
                x[i] = x[i + 1]

    fill()
    with race(r"iteration 0 reads", r"iteration 1 writes `\w+\[1\]`"):
        shift()


def test_a_write_of_what_is_read_by_the_same_iteration_first() -> None:
    x, y = sg.field(sg.i32, N), sg.field(sg.i32, N)

    @sg.kernel
    def work():
        for i in range(N):
            y[i] = x[4]
            if i == 0 or i == 3:
                x[4 + i] = 1

    with race(r"iteration 0 writes", r"iteration 1 reads `\w+\[4\]`"):
        work()

    @sg.kernel
    def later():
        for i in range(N):
            y[i] = x[0]
            if i == 3:
                x[0] = 1

    with race(r"iteration 0 reads", r"iteration 3 writes `\w+\[0\]`"):
        later()


def test_a_write_beside_atomics() -> None:
    x = sg.field(sg.i32, 3)

    @sg.kernel
    def work(first: sg.i32):
        for i in range(2):
            if i == first:
                x[1] = 0
            else:
                x[1] += 5

    with race("iteration 0 updates", r"iteration 1 writes `x\[1\]`"):
        work(1)
    with race("iteration 0 writes", r"iteration 1 updates `x\[1\]`"):
        work(0)


def test_indices_of_several_axes() -> None:
    x = sg.Vector.field(2, sg.f32)
    sg.root.pointer(sg.ij, (2, 3)).dense(sg.ij, (2, 2)).place(x, offset=(-1, 10))

    @sg.kernel
    def fill():
        for i, j in sg.ndrange((-1, 3), (10, 16)):
            x[i, j] = [1.0, 2.0]

    @sg.kernel
    def mix():
        for I in sg.grouped(x):
            x[I][1] = x[I[0], 11][1]

    fill()
    with race(r"iteration \(-1, 10\) reads", r"iteration \(-1, 11\) writes `x\[-1, 11\]\[1\]`"):
        mix()


def test_arrays_that_are_one_array() -> None:
    @sg.kernel
    def work(a: sg.types.ndarray(), b: sg.types.ndarray()):
        for i in range(1, 6):
            a[i] = b[i - 1] + 1

    array, other = sg.ndarray(sg.i32, 6), sg.ndarray(sg.i32, 6)
    work(array, other)
    with race(r"iteration 1 writes", r"iteration 2 reads `b\[1\]`"):
        work(array, array)
    numbers = np.zeros(6, np.int32)
    with race(r"iteration 1 writes", r"iteration 2 reads `b\[1\]`"):
        work(numbers, numbers)


def test_each_loop_is_looked_at_alone() -> None:
    x = sg.field(sg.i32, N)

    @sg.kernel
    def work():
        for i in range(N):
            x[i] = i
        x[3] = 7
        for i in range(N - 1):
            x[i + 1] = 2 * i
        for i in range(0):
            x[0] = i
        for i in range(1):
            x[i] = x[1] + x[2]

    work()
    work()
    np.testing.assert_array_equal(x.to_numpy(), [2, *range(0, 2 * N - 2, 2)])


@sg.real_func
def _stored(i: sg.i32, x: sg.template()):
    x[i] = i


def test_functions() -> None:
    x = sg.field(sg.i32, N)

    @sg.kernel
    def work(divisor: sg.i32):
        for i in range(N):
            _stored(i // divisor, x)

    work(1)
    with race("iteration 0 writes", r"iteration 1 writes `x\[0\]`"):
        work(2)


@sg.real_func
def _spread(i: sg.i32, left: sg.i32, x: sg.template()) -> sg.i32:
    done = 0
    if left > 0:
        x[i + left] = i
        done = 1 + _spread(i, left - 1, x)
    return done


def test_functions_that_call_themselves() -> None:
    x, y = sg.field(sg.i32, 3 * N), sg.field(sg.i32, N)

    @sg.kernel
    def work(count: sg.i32):
        for i in range(N):
            y[i] = _spread(2 * i, count, x)

    work(2)
    np.testing.assert_array_equal(x.to_numpy()[1 : 2 * N + 1], np.repeat(2 * np.arange(N), 2))
    with race("iteration 0 writes", r"iteration 1 writes `x\[3\]`"):
        work(3)


def test_truths_that_are_collected() -> None:
    found = sg.field(sg.u1, ())

    @sg.kernel
    def work():
        for i in range(N):
            found[None] |= i == 7

    work()
    assert found[None] == 1


def test_groups_of_threads() -> None:
    """In memory that is not theirs alone, too, threads of one group are ordered by barriers, threads of several by nothing."""
    x = sg.field(sg.i32, N)

    @sg.kernel
    def work(waits: sg.template(), apart: sg.template()):
        sg.loop_config(block_dim=BLOCK)
        for i in range(N):
            shared = block.SharedArray(BLOCK, sg.i32)
            shared[i % BLOCK] = i
            block.sync()
            x[i] = shared[i % BLOCK]
            if sg.static(waits):
                block.sync()
            x[(i // BLOCK * BLOCK + (i + 1) % BLOCK) % sg.static(N if apart else 2 * BLOCK)] = i

    work(True, True)
    with race(r"iteration [01] writes", r"iteration [01] writes `x\[1\]`"):
        work(False, True)
    with race(r"iteration \d writes", r"iteration \d+ writes `x\[\d\]`"):
        work(True, False)


def test_gradients() -> None:
    """The kernels of gradients add to gradients, and are not looked at."""
    x, loss = sg.field(sg.f32, N, needs_grad=True), sg.field(sg.f32, (), needs_grad=True)

    @sg.kernel
    def total():
        for i in range(N):
            loss[None] += x[i] * x[0]

    x.fill(2.0)
    loss.grad[None] = 1.0
    total()
    total.grad()
    np.testing.assert_allclose(x.grad.to_numpy(), [2.0 * (N + 1), *[2.0] * (N - 1)])


def test_other_back_ends() -> None:
    with pytest.raises(sg.SpirogradRuntimeError, match=r"`detect_races` works on `sg.interpreter` only, not on `sg.cpu`"):
        sg.init(arch=sg.cpu, detect_races=True)
