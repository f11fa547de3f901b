"""Random numbers and clocks of Python in kernels: errors that point at the line, whichever way the function is reached."""

import cProfile
import datetime
import functools
import logging
import os
import random
import secrets
import sys
import time
import types
import uuid
from datetime import datetime as moment
from random import random as draw

import numpy as np
import pytest

import spirograd as sg
from tests import needs

pytestmark = [pytest.mark.usefixtures("session"), pytest.mark.archs("cpu")]  # what the front end refuses, it refuses on all

generator = np.random.default_rng(1)
state = np.random.RandomState(1)
own = random.Random(1)
uniform = own.uniform
bounded = functools.partial(random.randint, 1, 6)
holder = types.SimpleNamespace(generator=generator, draw=random.random)


def helper():
    return 2 * random.random()


def nested():
    return helper() + 1


def of_numpy():
    return float(np.random.rand())


def of_generator():
    return float(generator.normal())


def of_argument(source):
    return float(source.normal())


def of_local():
    source = np.random.default_rng(3)
    return float(source.random())


def imported():
    import random as r

    return r.gauss(0.0, 1.0)


def several():
    for _ in range(2):
        yield random.random()


def pure():
    logging.getLogger("spirograd.test").info("the clock of a record reaches no kernel")
    return float(np.linspace(0.0, 1.0, 3)[1])


class Table:
    @property
    def now(self):
        return time.time()

    @property
    def fixed(self):
        return 0.5

    def noise(self):
        return random.random()

    def __getitem__(self, key):
        return key + random.random()

    def __call__(self):
        return time.perf_counter()


table = Table()

DIRECT = {
    "random": lambda: random.random(),
    "alias": lambda: draw(),
    "uniform": lambda: random.uniform(0.0, 1.0),
    "randint": lambda: random.randint(0, 3),
    "choice": lambda: random.choice((1.0, 2.0)),
    "bound method": lambda: uniform(0.0, 1.0),
    "instance": lambda: own.random(),
    "partial": lambda: bounded(),
    "member": lambda: holder.draw(),
    "numpy": lambda: np.random.rand(),
    "numpy randint": lambda: np.random.randint(5),
    "numpy seeded": lambda: np.random.default_rng(1).random(),
    "generator": lambda: generator.random(),
    "generator of a member": lambda: holder.generator.normal(),
    "state": lambda: state.rand(),
    "system": lambda: random.SystemRandom().random(),
    "urandom": lambda: os.urandom(1)[0],
    "secrets": lambda: secrets.randbelow(4),
    "uuid": lambda: uuid.uuid4().int % 7,
    "run-time argument": lambda x: random.uniform(0.0, x),
    "helper": lambda: helper(),
    "nested": lambda: nested(),
    "helper of numpy": lambda: of_numpy(),
    "helper of a generator": lambda: of_generator(),
    "helper of an argument": lambda: of_argument(generator),
    "helper of a local generator": lambda: of_local(),
    "helper that imports": lambda: imported(),
    "method": lambda: table.noise(),
    "item": lambda: table[1],
    "map": lambda: functools.reduce(lambda a, b: a + b * random.random(), [1, 2]),
    "generator function": lambda: sum(several()),
}
CLOCKS = {
    "time": lambda: time.time(),
    "perf_counter": lambda: time.perf_counter(),
    "monotonic_ns": lambda: time.monotonic_ns(),
    "now": lambda: datetime.datetime.now().microsecond,
    "now by alias": lambda: moment.now().microsecond,
    "today": lambda: datetime.date.today().day,
    "localtime": lambda: time.localtime().tm_sec,
    "property": lambda: table.now,
    "object": lambda: table(),
}


def _refused(called, name):
    x = sg.field(sg.f32, shape=4)
    function = sg.func(called) if called.__code__.co_name != "<lambda>" else called
    takes = called.__code__.co_argcount

    @sg.kernel
    def fill():
        for i in x:
            if sg.static(takes):
                x[i] = function(x[i])
            else:
                x[i] = function()

    with pytest.raises(sg.SpirogradCompilationError) as error:
        fill()
    text = str(error.value)
    assert name in text and "while compiling" in text and "test_nondeterminism.py:" in text and "^" in text
    return text


@pytest.mark.parametrize("which", DIRECT)
def test_random_numbers_of_python(which):
    _refused(DIRECT[which], "sg.random()")


@pytest.mark.parametrize("which", CLOCKS)
def test_clocks_of_python(which):
    _refused(CLOCKS[which], "pass the time as an argument")


def test_random_numbers_of_torch():
    torch = needs.package("torch")

    def sampled():
        return float(torch.zeros(1).uniform_()[0])

    for called in (lambda: torch.rand(1).item(), lambda: torch.bernoulli(torch.ones(1)).item(), lambda: sampled()):
        _refused(called, "sg.random()")


def test_the_message_names_the_function_and_its_caller():
    x = sg.field(sg.f32, shape=4)

    @sg.kernel
    def direct():
        for i in x:
            x[i] = random.random()

    @sg.kernel
    def indirect():
        for i in x:
            x[i] = nested()

    with pytest.raises(
        sg.SpirogradCompilationError, match=r"`random.random` would run once, while compiling.*\n.*\n.*x\[i\] = random.random"
    ):
        direct()
    with pytest.raises(sg.SpirogradCompilationError, match=r"`nested`, which runs while compiling, uses `random.random`"):
        indirect()


def test_static_makes_a_constant():
    x = sg.field(sg.f32, shape=4)
    random.seed(5)
    expected = random.random()
    random.seed(5)

    @sg.kernel
    def fill():
        value = sg.static(random.random())
        for i in x:
            x[i] = value

    fill()
    assert (x.to_numpy() == np.float32(expected)).all()

    @sg.kernel
    def helped():
        for k in sg.static(range(int(random.random() * 0) + 2)):
            x[k] = sg.static(nested() + time.time() * 0 + table.now * 0)

    helped()
    assert (x.to_numpy()[:2] >= 1).all()


def test_what_is_not_random_still_runs_while_compiling():
    x = sg.field(sg.f32, shape=4)
    constant = random.random()

    @sg.kernel
    def fill():
        for i in x:
            x[i] = pure() + table.fixed + constant + sg.random() * 0

    fill()
    assert np.allclose(x.to_numpy(), 1.0 + constant)


def test_watching_keeps_the_profiler():
    x = sg.field(sg.f32, shape=4)
    seen = []

    @sg.kernel
    def fill():
        for i in x:
            x[i] = pure()

    def look(frame, event, arg):
        seen.append(frame.f_code.co_name)

    before = sys.getprofile()
    sys.setprofile(look)
    try:
        fill()
        kept = sys.getprofile()
    finally:
        sys.setprofile(before)
    assert kept is look and "pure" in seen


def test_watching_keeps_a_profiler_written_in_c():
    x = sg.field(sg.f32, shape=4)

    @sg.kernel
    def fill():
        for i in x:
            x[i] = pure()

    def after():
        return x.to_numpy()

    profile = cProfile.Profile()
    profile.enable()
    fill()
    after()
    profile.disable()
    assert any(getattr(entry.code, "co_name", "") == "after" for entry in profile.getstats())
