"""`sg.ui`: what scenes and canvases draw, against geometry; matrices of cameras against those of Taichi 1.7.4; windows without display."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from pathlib import Path

import needs
import numpy as np
import pytest

import spirograd as sg
from spirograd.tools.events import Event, EventType
from spirograd.ui.camera import euler_to_vec, vec_to_euler
from spirograd.ui.raster import clipped

Image = needs.package("PIL.Image")
WIDTH, HEIGHT = 200, 100
RED = (1.0, 0.0, 0.0)


@pytest.fixture
def window() -> sg.ui.Window:
    return sg.ui.Window("test", (WIDTH, HEIGHT), show_window=False)


def _centres() -> np.ndarray:
    return np.stack(np.meshgrid(np.arange(WIDTH), np.arange(HEIGHT), indexing="ij"), -1) + 0.5


def _red(window: sg.ui.Window) -> np.ndarray:
    return window.get_image_buffer_as_numpy()[..., 0] > 0.01


def _camera(window: sg.ui.Window) -> sg.ui.Scene:
    scene, camera = window.get_scene(), sg.ui.Camera()
    camera.position(0, 0, 5)
    camera.lookat(0, 0, 0)
    scene.set_camera(camera)
    return scene


def test_shapes_of_the_canvas(window: sg.ui.Window) -> None:
    canvas, centres = window.get_canvas(), _centres()
    canvas.circles(np.array([[0.25, 0.5]]), radius=0.1, color=RED)  # of the height
    assert (_red(window) == (np.linalg.norm(centres - [50, 50], axis=-1) <= 10)).all()
    window.show()
    canvas.lines(np.array([[0.1, 0.5], [0.9, 0.5]]), width=0.1, color=RED)
    assert (_red(window) == ((abs(centres[..., 0] - 100) < 80) & (abs(centres[..., 1] - 50) < 5))).all()
    window.show()
    corners = np.array([[0.1, 0.1], [0.5, 0.1], [0.1, 0.9]])
    canvas.triangles(corners, indices=np.array([2, 0, 1]), per_vertex_color=np.tile(np.float32(RED), (3, 1)))
    x, y = centres[..., 0], centres[..., 1]
    assert (_red(window) == ((x >= 20) & (y >= 10) & (x + y <= 110))).all()


def test_later_shapes_cover_earlier_ones_and_the_background_stays(window: sg.ui.Window) -> None:
    canvas = window.get_canvas()
    canvas.circles(np.array([[0.5, 0.5]]), radius=0.3, color=RED)
    canvas.circles(np.array([[0.5, 0.5]]), radius=0.1, color=(0.0, 1.0, 0.0))
    canvas.set_background_color((0.1, 0.2, 0.3))  # behind what is drawn already
    for expected in ([0, 1, 0], [0.1, 0.2, 0.3]):
        picture = window.get_image_buffer_as_numpy()
        assert np.allclose(picture[100, 50, :3], expected) and np.allclose(picture[2, 2], [0.1, 0.2, 0.3, 1])
        window.show()


def test_positions_have_two_or_three_coordinates(window: sg.ui.Window) -> None:
    canvas, scene = window.get_canvas(), _camera(window)
    canvas.circles(np.array([[0.5, 0.5, 9.0]]), radius=0.1, color=RED)
    assert _red(window)[100, 50]
    window.show()
    scene.ambient_light((1, 1, 1))
    scene.particles(np.zeros((1, 2)), radius=1.0, color=RED)
    canvas.scene(scene)
    assert _red(window)[100, 50]
    with pytest.raises(
        sg.SpirogradValueError, match=r"`centers` has two or three coordinates for each point, got an array of shape \(4,\)"
    ):
        canvas.circles(np.zeros(4), radius=0.1)


def test_pictures_are_scaled(window: sg.ui.Window) -> None:
    small = np.random.default_rng(0).random((20, 10, 3)).astype(np.float32)
    window.get_canvas().set_image(small)
    assert np.allclose(window.get_image_buffer_as_numpy()[..., :3], small.repeat(10, 0).repeat(10, 1))
    window.get_canvas().set_image((small[..., 0] * 255).astype(np.uint8))
    assert np.allclose(window.get_image_buffer_as_numpy()[35, 45, :3], int(small[3, 4, 0] * 255) / 255)


def test_contours_and_vector_fields(window: sg.ui.Window) -> None:
    values = np.linspace(0, 8, WIDTH, dtype=np.float32)[:, None].repeat(HEIGHT, 1)
    window.get_canvas().contour(values, normalize=True)
    picture = window.get_image_buffer_as_numpy()[:, 0, :3] * 255
    assert np.allclose(picture[[0, -1]], [[0x0D, 0x08, 0x87], [0xF0, 0xF9, 0x21]]) and (np.diff(picture[:150, 0]) > 0).all()
    with pytest.raises(sg.SpirogradValueError, match="`cmap_name` is one of plasma"):
        window.get_canvas().contour(values, "nothing")
    window.show()
    vectors = np.zeros((10, 10, 2), np.float32)
    vectors[5, 5] = [2, 0]
    window.get_canvas().vector_field(vectors, color=RED)
    assert np.flatnonzero(_red(window).any(1)).tolist() == list(range(100, 120))


def test_a_sphere_is_lit_on_the_side_of_the_light(window: sg.ui.Window) -> None:
    scene = _camera(window)
    scene.ambient_light((0.25, 0.25, 0.25))
    scene.point_light((100, 0, 0), (0.5, 0.5, 0.5))
    scene.particles(np.zeros((1, 3)), radius=1.0, color=(1.0, 1.0, 1.0))
    window.get_canvas().scene(scene)
    picture = window.get_image_buffer_as_numpy()[..., 0]
    radius = HEIGHT / 2 / np.tan(np.radians(22.5)) / 5
    offset = (_centres() - [100, 50]) / radius
    inside = (offset**2).sum(-1) <= 1
    assert (abs((picture > 0).sum() - inside.sum())) <= 2
    expected = 0.25 + 0.5 * np.maximum(offset[..., 0], 0)
    assert np.abs(picture - expected)[inside & (picture > 0)].max() < 1e-3


def test_nearer_faces_hide_others_and_triangles_are_clipped(window: sg.ui.Window) -> None:
    scene = _camera(window)
    scene.ambient_light((1, 1, 1))
    floor = np.array([[-500, -1, -500], [500, -1, -500], [500, -1, 500], [-500, -1, 500]], np.float32)  # it passes below the camera
    wall = np.array([[-1, -9, 0], [1, -9, 0], [1, 9, 0], [-1, 9, 0]], np.float32)
    faces = np.array([0, 2, 1, 0, 3, 2], np.int32)
    scene.mesh(wall, faces, color=(0, 0, 1))
    scene.mesh(floor, faces, color=RED)
    scene.lines(np.array([[-9.0, 0.5, -1], [9, 0.5, -1]]), width=1, color=(0, 1, 0))
    window.get_canvas().scene(scene)
    depth, picture = window.get_depth_buffer_as_numpy(), window.get_image_buffer_as_numpy()[..., :3]
    assert picture[3, 3].tolist() == [1, 0, 0] and (picture[3, 50:70] == [0, 1, 0]).all(1).any()
    assert picture[100, 3].tolist() == [1, 0, 0] and picture[100, 45].tolist() == [0, 0, 1]  # in front of the wall the floor
    assert not picture[3, 80:].any() and not depth[3, 80:].any()
    assert np.isclose(depth[100, 45], 0.1 / 5 * (1000 - 5) / (1000 - 0.1), rtol=1e-3)
    assert depth[100, 3] > depth[100, 45] > 0


def test_what_a_frame_draws_is_declared_anew(window: sg.ui.Window) -> None:
    scene = _camera(window)
    scene.particles(np.zeros((1, 3)), radius=1.0)  # without light, it is black
    window.get_canvas().scene(scene)
    assert not window.get_image_buffer_as_numpy()[..., :3].any() and window.get_depth_buffer_as_numpy().any()
    window.show()
    window.get_canvas().scene(scene)
    assert not window.get_depth_buffer_as_numpy().any()
    with pytest.raises(sg.SpirogradRuntimeError, match="the scene has no camera"):
        empty = sg.ui.Scene()
        empty.particles(np.zeros((1, 3)), 1.0)
        window.get_canvas().scene(empty)


def test_instances_and_parts(window: sg.ui.Window) -> None:
    scene, triangle = _camera(window), np.array([[-0.2, -0.2, 0], [0.2, -0.2, 0], [0, 0.2, 0]], np.float32)
    shifted = np.tile(np.eye(4, dtype=np.float32), (3, 1, 1))
    shifted[:, 0, 3] = [-1, 0, 1]
    scene.ambient_light((1, 1, 1))
    scene.mesh_instance(triangle, color=RED, transforms=shifted, instance_offset=1)
    scene.particles(np.array([[-1.0, 1, 0], [1, 1, 0]]), radius=0.1, color=(0, 0, 1), index_offset=1, index_count=1)
    window.get_canvas().scene(scene)
    picture = window.get_image_buffer_as_numpy()
    at = {x: (round(100 + x * 24.14), 50) for x in (-1, 0, 1)}
    assert [bool(picture[at[x]][0]) for x in (-1, 0, 1)] == [False, True, True]
    assert picture[124, 74, 2] == 1 and not picture[76, 74, 2]


def test_matrices_are_those_of_the_family() -> None:
    camera = sg.ui.make_camera()
    camera.position(1, 2, 3)
    camera.lookat(0, 0, 0)
    camera.fov(50)
    view = [
        [0.94868338, -0.16903086, 0.26726124, 0],
        [0, 0.84515429, 0.53452247, 0],
        [-0.31622779, -0.5070926, 0.80178368, 0],
        [0, 0, -3.7416573, 1],
    ]
    assert np.allclose(camera.get_view_matrix(), view, atol=1e-6)
    assert np.allclose(
        camera.get_projection_matrix(1.5),
        [[1.4296712, 0, 0, 0], [0, 2.1445069, 0, 0], [0, 0, 1.0001e-4, -1], [0, 0, 0.10001, 0]],
        atol=1e-6,
    )
    camera.z_near(0.2)
    camera.z_far(50)
    camera.projection_mode(sg.ui.ProjectionMode.Orthogonal)
    assert np.allclose(
        camera.get_projection_matrix(2.0), [[1, 0, 0, 0], [0, 1, 0, 0], [0, 0, 0.02008032, 0], [0, 0, 1.004016, 1]], atol=1e-6
    )
    for yaw, pitch in ((0.3, 0.2), (-2.0, -1.2), (3.1, 0.0)):
        assert np.allclose(vec_to_euler(euler_to_vec(yaw, pitch) * 3.0), (yaw, pitch), atol=1e-5)


def test_clipping_keeps_the_part_inside() -> None:
    rng = np.random.default_rng(1)
    triangles = rng.random((200, 3, 2)).astype(np.float32) - 0.5
    parts = clipped(triangles, triangles[..., 0])

    def area(t: np.ndarray) -> np.ndarray:
        a, b = t[:, 1] - t[:, 0], t[:, 2] - t[:, 0]
        return abs(a[:, 0] * b[:, 1] - a[:, 1] * b[:, 0]) / 2

    assert parts[..., 0].min() > -1e-6
    rest = clipped(triangles, -triangles[..., 0])
    assert np.isclose(area(parts).sum() + area(rest).sum(), area(triangles).sum(), rtol=1e-5)


def test_widgets_and_events_without_a_display(window: sg.ui.Window) -> None:
    panel = window.get_gui()
    with panel.sub_window("settings", 0.1, 0.1, 0.3, 0.3) as part:
        assert part is panel is window.GUI
        assert (part.slider_int("n", 3, 0, 10), part.slider_float("x", 0.5, 0, 1), part.checkbox("on", True)) == (3, 0.5, True)
        assert (part.color_edit_3("hue", (0.1, 0.2, 0.3)), part.button("go")) == ((0.1, 0.2, 0.3), False)
        part.text("some text", color=RED)
    assert _red(window)[15:100, 70:95].any()
    events = window._gui._events
    for kind, key in ((EventType.Move, "Motion"), (EventType.Press, "a"), (EventType.Press, "LMB"), (EventType.Release, "a")):
        events.put(Event(kind, key, (0.5, 0.25)))
    assert window.is_pressed(sg.ui.LMB) and not window.is_pressed("a") and window.get_cursor_pos() == (0.5, 0.25)
    assert window.get_event(sg.ui.PRESS) and window.event is not None and window.event.key == "a"
    assert [event.key for event in window.get_events()] == ["LMB", "a"]
    assert window.running
    window.running = False
    assert not window.running


def test_a_camera_turns_with_the_mouse(window: sg.ui.Window) -> None:
    camera, events = sg.ui.Camera(), window._gui._events
    for x in (0.5, 0.6):
        events.put(Event(EventType.Press, "RMB", (x, 0.5)))
        camera.track_user_inputs(window, hold_key=sg.ui.RMB)
    assert np.allclose(camera.curr_lookat.to_numpy(), euler_to_vec(-0.2, 0).to_numpy(), atol=1e-6)


PROGRAM = """
import taichi as ti
from taichi.ui.utils import euler_to_vec

ti.init(arch=ti.cpu)
x = ti.Vector.field(3, ti.f32, 8)
window = ti.ui.Window("balls", (32, 24), vsync=True)
canvas, scene, camera = window.get_canvas(), ti.ui.Scene(), ti.ui.make_camera()
camera.position(0, 0, 3)
frames = 0
while window.running:
    camera.track_user_inputs(window, movement_speed=0.03, hold_key=ti.ui.RMB)
    scene.set_camera(camera)
    scene.ambient_light((0.5, 0.5, 0.5))
    scene.particles(x, radius=0.5, color=(1, 1, 1))
    canvas.scene(scene)
    window.show()
    frames += 1
print(frames)
"""


def test_programs_of_the_family_write_frames(tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(textwrap.dedent(PROGRAM))
    environment = os.environ | {"SG_GUI": str(tmp_path / "frames"), "SG_GUI_FRAMES": "3", "PYTHONPATH": str(Path(__file__).parents[2])}
    command = [sys.executable, "-m", "spirograd.compat.taichi", str(tmp_path / "program.py")]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.stdout.endswith("3\n"), done.stderr
    assert [file.name for file in sorted((tmp_path / "frames").iterdir())] == ["000000.png", "000001.png", "000002.png"]
