"""Scenes: particles, meshes and lines in space, lights, and how they are drawn.

A face has its colour times the ambient light and, of each point light, the cosine of the angle between the normal and the direction to the
light. What a frame draws and lights is declared anew for each frame, as in the Taichi family.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from spirograd.base.errors import SpirogradRuntimeError, SpirogradValueError
from spirograd.base.near_names import NearNames
from spirograd.tools.pictures import as_array
from spirograd.ui.camera import Camera
from spirograd.ui.raster import Raster, clipped, disc_fragments, triangle_fragments

Floats = npt.NDArray[np.float32]
Draw = Callable[["View"], None]
GREY = (0.5, 0.5, 0.5)


def points_of(positions: object, dimensions: int, what: str) -> Floats:
    """Return positions of two or three coordinates as (n, dimensions) floats: a missing third coordinate is 0, and it is left out in two
    dimensions. Raises SpirogradValueError for other shapes."""
    array = as_array(positions)
    if array.ndim == 0 or array.shape[-1] not in (2, 3):
        raise SpirogradValueError(f"`{what}` has two or three coordinates for each point, got an array of shape {array.shape}")
    points = np.zeros((array.size // array.shape[-1], dimensions), np.float32)
    shared = min(dimensions, array.shape[-1])
    points[:, :shared] = array.reshape(-1, array.shape[-1])[:, :shared]
    return points


def hues_of(color: object, per_vertex_color: object, count: int) -> Floats:
    """Return a colour for each of ``count`` points, (count, 3)."""
    given = np.asarray(as_array(color if per_vertex_color is None else per_vertex_color), np.float32)
    hues = given.reshape(-1, given.shape[-1])[:, :3]
    if hues.shape[1] != 3 or (len(hues) != 1 and len(hues) < count):
        raise SpirogradValueError(f"a colour has three numbers in [0, 1], one colour for all or one for each of {count}, got {given.shape}")
    return np.broadcast_to(hues if len(hues) == 1 else hues[:count], (count, 3))


def radii_of(radius: object, per_vertex_radius: object, count: int) -> Floats:
    """Return a radius for each of ``count`` points."""
    return np.broadcast_to(
        np.asarray(as_array(radius if per_vertex_radius is None else per_vertex_radius), np.float32).reshape(-1)[:count], count
    )


def numbers_of(indices: object, count: int, offset: int = 0, used: int | None = None) -> npt.NDArray[np.int64]:
    """Return the vertices to draw, in order: ``indices``, or all of ``count``; ``used`` of them from ``offset``."""
    numbers = np.arange(count) if indices is None else as_array(indices).astype(np.int64).reshape(-1)
    return numbers[offset : len(numbers) if used is None else offset + used]


class View:
    """A picture being drawn by a camera, with its lights."""

    def __init__(self, view: Floats, projection: Floats, ambient: Floats, lights: list[tuple[Floats, Floats]], raster: Raster) -> None:
        self.raster, self._ambient, self._lights = raster, ambient, lights
        self._view, self._projection = view, projection
        self._pixels = np.array(raster.size, np.float32)

    def clip_points(self, points: Floats) -> Floats:
        """Return points in the clip space, (n, 4)."""
        return np.asarray(np.concatenate([points, np.ones_like(points[:, :1])], 1) @ self._view @ self._projection)

    def on_screen(self, clip: Floats) -> tuple[Floats, Floats]:
        """Return pixels (..., 2) and depths of points in the clip space; smaller depths are nearer."""
        with np.errstate(divide="ignore", invalid="ignore"):
            ndc = clip[..., :3] / clip[..., 3:]
        return np.asarray((ndc[..., :2] + 1) / 2 * self._pixels, np.float32), -ndc[..., 2]

    def lit(self, hues: Floats, points: Floats, normals: Floats, two_sided: bool) -> Floats:
        """Return colours of points with these normals, which are unit vectors, in light."""
        light = np.broadcast_to(self._ambient, hues.shape).copy()
        for position, color in self._lights:
            cosine = (normals * _units(position - points)).sum(-1, keepdims=True)
            light += color * (np.abs(cosine) if two_sided else np.maximum(cosine, 0))
        return np.asarray(hues * light, np.float32)

    def spheres(self, centres: Floats, radii: Floats, hues: Floats) -> None:
        """Draw spheres."""
        clip = self.clip_points(centres)
        pixels, depth = self.on_screen(clip)
        reach = radii * self._projection[1, 1] * self._pixels[1] / 2 / clip[:, 3]
        inside = np.flatnonzero((clip[:, 3] > 0) & (clip[:, 2] <= clip[:, 3]) & (clip[:, 2] >= 0))
        seen = inside[np.argsort(depth[inside])]  # nearest first: most of what is hidden need not be lit
        pixels, depth, reach, hues, centres = pixels[seen], depth[seen], np.maximum(reach[seen], 0.5), hues[seen], centres[seen]
        to_world = self._view[:3, :3].T
        for number, x, y, offset in disc_fragments(pixels, reach, self.raster.size):
            near = depth[number] < self.raster.depth[x, y]
            number, x, y, offset = number[near], x[near], y[near], offset[near]
            bulge = np.sqrt(np.maximum(0, 1 - (offset * offset).sum(1, keepdims=True)))
            normals = np.concatenate([offset, bulge], 1) @ to_world
            self.raster.write(x, y, self.lit(hues[number], centres[number], normals, False), depth[number])

    def triangles(self, clip: Floats, hues: Floats) -> None:
        """Draw triangles with the corners ``clip``, (n, 3, 4), in the clip space, and colours at the corners, (n, 3, 3)."""
        corners = np.concatenate([clip, hues], 2)
        corners = clipped(corners, corners[..., 3] - corners[..., 2])  # in front of the near plane, where the depth is 1
        pixels, depth = self.on_screen(corners[..., :4])
        for number, x, y, weights in triangle_fragments(pixels, self.raster.size):
            hue = (corners[number, :, 4:] * weights[..., None]).sum(1)
            self.raster.write(x, y, hue, (depth[number] * weights).sum(1))

    def segments(self, begin: Floats, end: Floats, width: float, hues: Floats) -> None:
        """Draw lines of a ``width`` in pixels between points, with colours at both ends, (n, 2, 3)."""
        clip = np.stack([self.clip_points(begin), self.clip_points(end)], 1)
        seen = (clip[..., 3] > clip[..., 2]).all(1)
        clip, hues = clip[seen], hues[seen]
        pixels, _ = self.on_screen(clip)
        along = _units(pixels[:, 1] - pixels[:, 0])
        side = np.stack([-along[:, 1], along[:, 0]], 1)[:, None] * max(width, 1.0) / self._pixels * clip[..., 3:]
        right, left = clip.copy(), clip.copy()
        right[..., :2] += side
        left[..., :2] -= side
        self.triangles(np.stack([right[:, 0], right[:, 1], left[:, 1]], 1), hues[:, [0, 1, 1]])
        self.triangles(np.stack([right[:, 0], left[:, 1], left[:, 0]], 1), hues[:, [0, 1, 0]])


class Scene(NearNames):
    """Objects and lights in space; `Canvas.scene` draws them. Positions and colours are fields or arrays, which each call copies."""

    def __init__(self) -> None:
        self._camera: Camera | None = None
        self._draws: list[Draw] = []
        self._ambient: Floats = np.zeros(3, np.float32)
        self._lights: list[tuple[Floats, Floats]] = []

    def set_camera(self, camera: Camera) -> None:
        """Look through ``camera``."""
        self._camera = camera

    def ambient_light(self, color: object) -> None:
        """Light all faces with ``color`` in this frame."""
        self._ambient = np.asarray(as_array(color), np.float32)[:3]

    def point_light(self, pos: object, color: object) -> None:
        """Add a light at ``pos`` in this frame."""
        self._lights.append((np.asarray(as_array(pos), np.float32)[:3], np.asarray(as_array(color), np.float32)[:3]))

    def particles(
        self,
        centers: object,
        radius: float,
        color: object = GREY,
        per_vertex_color: object = None,
        per_vertex_radius: object = None,
        index_offset: int = 0,
        index_count: int | None = None,
    ) -> None:
        """Draw spheres: ``index_count`` of them, from the one with the number ``index_offset``."""
        points = points_of(centers, 3, "centers")
        hues, radii = hues_of(color, per_vertex_color, len(points)), radii_of(radius, per_vertex_radius, len(points))
        chosen = numbers_of(None, len(points), index_offset, index_count)
        self._draws.append(lambda view: view.spheres(points[chosen], radii[chosen], hues[chosen]))

    def lines(
        self,
        vertices: object,
        width: float,
        indices: object = None,
        color: object = GREY,
        per_vertex_color: object = None,
        vertex_offset: int = 0,
        vertex_count: int | None = None,
        index_offset: int = 0,
        index_count: int | None = None,
    ) -> None:
        """Draw a line of ``width`` pixels for each two vertices, or for each two of ``indices``."""
        points = points_of(vertices, 3, "vertices")
        hues = hues_of(color, per_vertex_color, len(points))
        numbers = _vertices(indices, len(points), vertex_offset, vertex_count, index_offset, index_count)
        pairs = numbers[: len(numbers) // 2 * 2].reshape(-1, 2)
        self._draws.append(lambda view: view.segments(points[pairs[:, 0]], points[pairs[:, 1]], width, hues[pairs]))

    def mesh(
        self,
        vertices: object,
        indices: object = None,
        normals: object = None,
        color: object = GREY,
        per_vertex_color: object = None,
        two_sided: bool = False,
        vertex_offset: int = 0,
        vertex_count: int | None = None,
        index_offset: int = 0,
        index_count: int | None = None,
        show_wireframe: bool = False,
    ) -> None:
        """Draw a triangle for each three vertices, or for each three of ``indices``. ``normals``: of the vertices; without them each
        triangle is flat. ``two_sided``: light both sides; ``show_wireframe``: draw the edges only."""
        points = points_of(vertices, 3, "vertices")
        hues = hues_of(color, per_vertex_color, len(points))
        given = None if normals is None else _units(points_of(normals, 3, "normals"))
        numbers = _vertices(indices, len(points), vertex_offset, vertex_count, index_offset, index_count)
        faces = numbers[: len(numbers) // 3 * 3].reshape(-1, 3)
        self._draws.append(
            lambda view: _draw_faces(view, points[faces], hues[faces], None if given is None else given[faces], two_sided, show_wireframe)
        )

    def mesh_instance(
        self,
        vertices: object,
        indices: object = None,
        normals: object = None,
        color: object = GREY,
        per_vertex_color: object = None,
        two_sided: bool = False,
        transforms: object = None,
        instance_offset: int = 0,
        instance_count: int | None = None,
        vertex_offset: int = 0,
        vertex_count: int | None = None,
        index_offset: int = 0,
        index_count: int | None = None,
        show_wireframe: bool = False,
    ) -> None:
        """Draw a `mesh` once for each of ``transforms``, 4 x 4 matrices: ``instance_count`` of them, from ``instance_offset``."""
        points = points_of(vertices, 3, "vertices")
        matrices = np.eye(4, dtype=np.float32)[None] if transforms is None else as_array(transforms).astype(np.float32).reshape(-1, 4, 4)
        for number in numbers_of(None, len(matrices), instance_offset, instance_count):
            linear, shift = matrices[number, :3, :3], matrices[number, :3, 3]
            turned = None if normals is None else points_of(normals, 3, "normals") @ np.linalg.inv(linear)
            what = (points @ linear.T + shift, indices, turned, color, per_vertex_color, two_sided)
            self.mesh(*what, vertex_offset, vertex_count, index_offset, index_count, show_wireframe)

    def take(self, aspect: float) -> Callable[[Raster], None] | None:
        """Return what draws this frame, for a picture of width / height ``aspect``, and begin the next one. Returns None without objects;
        raises SpirogradRuntimeError without a camera."""
        draws, self._draws = self._draws, []
        ambient, lights, camera = self._ambient, self._lights, self._camera
        self._ambient, self._lights = np.zeros(3, np.float32), []
        if not draws:
            return None
        if camera is None:
            raise SpirogradRuntimeError("the scene has no camera: call `scene.set_camera(camera)` before it is drawn")
        matrices = camera.get_view_matrix(), camera.get_projection_matrix(aspect)  # now: it may move before the picture is drawn

        def draw(raster: Raster) -> None:
            view = View(*matrices, ambient, lights, raster)
            for each in draws:
                each(view)

        return draw


def _draw_faces(view: View, corners: Floats, hues: Floats, normals: Floats | None, two_sided: bool, edges_only: bool) -> None:
    """Draw triangles with the corners (n, 3, 3), lit at the corners."""
    if normals is None:
        flat = _units(np.cross(corners[:, 1] - corners[:, 0], corners[:, 2] - corners[:, 0]))
        normals = np.broadcast_to(flat[:, None], corners.shape)
    lit = view.lit(hues, corners, normals, two_sided)
    if edges_only:
        for first, second in ((0, 1), (1, 2), (2, 0)):
            view.segments(corners[:, first], corners[:, second], 1.0, lit[:, [first, second]])
        return
    clip = view.clip_points(corners.reshape(-1, 3)).reshape(-1, 3, 4)
    view.triangles(clip, lit)


def _vertices(
    indices: object, count: int, vertex_offset: int, vertex_count: int | None, index_offset: int, index_count: int | None
) -> npt.NDArray[np.int64]:
    """Return the vertices to draw, in order, by the arguments of the family: for indices, their part and what is added to each."""
    if indices is None:
        return numbers_of(None, count, vertex_offset, vertex_count)
    numbers = numbers_of(indices, count, index_offset, index_count) + vertex_offset
    if len(numbers) and not 0 <= numbers.min() <= numbers.max() < count:
        raise SpirogradValueError(f"`indices` go from {numbers.min()} to {numbers.max()}, and there are {count} vertices")
    return numbers


def _units(v: Floats) -> Floats:
    return np.asarray(v / np.maximum(np.linalg.norm(v, axis=-1, keepdims=True), 1e-20), np.float32)
