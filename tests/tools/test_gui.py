"""`sg.GUI`: what is drawn, where frames go, and events, without a display; and once in a window, where there is a virtual display."""

from __future__ import annotations

import os
import subprocess
import sys
import warnings
from pathlib import Path

import needs
import numpy as np
import pytest

import spirograd as sg
from spirograd.tools.events import Event, EventType

Image = needs.package("PIL.Image")
ROOT = Path(__file__).parents[2]


@pytest.fixture
def gui() -> sg.GUI:
    return sg.GUI("test", res=(32, 16), show_gui=False)


def _red(gui: sg.GUI) -> np.ndarray:
    return gui.get_image()[..., 0]


def _pixels() -> np.ndarray:
    return np.stack(np.meshgrid(np.arange(32), np.arange(16), indexing="ij"), -1).astype(np.float64)


def test_colours_and_pictures(gui: sg.GUI) -> None:
    gui.clear(0x112233)
    assert np.allclose(gui.get_image()[3, 4] * 255, [0x11, 0x22, 0x33, 255])
    picture = np.random.default_rng(0).random((32, 16, 3)).astype(np.float32)
    gui.set_image(picture)
    assert (gui.get_image()[..., :3] == picture).all()
    gui.set_image((picture * 255).astype(np.uint8))
    assert np.allclose(gui.get_image()[..., :3], (picture * 255).astype(np.uint8) / 255)
    gui.set_image(picture[..., 0])
    assert (gui.get_image()[..., :3] == picture[..., :1]).all()
    sg.init(arch=sg.cpu)
    field = sg.Vector.field(2, sg.f32, (32, 16))
    field.fill(0.5)
    gui.set_image(field)
    assert (gui.get_image()[5, 5] == [0.5, 0.5, 0, 1]).all()
    with pytest.raises(sg.SpirogradValueError, match=r"the window has \(32, 16\) pixels"):
        gui.set_image(picture[:31])


def test_a_disc_covers_what_is_near(gui: sg.GUI) -> None:
    gui.circles(np.array([[0.26, 0.51]]), radius=3.5, color=0xFF0000)
    distance = np.linalg.norm(_pixels() - np.array([0.26 * 32, 0.51 * 16]), axis=-1)
    assert np.allclose(_red(gui), np.clip(3.5 - distance, 0, 1), atol=1e-5) and not gui.get_image()[..., 1].any()


def test_many_discs_are_as_one_after_the_other(gui: sg.GUI) -> None:
    pos = (np.stack(np.meshgrid(np.arange(10), np.arange(5)), -1).reshape(-1, 2) * 3 + [2.3, 1.6]) / [32, 16]
    gui.circles(pos, radius=1.4, color=0xFF0000)
    many = _red(gui)
    gui.clear()
    for one in pos:
        gui.circle(one, 0xFF0000, 1.4)
    assert np.allclose(many, _red(gui), atol=1e-5) and many.sum() > 50


def test_discs_of_many_sizes_and_colours(gui: sg.GUI) -> None:
    pos = np.array([[0.25, 0.5], [0.75, 0.5], [2.0, 0.5], [np.nan, 0.5], [0.0, 0.0]])
    gui.circles(pos, radius=np.array([1.0, 3, 1, 1, 2]), palette=[0xFF0000, 0x00FF00], palette_indices=np.array([0, 1, 0, 0, 1]))
    image = gui.get_image()
    assert image[8, 8, :3].tolist() == [1, 0, 0] and image[24, 8, :3].tolist() == [0, 1, 0] and image[0, 0, 1] == 1
    assert np.isfinite(image).all() and image[..., 0].sum() == 1
    with pytest.raises(sg.SpirogradValueError, match="palette_indices"):
        gui.circles(pos, palette=[0xFF0000])


def test_a_line_covers_what_is_near(gui: sg.GUI) -> None:
    a, b = np.array([3.2, 1.6]), np.array([28.8, 8.0])
    gui.line(a / [32, 16], b / [32, 16], radius=2, color=0xFF0000)
    t = np.clip((_pixels() - a) @ (b - a) / ((b - a) @ (b - a)), 0, 1)[..., None]
    distance = np.linalg.norm(_pixels() - (a + t * (b - a)), axis=-1)
    assert np.allclose(_red(gui), np.clip(2 - distance, 0, 1), atol=1e-5)


@pytest.mark.parametrize("order", [(0, 1, 2), (0, 2, 1)])
def test_a_triangle_is_filled(gui: sg.GUI, order: tuple) -> None:
    corners = np.array([[0.1, 0.1], [0.9, 0.1], [0.5, 0.9]])[list(order)]
    gui.triangle(*corners, color=0xFF0000)
    x, y = np.moveaxis(_pixels() / [32, 16], -1, 0)
    inside = (y >= 0.1) & (y - 0.1 <= 2 * (x - 0.1)) & (y - 0.1 <= 2 * (0.9 - x))
    assert (_red(gui) == inside).all()


def test_other_shapes_cover_something(gui: sg.GUI) -> None:
    for draw in (
        lambda: gui.rect((0.2, 0.8), (0.8, 0.2)),
        lambda: gui.arrow((0.2, 0.2), (0.5, 0.5)),
        lambda: gui.lines(np.zeros((2, 2)), np.ones((2, 2)), color=np.array([0xFF0000, 0xFFFFFF])),
        lambda: gui.triangles(np.zeros((1, 2)), np.ones((1, 2)), np.array([[0, 1.0]])),
        lambda: gui.text("ab", (0.1, 0.9), font_size=12),
    ):
        gui.clear()
        draw()
        assert 5 < _red(gui).sum() < 300
    gui.text("a", (0.6, 0.9))
    assert _red(gui)[19:, :].sum() > 3, "text begins at its position"


def test_lines_have_radii_and_colours_of_their_own(gui: sg.GUI) -> None:
    ends = np.array([[0.1, 0.2], [0.2, 0.8]]), np.array([[0.9, 0.3], [0.8, 0.7]])
    for radii in ([1.0, 3.0], [2.5, 0.5]):
        gui.clear()
        for a, b, radius, color in zip(*ends, radii, (0xFF0000, 0x00FF00)):
            gui.line(a, b, radius, color)
        one_by_one = gui.get_image()
        gui.clear()
        gui.lines(*ends, radius=np.array(radii), color=np.array([0xFF0000, 0x00FF00]))
        np.testing.assert_array_equal(gui.get_image(), one_by_one)
    gui.clear()
    gui.arrows(ends[0], ends[1] - ends[0], radius=np.array([0.0, 2.0]))
    assert not _red(gui)[:, :5].any() and _red(gui)[:, 8:].any()


def test_what_cannot_be_drawn(gui: sg.GUI) -> None:
    some = np.full((5, 2), 0.5)
    for call, message in (
        (lambda: gui.circles(np.ones(5)), r"array of shape \(n, 2\), got \(5,\)"),
        (lambda: gui.circles(np.ones((4, 3))), r"array of shape \(n, 2\), got \(4, 3\)"),
        (lambda: gui.triangles(some, some, np.ones((5, 3))), r"got \(5, 3\)"),
        (lambda: gui.triangles(some, some, some[:4]), "got 5 and 5 and 4 positions"),
        (lambda: gui.lines(some, some[:4]), "got 5 and 4 positions"),
        (lambda: gui.circles(some, color="red"), "a colour is an integer, got 'red'"),
        (lambda: gui.circles(some, color=(1.0, 0.0, 0.0)), "there are 3 colours for 5 shapes: pass one for all, or one for each"),
        (lambda: gui.circles(some, np.ones(4)), "there are 4 radii for 5 shapes"),
        (lambda: gui.lines(some[:3], some[:3], np.ones(2)), "there are 2 radii for 3 shapes"),
        (lambda: gui.triangles(some, some, some, np.zeros(6, int)), "there are 6 colours for 5 shapes"),
        (lambda: gui.arrows(np.ones((4, 3)), some), r"got \(4, 3\)"),
        (lambda: gui.arrows(some, some[:4]), "got 5 and 4 positions"),
        (lambda: gui.circles(some, palette=[1, 2], palette_indices=[0, 1, 2, 1, 0]), "are from 0 to 2, and `palette` has 2 colours"),
    ):
        with pytest.raises(sg.SpirogradError, match=message):
            call()
    gui.circles(np.ones((0, 2)))
    gui.lines(some[:0], some[:0])


def test_frames_are_written_and_cleared(gui: sg.GUI, tmp_path: Path) -> None:
    gui.circle((0.5, 0.5), 0xFFFFFF, 4)
    gui.show(str(tmp_path / "frame.png"))
    assert sg.tools.imread(tmp_path / "frame.png")[16, 8].tolist() == [255] * 3
    assert not gui.get_image()[..., :3].any() and gui.frame == 1 and gui.running
    gui.running = False
    assert not gui.running


def test_frames_go_to_a_folder_or_a_film(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("frames", "film.gif"):
        monkeypatch.setenv("SG_GUI", str(tmp_path / name))
        monkeypatch.setenv("SG_GUI_FRAMES", "3")
        with sg.GUI("test", res=8) as gui:
            while gui.running:
                gui.clear(0x400000 * gui.frame)
                gui.show()
        assert gui.frame == 3
    assert [sg.tools.imread(p)[0, 0, 0] for p in sorted((tmp_path / "frames").iterdir())] == [0, 0x40, 0x80]
    with Image.open(tmp_path / "film.gif") as film:
        assert film.n_frames == 3


def test_without_a_display_a_warning_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("DISPLAY", raising=False)
    with pytest.warns(RuntimeWarning, match="there is no display: frames are not shown; set the environment variable SG_GUI=frames.gif"):
        gui = sg.GUI()
    assert gui.res == (512, 512) and not gui.visible and not gui.get_event() and not gui.is_pressed(gui.ESCAPE)
    with pytest.raises(sg.SpirogradRuntimeError, match="there is no window"):
        gui.get_key_event()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        sg.tools.imshow(np.zeros((4, 4)))  # ends


def test_events(gui: sg.GUI) -> None:
    def press(key: str, kind: EventType = EventType.Press) -> None:
        gui._events.put(Event(kind, key, (0.25, 0.75)))

    for key in ("Shift", "a", "LMB"):
        press(key)
    assert gui.is_pressed("b", "a") and not gui.is_pressed("b") and gui.get_cursor_pos() == (0.25, 0.75)
    assert gui.get_event((gui.PRESS, "a")) and gui.event.key == "a" and gui.event.modifier == ["Shift"]
    assert gui.has_key_event() and not gui.get_event(gui.RELEASE) and gui.event.key == "a"
    press("Shift", EventType.Release)
    press("b")
    assert [(e.key, e.modifier) for e in gui.get_events(gui.PRESS)] == [("b", [])] and not gui.is_pressed("Shift")
    assert gui.slider("a", 2, 5).value == 2 and gui.label("b").value == 0
    assert (gui.button("go"), gui.button("go", "start")) == ("WidgetButton_go", "start")


IN_A_WINDOW = """
import spirograd as sg
gui = sg.GUI("window", res=(40, 30))
assert gui.visible
quality, shown, go = gui.slider("quality", 1, 9), gui.label("shown"), gui.button("go")
quality.value = shown.value = 3
root, label = gui._display._root, gui._display._label
root.focus_force()
while gui.frame < 5:
    gui.circle((0.5, 0.5), radius=5)
    gui.show()
image = gui._display._image
assert image.get(20, 15) == (255, 255, 255) and image.get(0, 0) == (0, 0, 0)
label.event_generate("<ButtonPress-1>", x=10, y=24)
label.event_generate("<ButtonRelease-1>", x=10, y=24)
root.event_generate("<KeyPress-Escape>")
events = [(e.type.name, e.key) for e in gui.get_events()]
assert ("Press", "LMB") in events and ("Release", "LMB") in events, events
assert ("Press", gui.ESCAPE) in events, events
gui._display._close()
assert not gui.running and gui.get_event(gui.EXIT)
gui.close()
"""


@pytest.mark.needs("Xvfb")
def test_a_window_shows_frames_and_reports_events(tmp_path: Path) -> None:
    display = subprocess.Popen(["Xvfb", "-displayfd", "1", "-screen", "0", "320x240x24"], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    try:
        number = display.stdout.readline().decode().strip()
        environment = {**os.environ, "DISPLAY": f":{number}", "PYTHONPATH": str(ROOT)}
        (tmp_path / "program.py").write_text(IN_A_WINDOW)
        done = subprocess.run(
            [sys.executable, tmp_path / "program.py"], env=environment, capture_output=True, text=True, check=False, timeout=60
        )
        assert done.returncode == 0, done.stderr
    finally:
        display.terminate()
        display.wait()
