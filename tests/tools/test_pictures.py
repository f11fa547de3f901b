"""Pictures, videos and PLY files of `sg.tools`, read back with Pillow or by hand."""

from __future__ import annotations

import struct
import subprocess
import sys
from pathlib import Path

import needs
import numpy as np
import pytest

import spirograd as sg

Image = needs.package("PIL.Image")
RNG = np.random.default_rng(1)


def _rows(picture: np.ndarray) -> np.ndarray:
    """As files have it: rows from the top."""
    return picture.swapaxes(0, 1)[::-1]


@pytest.mark.parametrize("channels", [(), (1,), (3,), (4,)])
@pytest.mark.parametrize("dtype", ["uint8", "uint16", "float32", "float64"])
def test_pictures_are_written_from_the_lower_left_corner(tmp_path: Path, channels: tuple, dtype: str) -> None:
    exact = RNG.random((5, 3, *channels)) * 1.4 - 0.2
    given = exact.astype(dtype) if dtype.startswith("f") else (np.clip(exact, 0, 1) * np.iinfo(dtype).max).astype(dtype)
    sg.tools.imwrite(given, tmp_path / "a.png")
    expected = (
        (np.clip(given, 0, 1) * 255).astype(np.uint8) if dtype.startswith("f") else (given >> (8 * given.itemsize - 8)).astype(np.uint8)
    )
    written = np.asarray(Image.open(tmp_path / "a.png"))
    assert (written == _rows(expected).reshape(written.shape)).all()
    back = sg.tools.imread(tmp_path / "a.png")
    assert back.dtype == np.uint8 and (back == expected.reshape(5, 3, -1)).all()


def test_fields_and_arrays_are_pictures(tmp_path: Path) -> None:
    sg.init(arch=sg.cpu)
    values = RNG.random((4, 6, 3)).astype(np.float32)
    field, array = sg.Vector.field(3, sg.f32, (4, 6)), sg.Vector.ndarray(3, sg.f32, (4, 6))
    for number, x in enumerate((field, array)):
        x.from_numpy(values)
        sg.tools.imwrite(x, str(tmp_path / f"{number}.png"))
        assert (sg.tools.imread(tmp_path / f"{number}.png") == (values * 255).astype(np.uint8)).all()


def test_channels_are_converted(tmp_path: Path) -> None:
    sg.tools.imwrite(np.full((2, 2, 3), 100, np.uint8), tmp_path / "a.png")
    for channels in (1, 2, 3, 4):
        read = sg.tools.imread(tmp_path / "a.png", channels)
        assert read.shape == (2, 2, channels) and set(read.reshape(-1).tolist()) <= {100, 255}
    sg.tools.imwrite(np.full((2, 2, 4), 0.5), tmp_path / "a.jpg")
    assert sg.tools.imread(tmp_path / "a.jpg").shape == (2, 2, 3)


@pytest.mark.parametrize(
    ("picture", "name", "message"),
    [
        (np.zeros((2, 2), np.int32), "a.png", "a picture holds floats in [0, 1] or unsigned integers, got int32"),
        (np.zeros((2, 2), bool), "a.png", "got bool"),
        (np.zeros((2, 2, 2)), "a.png", "1, 3 or 4), got (2, 2, 2)"),
        (np.zeros((0, 2)), "a.png", "got (0, 2)"),
        (np.zeros((2, 2)), "a.xyz", "use a suffix such as `.png`"),
    ],
)
def test_what_is_no_picture_is_refused(tmp_path: Path, picture: np.ndarray, name: str, message: str) -> None:
    with pytest.raises((sg.SpirogradTypeError, sg.SpirogradValueError)) as caught:
        sg.tools.imwrite(picture, tmp_path / name)
    assert message in str(caught.value)
    with pytest.raises(sg.SpirogradValueError):
        sg.tools.imread(tmp_path / name, 5)


@pytest.mark.parametrize(("w", "h"), [(8, None), (2, 3), (3, None), (1, 9)])
def test_imresize_takes_the_nearest_element_towards_the_origin(w: int, h: int | None) -> None:
    picture = np.arange(24).reshape(4, 3, 2)
    resized = sg.tools.imresize(picture, w, h)
    assert resized.shape == (w, h or w, 2)
    assert all((resized[i, j] == picture[i * 4 // w, j * 3 // (h or w)]).all() for i in range(w) for j in range(h or w))
    with pytest.raises(sg.SpirogradValueError):
        sg.tools.imresize(picture, 0)


def _writer() -> sg.tools.PLYWriter:
    writer = sg.tools.PLYWriter(num_vertices=4, num_faces=2, comment="hello")
    writer.add_vertex_pos(np.arange(4.0), np.arange(4) + 0.5, np.zeros((2, 2)))
    writer.add_vertex_channel("mass", "double", np.arange(4) / 4)
    writer.add_vertex_id()
    writer.add_faces(np.array([[0, 1, 2], [1, 2, 3]]))
    writer.add_face_channel("kind", "uchar", [7, 9])
    return writer


HEADER = """ply
format {} 1.0
comment hello
element vertex 4
property float x
property float y
property float z
property double mass
property int id
element face 2
property list uchar int vertex_indices
property uchar kind
end_header
"""


def test_ply_as_text(tmp_path: Path) -> None:
    _writer().export_frame_ascii(3, str(tmp_path / "a.ply"))
    body = "0.0 0.5 0.0 0.0 0\n1.0 1.5 0.0 0.25 1\n2.0 2.5 0.0 0.5 2\n3.0 3.5 0.0 0.75 3\n3 0 1 2 7\n3 1 2 3 9\n"
    assert (tmp_path / "a_000003.ply").read_text() == HEADER.format("ascii") + body


def test_ply_in_binary(tmp_path: Path) -> None:
    _writer().export_frame(12, tmp_path / "a")
    written = (tmp_path / "a_000012.ply").read_bytes()
    header = HEADER.format("binary_little_endian").encode()
    vertices = b"".join(struct.pack("<3fdi", k, k + 0.5, 0, k / 4, k) for k in range(4))
    assert written == header + vertices + struct.pack("<B3iBB3iB", 3, 0, 1, 2, 7, 3, 1, 2, 3, 9)


def test_all_properties_of_points(tmp_path: Path) -> None:
    writer = sg.tools.PLYWriter(2, 1, face_type="quad")
    zeros = np.zeros(2)
    writer.add_vertex_pos(zeros, zeros, zeros)
    writer.add_vertex_normal(zeros, zeros, zeros)
    writer.add_vertex_vel(zeros, zeros, zeros)
    writer.add_vertex_rgba(zeros, zeros, zeros, zeros)
    writer.add_vertex_piece(zeros)
    writer.add_faces([0, 1, 0, 1])
    writer.add_face_id()
    writer.add_face_piece([3])
    writer.export_ascii(tmp_path / "a.ply")
    text = (tmp_path / "a.ply").read_text()
    names = [line.split()[-1] for line in text.splitlines() if line.startswith("property")]
    assert names == [
        "x",
        "y",
        "z",
        "nx",
        "ny",
        "nz",
        "vx",
        "vy",
        "vz",
        "red",
        "green",
        "blue",
        "Alpha",
        "piece",
        "vertex_indices",
        "id",
        "piece",
    ]
    assert text.endswith("\n4 0 1 0 1 0 3\n")


def test_wrong_ply(tmp_path: Path) -> None:
    wrong = [
        (lambda: sg.tools.PLYWriter(4, face_type="hex"), '`face_type` is "tri" or "quad"'),
        (lambda: sg.tools.PLYWriter(4).export(tmp_path / "a.ply"), "call `add_vertex_pos`"),
        (lambda: _writer().add_vertex_id(), "the vertices already have a property `id`"),
        (lambda: _writer().add_vertex_channel("k", "int", [0] * 5), "expected 4 numbers for the vertices, got 5"),
        (lambda: _writer().add_faces([0] * 5), "expected 6 numbers for the corners of faces, got 5"),
    ]
    for call, message in wrong:
        with pytest.raises(sg.SpirogradValueError) as caught:
            call()
        assert message in str(caught.value)


def test_a_property_without_a_type_of_ply_is_left_out(tmp_path: Path) -> None:
    writer = _writer()
    with pytest.warns(UserWarning, match="property `k` is omitted: PLY has no type 'half'"):
        writer.add_vertex_channel("k", "half", [0] * 4)
    writer.export_ascii(tmp_path / "a.ply")
    assert (tmp_path / "a.ply").read_text().startswith(HEADER.format("ascii"))


def test_videos(tmp_path: Path) -> None:
    manager = sg.tools.VideoManager(
        tmp_path / "v", video_filename="film", framerate=10, automatic_build=False, post_processor=lambda x: 1 - x
    )
    frames = [np.full((6, 4, 3), k / 4, np.float32) for k in range(4)]
    manager.write_frame(frames[0])
    manager.write_frames(frames[1:])
    assert manager.frame_counter == 4 and sg.tools.imread(tmp_path / "v/frames/000003.png").tolist() == [[[63] * 3] * 4] * 6
    manager.make_video(mp4=False)
    with Image.open(manager.get_output_filename(".gif")) as film:
        assert (film.n_frames, film.size, film.info["duration"]) == (4, (6, 4), 100)
    with pytest.raises(sg.SpirogradValueError, match="frames of this video are 6 by 4"):
        manager.write_frame(np.zeros((4, 6)))
    manager.clean_frames()
    assert not list((tmp_path / "v/frames").iterdir()) and manager.frame_counter == 0
    with pytest.raises(sg.SpirogradValueError, match="there are no frames"):
        manager.make_video()


@pytest.mark.needs("imageio_ffmpeg")
def test_mp4_has_all_frames_in_even_sizes(tmp_path: Path) -> None:
    import imageio_ffmpeg

    manager = sg.tools.VideoManager(tmp_path, framerate=24)
    manager.write_frames(np.full((31, 17, 3), k / 8, np.float32) for k in range(8))  # 4 and 8 make the videos
    count, seconds = imageio_ffmpeg.count_frames_and_secs(str(tmp_path / "video.mp4"))
    assert count == 8 and abs(seconds - 8 / 24) < 0.05
    frames = imageio_ffmpeg.read_frames(str(tmp_path / "video.mp4"))
    assert next(frames)["size"] == (32, 18)
    means = [np.frombuffer(frame, np.uint8).mean() for frame in frames]
    assert np.allclose(means, [k / 8 * 255 for k in range(8)], atol=4)


def test_without_pillow_the_package_is_named(tmp_path: Path) -> None:
    code = "import sys; sys.modules['PIL'] = None; import numpy, spirograd as sg; sg.tools.imwrite(numpy.zeros((2, 2)), 'a.png')"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert "a picture needs the package pillow, which is not installed" in done.stderr
    assert "pip install 'spirograd[media]'" in done.stderr
