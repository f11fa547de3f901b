# ruff: noqa: UP031
"""Texts that `%` formats with run-time values, in `print` and `assert`."""

import pytest

import spirograd as sg

FORMATS = ["%d", "%5d|", "%-5d|", "%05d", "%+d", "% d", "%x", "%X", "%#x", "%o", "%s", "%6s|", "%-6s|", "%f", "%.2f", "%8.3f|", "%-8.2f|"]
FORMATS += ["%+.1f", "%e", "%.3E", "%g", "%i %%", "%ld", "100%% of %d"]


@pytest.mark.parametrize("text", FORMATS)
def test_texts_are_those_of_python(session, capfd, text):
    @sg.kernel
    def show(n: sg.i32):
        print(text % n)

    for n in (42, -7):
        show(n)
        sg.sync()
        assert capfd.readouterr().out == f"{text % n}\n"


def test_floats_tuples_names_and_vectors(session, capfd):
    @sg.kernel
    def show(n: sg.i32, x: sg.f32):
        print("%d is %.2f" % (n, x), "%d %g" % (x, x), "%s and %s" % ("text", n))
        print("%(count)03d %(share).1f%%" % {"count": n, "share": x * 100.0})
        print("v = %s, %.1f" % (sg.Vector([n, 2]), sg.Vector([x, 2.0])), "no values: %d%%" % 3)
        print("joined " + f"{n}" + " twice %d" % n)

    show(7, 0.75)
    sg.sync()
    expected = ["7 is 0.75 0 0.75 text and 7", "007 75.0%", "v = [7, 2], [0.8, 2.0] no values: 3%", "joined 7 twice 7"]
    assert capfd.readouterr().out.splitlines() == expected


def test_messages_of_assertions(arch):
    sg.init(arch=arch, debug=True)

    @sg.kernel
    def check(n: sg.i32, x: sg.f32):
        assert n > 3, "n is %d and x %.3f, 100%% wrong" % (n, x)

    check(4, 1.0)
    sg.sync()
    with pytest.raises(AssertionError, match=r"n is 1 and x 0\.500, 100% wrong"):
        check(1, 0.5)
        sg.sync()


@pytest.mark.parametrize(
    ("text", "message"),
    [("%d %d", "there is no value for `%d`"), ("none", "1 value too many"), ("%c", "`%c` is not supported"), ("%.2s", "is not supported")],
)
def test_texts_that_do_not_fit(session, text, message):
    @sg.kernel
    def show(n: sg.i32):
        print(text % n)

    with pytest.raises(TypeError, match=message):
        show(1)
