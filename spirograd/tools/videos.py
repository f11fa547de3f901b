"""Frames as files: numbered PNG, animated GIF, MP4. `VideoManager` collects the frames of a program in a folder."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterable
from pathlib import Path

import numpy as np

from spirograd.base.arrays import Array
from spirograd.base.errors import SpirogradValueError
from spirograd.tools.media_packages import media_package
from spirograd.tools.pictures import as_array, imwrite

_FIRST_BUILD = 4  # with `automatic_build`, videos are made after this number of frames, and whenever their number has doubled


class VideoManager:
    """Writes frames to ``output_dir/frames``, and makes videos of them: ``output_dir/video.mp4`` and ``video.gif``.

    ``video_filename``: another name, without suffix. ``width``, ``height``: the size of all frames, by default that of the first.
    ``post_processor``: called with each frame, an array; its result is written. ``framerate``: frames per second. ``automatic_build``:
    update the videos after 4, 8, 16 ... frames. MP4 needs imageio-ffmpeg, which `spirograd[media]` installs.
    """

    def __init__(
        self,
        output_dir: str | Path,
        video_filename: str | None = None,
        width: int | None = None,
        height: int | None = None,
        post_processor: Callable[[Array], object] | None = None,
        framerate: float = 24,
        automatic_build: bool = True,
    ) -> None:
        self.directory = str(output_dir)
        self.frame_directory = str(Path(output_dir) / "frames")
        self.video_filename, self.width, self.height = video_filename, width, height
        self.post_processor, self.framerate, self.automatic_build = post_processor, framerate, automatic_build
        self.frame_counter = 0
        self.frame_fns: list[str] = []
        self._next_build = _FIRST_BUILD
        Path(self.frame_directory).mkdir(parents=True, exist_ok=True)

    def get_output_filename(self, suffix: str) -> str:
        """Return the path of the video with this suffix."""
        return str(Path(self.directory) / f"{self.video_filename or 'video'}{suffix}")

    def get_frame_directory(self) -> str:
        """Return the folder of the frames."""
        return self.frame_directory

    def write_frame(self, img: object) -> None:
        """Add a picture (see `imwrite`). Raises SpirogradValueError if its size differs."""
        frame = as_array(img) if self.post_processor is None else as_array(self.post_processor(as_array(img)))
        self.width, self.height = self.width or frame.shape[0], self.height or frame.shape[1]
        if frame.shape[:2] != (self.width, self.height):
            size = f"{self.width} by {self.height}"
            raise SpirogradValueError(f"frames of this video are {size}, got {frame.shape}: scale it with `sg.tools.imresize`")
        name = f"{self.frame_counter:06d}.png"
        imwrite(frame, Path(self.frame_directory) / name)
        self.frame_fns.append(name)
        self.frame_counter += 1
        if self.automatic_build and self.frame_counter == self._next_build:
            self._next_build *= 2
            self.make_video()

    def write_frames(self, images: Iterable[object]) -> None:
        """Add the pictures ``images``, as `write_frame`."""
        for img in images:
            self.write_frame(img)

    def clean_frames(self) -> None:
        """Remove the files of the frames, and start again."""
        shutil.rmtree(self.frame_directory)
        Path(self.frame_directory).mkdir()
        self.frame_fns.clear()
        self.frame_counter = 0

    def make_video(self, mp4: bool = True, gif: bool = True) -> None:
        """Make the videos of all frames so far: an ``mp4``, a ``gif``, or both."""
        frames = [Path(self.frame_directory) / name for name in self.frame_fns]
        for suffix in [".mp4"] * mp4 + [".gif"] * gif:
            write_video(frames, self.get_output_filename(suffix), self.framerate)


def write_video(frames: list[Path], path: str | Path, framerate: float) -> None:
    """Make an animated GIF or an MP4, by the suffix of ``path``, from the picture files ``frames``, which have the same size."""
    if not frames:
        raise SpirogradValueError(f"there are no frames for {path}: call `write_frame` before the video is made")
    images = media_package("PIL.Image", "a video")
    if Path(path).suffix == ".gif":
        first, *others = (images.open(frame).convert("RGB") for frame in frames)
        first.save(path, save_all=True, append_images=others, duration=max(1, round(1000 / framerate)), loop=0)
        return
    with images.open(frames[0]) as first:
        size = first.size
    # Sides of an MP4 are even: a last row or column is repeated.
    even = tuple(side + side % 2 for side in size)
    sink = media_package("imageio_ffmpeg", "an MP4").write_frames(
        str(path), even, fps=framerate, macro_block_size=2, ffmpeg_log_level="error"
    )
    sink.send(None)
    for frame in frames:
        with images.open(frame) as image:
            pixels = np.asarray(image.convert("RGB"))
        sink.send(np.ascontiguousarray(np.pad(pixels, ((0, size[1] % 2), (0, size[0] % 2), (0, 0)), "edge")))
    sink.close()
