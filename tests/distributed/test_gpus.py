"""Two processes, each with a GPU of its own, which communicate through NCCL: what `test_processes.py` tests on the CPU."""

from __future__ import annotations

import json
import time

import pytest

from tests.distributed.processes import PROGRAMS, finish, run, start
from tests.distributed.test_processes import EXAMPLES, check_example
from tests.fuzz import partitions

pytestmark = [pytest.mark.needs("gpus"), pytest.mark.archs("cuda")]


def test_exchanges_gradients_and_mistakes(arch):
    printed = run(2, "checks.py", "9", arch=arch)
    assert all(f"all is right on process {rank} of 2" in text and "through the host" not in text for rank, text in enumerate(printed)), (
        printed
    )


@pytest.mark.parametrize("example", EXAMPLES)
def test_examples_have_the_gradient_of_one_process(arch, tmp_path, example):
    check_example(tmp_path, example, 2, arch)


@pytest.mark.parametrize("seed", [1, 4])
def test_random_programs(arch, seed):
    partitions.check(partitions.Programs(4 * seed, 4, 2), [arch])


@pytest.mark.parametrize("mode", ["kill", "hang"])
def test_one_process_fails(arch, tmp_path, mode):
    """The other one ends with an error, soon after the 6 seconds that it waits, and the last state loads."""
    begin = time.monotonic()
    (first, _) = finish(start(2, PROGRAMS / "survivors.py", str(tmp_path), "12", mode, arch=arch), 90)
    text = "another process ended, or did not take part within 6 s"
    assert first[0] == 1 and "process 0 of 2 failed in" in first[1] and text in first[1], first
    assert time.monotonic() - begin < 60
    assert json.loads((tmp_path / "state.json").read_text())["values"] == {"step": 4}
    ended = finish(start(2, PROGRAMS / "survivors.py", str(tmp_path), "9", arch=arch), 90)
    assert all(status == 0 and f"steps 4 to 9 on process {rank} of 2" in text for rank, (status, text) in enumerate(ended)), ended
