"""The tables of tasks that spirograd and Quadrants print: lines become tasks of a step, and tasks of one name stand beside each other."""

import pytest

from validation.clients.genesis import scaling

OURS = """Kernel profiler, count on cuda: NVIDIA H200
     %  total ms  count  min ms  avg ms  max ms  GB/s  GFLOP/s  cpu ms  task
-------------------------------------------------------------------------------------
 90.0%    47.200     20   2.300   2.360   2.400  1.24     0.31   0.002  factor_solve solver.py:3468
  8.0%     4.000     40   0.050   0.100   0.200                  0.002  collide_1 (range_for) collider.py:12
  2.0%     1.000     20   0.050   0.050   0.200                  0.002  factor_solve solver.py:3468
52.200 ms in 80 runs of 3 tasks
"""
THEIRS = """=========================================================================
Kernel Profiler(count, default) @ CUDA on NVIDIA H200
=========================================================================
[      %     total   count |      min       avg       max   ] Kernel name
-------------------------------------------------------------------------
[ 75.51%   0.004 s     20x |    0.003     0.180     0.235 ms] solve_c60_0_kernel_3_factor_solve_range_for
[ 24.49%   0.002 s     40x |    0.003     0.040     0.051 ms] collide_c61_0_kernel_1_range_for
-------------------------------------------------------------------------
[100.00%] Total execution time:   0.005 s   number of results: 2
=========================================================================
"""


def test_tasks_of_a_step():
    ours, theirs = scaling.our_tasks(OURS), scaling.their_tasks(THEIRS)
    assert [(task.name, task.place) for task in ours] == [
        ("factor_solve", "solver.py:3468"), ("collide_1", "collider.py:12"), ("factor_solve", "solver.py:3468"),
    ]  # fmt: skip
    assert [task.time for task in ours] == pytest.approx([2.36, 0.2, 0.05])
    assert [task.time for task in theirs] == pytest.approx([0.18, 0.08])
    assert [task.count for task in theirs] == [1, 2]


def test_tasks_of_one_name_stand_beside_each_other():
    rows = scaling.task_table(scaling.our_tasks(OURS), scaling.their_tasks(THEIRS)).splitlines()[2:]
    assert rows[0] == "| factor_solve | 2.4100 ms, 2 runs | 0.1800 ms, 1 runs | 0.07 | solver.py:3468 |"
    assert rows[-1].startswith("| all | 2.6100 ms | 0.2600 ms | 0.10 |")
    assert scaling.task_table([], []).count("\n") == 3
