"""`PLYWriter`: points and faces with their properties, in the Polygon File Format (Turk, 1994)."""

from __future__ import annotations

import warnings
from collections.abc import Iterable
from pathlib import Path

import numpy as np
import numpy.typing as npt

from spirograd.base.arrays import Array
from spirograd.base.errors import SpirogradValueError
from spirograd.base.records import dataclass
from spirograd.tools.pictures import as_array

_TYPES = {
    "char": "i1", "int8": "i1", "uchar": "u1", "uint8": "u1", "short": "<i2", "int16": "<i2", "ushort": "<u2", "uint16": "<u2",
    "int": "<i4", "int32": "<i4", "uint": "<u4", "uint32": "<u4", "float": "<f4", "float32": "<f4", "double": "<f8", "float64": "<f8",
}  # fmt: skip
_CORNERS = {"tri": 3, "quad": 4}


@dataclass(frozen=True, slots=True)
class _Channel:
    """A property of each vertex or each face."""

    name: str
    type: str
    values: Array


class PLYWriter:
    """Collects properties of ``num_vertices`` points and ``num_faces`` faces, and writes them.

    ``face_type``: ``"tri"`` or ``"quad"``; ``comment``: a line of the head of the file. Arrays may be fields, and are flattened. Raises
    SpirogradValueError where an array has another number of elements, for names that are taken, and when positions, or the corners of the
    faces, are missing. A property whose type PLY does not have is omitted, with a warning.
    """

    def __init__(self, num_vertices: int, num_faces: int = 0, face_type: str = "tri", comment: str = "created by PLYWriter") -> None:
        if num_vertices < 1 or num_faces < 0:
            raise SpirogradValueError(
                f"a PLY file has at least one vertex and no negative number of faces, got {num_vertices}, {num_faces}"
            )
        if face_type not in _CORNERS:
            raise SpirogradValueError(f'`face_type` is "tri" or "quad", got {face_type!r}')
        self.num_vertices, self.num_faces, self.comment = num_vertices, num_faces, comment
        self._corners = _CORNERS[face_type]
        self._vertices: list[_Channel] = []
        self._faces: list[_Channel] = []
        self._indices: npt.NDArray[np.int32] | None = None

    def add_vertex_channel(self, key: str, data_type: str, data: object) -> None:
        """Add a property ``key`` of the vertices with the values ``data``; ``data_type``: a type of PLY, such as ``"float"``, ``"double"``,
        ``"int"`` or ``"uchar"``.
        """
        _add(self._vertices, key, data_type, data, self.num_vertices, "vertices")

    def add_face_channel(self, key: str, data_type: str, data: object) -> None:
        """Add a property of the faces, as `add_vertex_channel`."""
        _add(self._faces, key, data_type, data, self.num_faces, "faces")

    def add_vertex_pos(self, x: object, y: object, z: object) -> None:
        """Add positions: ``x``, ``y``, ``z``."""
        self._add_floats("x y z", x, y, z)

    def add_vertex_normal(self, nx: object, ny: object, nz: object) -> None:
        """Add normals: ``nx``, ``ny``, ``nz``."""
        self._add_floats("nx ny nz", nx, ny, nz)

    def add_vertex_vel(self, vx: object, vy: object, vz: object) -> None:
        """Add velocities: ``vx``, ``vy``, ``vz``."""
        self._add_floats("vx vy vz", vx, vy, vz)

    def add_vertex_color(self, r: object, g: object, b: object) -> None:
        """Add colours: ``r``, ``g``, ``b``, each in [0, 1]."""
        self._add_floats("red green blue", r, g, b)

    def add_vertex_alpha(self, alpha: object) -> None:
        """Add the opacity ``alpha``, in [0, 1]."""
        self._add_floats("Alpha", alpha)

    def add_vertex_rgba(self, r: object, g: object, b: object, a: object) -> None:
        """Add colours and opacity: ``r``, ``g``, ``b``, ``a``, each in [0, 1]."""
        self._add_floats("red green blue Alpha", r, g, b, a)

    def add_vertex_id(self) -> None:
        """Add the numbers of the vertices."""
        self.add_vertex_channel("id", "int", np.arange(self.num_vertices))

    def add_vertex_piece(self, piece: object) -> None:
        """Add the number of the ``piece`` of each vertex."""
        self.add_vertex_channel("piece", "int", piece)

    def add_face_id(self) -> None:
        """Add the numbers of the faces."""
        self.add_face_channel("id", "int", np.arange(self.num_faces))

    def add_face_piece(self, piece: object) -> None:
        """Add the number of the ``piece`` of each face."""
        self.add_face_channel("piece", "int", piece)

    def add_faces(self, indices: object) -> None:
        """Add all faces. ``indices``: the numbers of their corners, one face after the other."""
        self._indices = _values(indices, self.num_faces * self._corners, "corners of faces").astype("<i4").reshape(-1, self._corners)

    def export(self, path: str | Path) -> None:
        """Write a binary file at ``path``."""
        vertices, faces = self._tables()
        with open(path, "wb") as file:
            file.write(self._header("binary_little_endian").encode())
            file.write(vertices.tobytes())
            file.write(faces.tobytes())

    def export_ascii(self, path: str | Path) -> None:
        """Write a text file at ``path``."""
        lines = (" ".join(str(x) for x in _flat(row)) for table in self._tables() for row in table)
        Path(path).write_text(self._header("ascii") + "".join(f"{line}\n" for line in lines), encoding="ascii", newline="\n")

    def export_frame(self, series_num: int, path: str | Path) -> None:
        """Write a binary file at ``path``; ``series_num`` is added to its name, with six digits."""
        self.export(_numbered(path, series_num))

    def export_frame_ascii(self, series_num: int, path: str | Path) -> None:
        """Write a text file at ``path``; ``series_num`` is added to its name, with six digits."""
        self.export_ascii(_numbered(path, series_num))

    def _add_floats(self, names: str, *arrays: object) -> None:
        for name, array in zip(names.split(), arrays):
            self.add_vertex_channel(name, "float", array)

    def _header(self, form: str) -> str:
        lines = ["ply", f"format {form} 1.0", f"comment {self.comment}", f"element vertex {self.num_vertices}"]
        lines += [f"property {c.type} {c.name}" for c in self._vertices]
        if self.num_faces:
            lines += [f"element face {self.num_faces}", "property list uchar int vertex_indices"]
            lines += [f"property {c.type} {c.name}" for c in self._faces]
        return "\n".join([*lines, "end_header", ""])

    def _tables(self) -> tuple[Array, Array]:
        """Return a record for each vertex and for each face, in the layout of the file."""
        if not {"x", "y", "z"} <= {c.name for c in self._vertices}:
            raise SpirogradValueError("positions of the vertices are missing: call `add_vertex_pos`")
        if self.num_faces and self._indices is None:
            raise SpirogradValueError("corners of the faces are missing: call `add_faces`")
        vertices = _records([(c.name, c.values) for c in self._vertices], self.num_vertices)
        corners = [] if self._indices is None else [(" count", np.full(self.num_faces, self._corners, "u1")), (" corners", self._indices)]
        return vertices, _records(corners + [(c.name, c.values) for c in self._faces], self.num_faces)


def _add(channels: list[_Channel], name: str, data_type: str, data: object, count: int, what: str) -> None:
    if data_type not in _TYPES:
        warnings.warn(f"property `{name}` is omitted: PLY has no type {data_type!r}; use one of {', '.join(_TYPES)}", stacklevel=3)
        return
    if name in (c.name for c in channels):
        raise SpirogradValueError(f"the {what} already have a property `{name}`: give this one another name")
    channels.append(_Channel(name, data_type, _values(data, count, what).astype(_TYPES[data_type])))


def _values(data: object, count: int, what: str) -> Array:
    array = as_array(data).reshape(-1)
    if array.size != count:
        raise SpirogradValueError(f"expected {count} numbers for the {what}, got {array.size}")
    return array


def _records(columns: list[tuple[str, Array]], count: int) -> Array:
    table = np.zeros(count if columns else 0, [(name, values.dtype, values.shape[1:]) for name, values in columns])
    for name, values in columns:
        table[name] = values
    return table


def _flat(row: Iterable[object]) -> list[object]:
    return [x for value in row for x in (value.tolist() if isinstance(value, np.ndarray) else [value])]


def _numbered(path: str | Path, number: int) -> Path:
    path = Path(path)
    return path.with_name(f"{path.stem}_{number:06d}{path.suffix or '.ply'}")
