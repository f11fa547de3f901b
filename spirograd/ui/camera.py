"""The camera of a scene: matrices of the view and the projection, and moves by keys and the mouse."""

from __future__ import annotations

import enum
import math
import time
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from spirograd.base.near_names import NearNames
from spirograd.lang.matrix import Matrix, Vector

if TYPE_CHECKING:
    from spirograd.ui.window import Window

Floats = npt.NDArray[np.float32]
_STEEPEST = math.radians(89.0)


class ProjectionMode(enum.Enum):
    """How a camera projects."""

    Perspective = 0
    Orthogonal = 1


def euler_to_vec(yaw: float, pitch: float) -> Matrix:
    """Return the unit vector with these angles, in radians: (0, 0) is the z-axis."""
    return Vector([math.sin(yaw) * math.cos(pitch), math.sin(pitch), math.cos(yaw) * math.cos(pitch)])


def vec_to_euler(v: Matrix) -> tuple[float, float]:
    """Return the angles of a vector, yaw and pitch, in radians."""
    x, y, z = (float(entry) for entry in v.to_numpy())
    return math.atan2(x, z), math.asin(max(-1.0, min(1.0, y / max(math.hypot(x, y, z), 1e-30))))


class Camera(NearNames):
    """A camera at the origin that looks along the z-axis, until it is placed. Its vectors are ``curr_position``, ``curr_lookat``, the point
    that it looks at, and ``curr_up``."""

    def __init__(self) -> None:
        self.curr_position: Matrix = Vector([0.0, 0.0, 0.0])
        self.curr_lookat: Matrix = Vector([0.0, 0.0, 1.0])
        self.curr_up: Matrix = Vector([0.0, 1.0, 0.0])
        self._mode = ProjectionMode.Perspective
        self._fov, self._near, self._far = 45.0, 0.1, 1000.0
        self._edges = {"left": -1.0, "right": 1.0, "bottom": -1.0, "top": 1.0}
        self._last_time: float | None = None
        self._last_mouse: tuple[float, float] | None = None

    def position(self, x: float, y: float, z: float) -> None:
        """Move the camera to a point."""
        self.curr_position = Vector([float(x), float(y), float(z)])

    def lookat(self, x: float, y: float, z: float) -> None:
        """Turn the camera to a point."""
        self.curr_lookat = Vector([float(x), float(y), float(z)])

    def up(self, x: float, y: float, z: float) -> None:
        """Set the direction that is shown upwards."""
        self.curr_up = Vector([float(x), float(y), float(z)])

    def projection_mode(self, mode: ProjectionMode) -> None:
        """Set whether the projection is perspective or orthogonal."""
        self._mode = mode

    def fov(self, fov: float) -> None:
        """Set the vertical field of view, in degrees."""
        self._fov = float(fov)

    def left(self, left: float) -> None:
        """Set the left edge of an orthogonal projection."""
        self._edges["left"] = float(left)

    def right(self, right: float) -> None:
        """Set the right edge of an orthogonal projection."""
        self._edges["right"] = float(right)

    def top(self, top: float) -> None:
        """Set the upper edge of an orthogonal projection."""
        self._edges["top"] = float(top)

    def bottom(self, bottom: float) -> None:
        """Set the lower edge of an orthogonal projection."""
        self._edges["bottom"] = float(bottom)

    def z_near(self, z_near: float) -> None:
        """Set the distance of the near plane."""
        self._near = float(z_near)

    def z_far(self, z_far: float) -> None:
        """Set the distance of the far plane."""
        self._far = float(z_far)

    def get_view_matrix(self) -> Floats:
        """Return the matrix M of the view: ``(x, y, z, 1) @ M`` is a point as the camera sees it, which looks along -z."""
        eye, target, up = (np.array(v.to_numpy(), np.float64) for v in (self.curr_position, self.curr_lookat, self.curr_up))
        back = _unit(eye - target, np.array([0.0, 0.0, -1.0]))
        right = _unit(np.cross(up, back), np.array([1.0, 0.0, 0.0]))
        axes = np.stack([right, np.cross(back, right), back], 1)
        matrix = np.eye(4)
        matrix[:3, :3], matrix[3, :3] = axes, -eye @ axes
        return matrix.astype(np.float32)

    def get_projection_matrix(self, aspect: float) -> Floats:
        """Return the matrix of the projection, for a picture of width / height ``aspect``, to be multiplied from the right; depths are 1 at
        the near plane and 0 at the far one."""
        near, far, matrix = self._near, self._far, np.zeros((4, 4))
        if self._mode is ProjectionMode.Perspective:
            scale = 1 / math.tan(math.radians(self._fov) / 2)
            matrix[0, 0], matrix[1, 1] = scale / aspect, scale
            matrix[2, 2], matrix[2, 3], matrix[3, 2] = near / (far - near), -1, far * near / (far - near)
        else:
            left, right, bottom, top = self._edges.values()
            matrix[0, 0], matrix[1, 1], matrix[2, 2] = 2 / (right - left), 2 / (top - bottom), 1 / (far - near)
            matrix[3] = [-(right + left) / (right - left), -(top + bottom) / (top - bottom), far / (far - near), 1]
        return matrix.astype(np.float32)

    def track_user_inputs(
        self, window: Window, movement_speed: float = 1.0, yaw_speed: float = 2.0, pitch_speed: float = 2.0, hold_key: str | None = None
    ) -> None:
        """Move by the keys W, A, S, D, E and Q, at ``movement_speed`` units a second, and turn with the mouse, if ``hold_key`` is held or
        not given."""
        now = time.perf_counter()
        step = movement_speed * (now - self._last_time) if self._last_time is not None else 0.0
        self._last_time = now
        front = (self.curr_lookat - self.curr_position).normalized(1e-12)
        left = self.curr_up.cross(front).normalized(1e-12)
        for key, direction in (("w", front), ("s", -front), ("a", left), ("d", -left), ("e", self.curr_up), ("q", -self.curr_up)):
            if window.is_pressed(key):
                self.curr_position = self.curr_position + direction * step
                self.curr_lookat = self.curr_lookat + direction * step
        mouse = window.get_cursor_pos()
        if (hold_key is None or window.is_pressed(hold_key)) and self._last_mouse is not None and mouse != self._last_mouse:
            yaw, pitch = vec_to_euler(front)
            yaw -= (mouse[0] - self._last_mouse[0]) * yaw_speed
            pitch += (mouse[1] - self._last_mouse[1]) * pitch_speed
            self.curr_lookat = self.curr_position + euler_to_vec(yaw, max(-_STEEPEST, min(_STEEPEST, pitch)))
        self._last_mouse = mouse


def make_camera() -> Camera:
    """Return a new camera."""
    return Camera()


def _unit(v: npt.NDArray[np.float64], otherwise: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    length = np.linalg.norm(v)
    return v / length if length > 0 else otherwise
