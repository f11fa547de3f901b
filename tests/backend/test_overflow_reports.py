"""Reports of overflow that do not stop a kernel: the words that programs of the family search for."""

import pytest

from spirograd.compat import taichi as ti

OPERATIONS = {
    "Addition": (lambda a, b: a + b, ti.i32, (2**31 - 1, 1), -(2**31)),
    "Subtraction": (lambda a, b: a - b, ti.u32, (1, 4), 2**32 - 3),
    "Multiplication": (lambda a, b: a * b, ti.i32, (2**30, 4), 0),
    "Shift left": (lambda a, b: a << b, ti.i32, (2**30, 4), 0),
}


@pytest.mark.parametrize("name", OPERATIONS)
def test_reports_begin_with_the_words_of_the_family(arch, name, capfd):
    ti.init(arch=arch, debug=True)
    function, dtype, operands, expected = OPERATIONS[name]

    @ti.kernel
    def compute(a: dtype, b: dtype) -> dtype:
        return function(a, b)

    assert compute(1, 1) == function(1, 1)
    assert compute(*operands) == expected
    ti.sync()
    assert capfd.readouterr().out.count(f"{name} overflow detected") == 1


def test_each_element_that_overflows_is_reported(arch, capfd):
    ti.init(arch=arch, debug=True)
    numbers = ti.field(ti.i32, 4)
    numbers.fill(2**31 - 2)

    @ti.kernel
    def grow():
        for i in numbers:
            numbers[i] += i

    grow()
    ti.sync()
    assert capfd.readouterr().out.count("Addition overflow detected") == 2
    assert numbers.to_numpy().tolist() == [2**31 - 2, 2**31 - 1, -(2**31), -(2**31) + 1]
