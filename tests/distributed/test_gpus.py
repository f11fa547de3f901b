"""Processes with a GPU each, which communicate through NCCL: what `test_processes.py` tests on the CPU. On two GPUs, and on all."""

from __future__ import annotations

import json
import time

import pytest

from benchmarks import many_processes
from tests.distributed.processes import PROGRAMS, finish, run, start
from tests.distributed.test_processes import EXAMPLES, check_example
from tests.fuzz import partitions

pytestmark = [pytest.mark.needs("gpus"), pytest.mark.archs("cuda")]


@pytest.fixture(params=["two", "all"])
def count(request):
    """How many processes, each with a GPU."""
    there = many_processes.gpus()
    if request.param == "all" and there <= 2:
        pytest.skip("missing gpus: two are all there are")
    return 2 if request.param == "two" else there


def test_exchanges_gradients_and_mistakes(arch, count):
    printed = run(count, "checks.py", "9", arch=arch)
    assert all(
        f"all is right on process {rank} of {count}" in text and "through the host" not in text for rank, text in enumerate(printed)
    ), printed


@pytest.mark.parametrize("example", EXAMPLES)
def test_examples_have_the_gradient_of_one_process(arch, tmp_path, example, count):
    check_example(tmp_path, example, count, arch)


@pytest.mark.parametrize("seed", [1, 4])
def test_random_programs(arch, seed, count):
    partitions.check(partitions.Programs(4 * seed, 4, count), [arch])


@pytest.mark.parametrize("mode", ["kill", "hang"])
def test_one_process_fails(arch, tmp_path, mode, count):
    """The others end with an error, soon after the 6 seconds that they wait, and the last state loads on two."""
    begin = time.monotonic()
    (*others, _) = finish(start(count, PROGRAMS / "survivors.py", str(tmp_path), "12", mode, arch=arch), 90)
    text = "another process ended, or did not take part within 6 s"
    for rank, (status, output) in enumerate(others):
        assert status == 1 and f"process {rank} of {count} failed in" in output and text in output, output
    assert time.monotonic() - begin < 60
    assert json.loads((tmp_path / "state.json").read_text())["values"] == {"step": 4}
    ended = finish(start(2, PROGRAMS / "survivors.py", str(tmp_path), "9", arch=arch), 90)
    assert all(status == 0 and f"steps 4 to 9 on process {rank} of 2" in text for rank, (status, text) in enumerate(ended)), ended
