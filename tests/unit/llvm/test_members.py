"""PTX: instructions of subgroups in branches and loops name the lanes that run them. What they compute is tested where there is a GPU."""

import re

import pytest

import spirograd as sg
from spirograd.simt import block, subgroup, warp

MASKED = r"(bar\.warp\.sync|vote\.sync\.ballot\.b32|redux\.sync\.\w+\.\w+|shfl\.sync\.idx\.b32)\s+([^;]*);"


@pytest.fixture
def ptx(tmp_path):
    """A function that compiles a kernel for an H200: the instructions that name lanes, in order, each with what names them."""
    sg.init(arch=sg.interpreter)

    def compiled(kernel):
        module = sg.aot.Module(sg.cuda, caps={"cpu_name": "sm_90", "subgroup_reductions": ("add",)})
        module.add_kernel(kernel)
        module.save(tmp_path / "module")
        (path,) = (tmp_path / "module" / "kernels").glob("*.ptx")
        return [(name.split(".")[0], operands.split(", ")) for name, operands in re.findall(MASKED, path.read_text("utf-8"))]

    return compiled


def voted(found):
    """The instructions that are no votes; each names lanes by the result of a vote of the lanes around."""
    votes = {operands[0]: operands[-1] for name, operands in found if name == "vote"}
    masks = [(name, operands[-1]) for name, operands in found if name != "vote"]
    for _, mask in masks:
        while mask in votes:
            mask = votes[mask]
        assert mask == "-1", "the outermost vote is one of the whole subgroup"
    assert all(mask in votes for _, mask in masks)
    return [name for name, _ in masks]


def test_groups_that_lack_threads(ptx):
    """Those without an iteration wait for the others elsewhere."""

    @sg.kernel
    def work(x: sg.types.NDArray[sg.i32, 1], n: sg.i32):
        sg.loop_config(block_dim=64)
        for i in range(n):
            if block.thread_idx() // 32 == 1:
                x[i] = 3
                subgroup.sync()
                x[i] += subgroup.reduce_add(x[i]) + warp.shfl_sync_i32(0xFFFF, x[i], 3)
            block.sync()

    assert voted(ptx(work)) == ["bar", "redux", "shfl"]


def test_lanes_that_the_mask_does_not_name(ptx):
    @sg.kernel
    def work(x: sg.types.NDArray[sg.i32, 1]):
        sg.loop_config(block_dim=64)
        for i in range(6400):
            if i % 32 < 8:
                x[i] = warp.any_nonzero(0xF, x[i])
            else:
                x[i] = warp.any_nonzero(0xF0000, x[i] > 3)

    found = [operands for _, operands in ptx(work)]
    entering, inside = [o for o in found if o[-1] == "-1"], [o for o in found if o[-1] != "-1"]
    assert len(found) == 4 and {operands[-1] for operands in inside} == {operands[0] for operands in entering}


@pytest.mark.parametrize("loop", ["for", "while"])
def test_loops_that_lanes_leave_one_by_one(ptx, loop):
    """They vote on each iteration."""

    @sg.kernel
    def work(x: sg.types.NDArray[sg.i32, 1]):
        sg.loop_config(block_dim=64)
        for i in range(6400):
            if sg.static(loop == "for"):
                for _ in range(x[i]):
                    subgroup.sync()
            else:
                while x[i] > 0:
                    x[i] -= 1
                    subgroup.sync()

    found = ptx(work)
    assert [name for name, _ in found].count("vote") == 2
    masks = [operands[-1] for name, operands in found if name == "bar"]
    assert masks and "-1" not in masks


@pytest.mark.parametrize(("size", "count"), [(64, 0), (96, 0), (40, 1), (8, 0)])
def test_where_all_get_there(ptx, size, count):
    """No votes are needed; the last subgroup may lack lanes."""

    @sg.kernel
    def work(x: sg.types.NDArray[sg.i32, 1], n: sg.i32):
        sg.loop_config(block_dim=size)
        for i in range(n):
            subgroup.sync()
            x[i] = 1

    found = ptx(work)
    assert len(found) == (2 if size == 8 else 1)  # the barrier of a workgroup of a warp is one of the warp
    for name, (mask,) in found:
        assert name == "bar" and (mask.startswith("%r") if count else mask == ("255" if size == 8 else "-1"))
