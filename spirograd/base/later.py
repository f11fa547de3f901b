"""Names of the family that this version does not have: there to be imported, an error that names the feature when used."""

from __future__ import annotations

from typing import Any, NoReturn

from spirograd.base.errors import SpirogradUnsupportedError


class Later:
    """Stands for ``name``. Calling it, taking an attribute of it, deriving from it: SpirogradUnsupportedError with ``reason``.

    Nothing is an instance of it, so ``isinstance(x, sg.Texture)`` is False as it should be.
    """

    __sg_traceable__ = True

    def __init__(self, name: str, reason: str) -> None:
        self.__name__ = name
        self.__doc__ = f"`{name}` is not in this version: {reason}"
        self._reason = reason

    def _refuse(self, name: str) -> NoReturn:
        raise SpirogradUnsupportedError(f"`{name}` is not supported in this version of spirograd", None, self._reason)

    def __call__(self, *args: Any, **kwargs: Any) -> NoReturn:
        self._refuse(self.__name__)

    def __getattr__(self, name: str) -> NoReturn:
        if name.startswith("__"):
            raise AttributeError(name)
        self._refuse(f"{self.__name__}.{name}")

    def __instancecheck__(self, instance: Any) -> bool:
        return False

    def __mro_entries__(self, bases: tuple[Any, ...]) -> NoReturn:
        self._refuse(self.__name__)

    def __repr__(self) -> str:
        return f"<{self.__name__}: not in this version>"


_SPARSE = "all field trees are dense; allocate the largest shape that is needed"
_SIMT = "kernels address groups of threads in a later version; parallel loops and atomics are what there is now"
_LINALG = "large matrices and their solvers come in a later version; write it with `sg.func`, or use NumPy outside of kernels"
_GRAPH = "launches are asynchronous and batched by themselves; graphs, streams and events come in a later version"
_UI = "spirograd draws nothing; give `field.to_numpy()` to matplotlib or another library"
_PROFILE = "profiling comes in a later version; time launches between two calls of `sg.sync()`"
_QUANT = "quantised and bit-packed types come in a later version"
_MESH = "meshes come in a later version; keep their connections in fields"
_TEXTURE = "textures come in a later version; use a field, and interpolate in the kernel"

# name -> reason, of names that lie directly in the module.
LATER: dict[str, str] = {
    **dict.fromkeys(("activate", "deactivate", "is_active", "append", "length", "sparse"), _SPARSE),
    **dict.fromkeys(("simt", "global_thread_idx", "clock_counter", "clock_freq_hz", "volatile_load"), _SIMT),
    **dict.fromkeys(("eig", "make_spd", "linalg", "sparse_matrix_builder"), _LINALG),
    **dict.fromkeys(("graph", "graph_do_while", "graph_parallel", "graph_parallel_context", "GraphStatus", "checkpoint"), _GRAPH),
    **dict.fromkeys(("Stream", "Event", "create_stream", "create_event", "stream_parallel"), _GRAPH),
    **dict.fromkeys(("GUI", "ui", "tools"), _UI),
    **dict.fromkeys(("profiler",), _PROFILE),
    **dict.fromkeys(("BitpackedFields",), _QUANT),
    **dict.fromkeys(("Mesh", "MeshInstance", "mesh_local", "mesh_patch_idx"), _MESH),
    **dict.fromkeys(("Texture", "Format"), _TEXTURE),
    "algorithms": "sorting, scans and reductions as library calls come in a later version; write the loop in a kernel",
    "aot": "exporting compiled kernels comes in a later version",
    "argpack": "pass a `dataclasses.dataclass` or a struct instead",
    "ArgPack": "pass a `dataclasses.dataclass` or a struct instead",
    "BufferView": "pass the whole array and the bounds of the part",
    "frexp": "use `sg.bit_cast` on the number",
    "get_addr": "kernels reach memory through fields and arrays only",
    "interop": "pass arrays of NumPy and torch to kernels directly",
    "perf_dispatch": "choose between implementations in Python",
    "ref": "return the value instead; arguments of `sg.func` annotated `sg.template()` are passed by reference",
}

# Names inside namespaces that exist.
LATER_TYPES: dict[str, str] = {
    "quant": _QUANT,
    "ref": LATER["ref"],
    "argpack": LATER["argpack"],
    **dict.fromkeys(("texture", "rw_texture", "TextureType", "RWTextureType"), _TEXTURE),
    "sparse_matrix_builder": _LINALG,
    "BufferViewType": LATER["BufferView"],
}


def later(name: str, table: dict[str, str] = LATER, prefix: str = "") -> Later | None:
    """The stand-in for ``name``, or None if the table does not have it."""
    reason = table.get(name)
    return None if reason is None else Later(prefix + name, reason)
