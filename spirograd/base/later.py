"""Names of the family that this version lacks: importing them works; using them raises an error that names the feature."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Container, Iterable, Mapping
from typing import NoReturn

from spirograd.base.errors import SpirogradUnsupportedError
from spirograd.base.near_names import NoAttribute


class Declared:
    """A constructor of types that this version lacks. It makes stand-ins, because libraries declare types that a program may not use; the
    error comes where a type is used."""

    def __init__(self, name: str, reason: str) -> None:
        self.__name__ = name
        self._reason = reason

    def __call__(self, *args: object, **kwargs: object) -> Later:
        given = (*(repr(value) for value in args), *(f"{key}={value!r}" for key, value in kwargs.items()))
        return Later(f"{self.__name__}({', '.join(given)})", self._reason)


class _NoAttribute(SpirogradUnsupportedError, AttributeError):
    """Raised for attributes of stand-ins. `hasattr` is False for them, because `pickle` looks up names in every module."""


_NoAttribute.__name__ = _NoAttribute.__qualname__ = SpirogradUnsupportedError.__name__
_NoAttribute.__module__ = SpirogradUnsupportedError.__module__


class Later:
    """A stand-in for ``name``. Calling it, reading an attribute of it or deriving from it raises SpirogradUnsupportedError with ``reason``.

    Nothing is an instance of it, so ``isinstance(x, sg.Texture)`` is False as it should be.
    """

    __sg_traceable__ = True

    def __init__(self, name: str, reason: str) -> None:
        self.__name__ = name
        self.__doc__ = f"`{name}` is not in this version: {reason}"
        self._reason = reason

    def _refuse(self, name: str, error: type[SpirogradUnsupportedError] = SpirogradUnsupportedError) -> NoReturn:
        raise error(f"`{name}` is not supported in this version of spirograd", None, self._reason)

    def __call__(self, *args: object, **kwargs: object) -> NoReturn:
        self._refuse(self.__name__)

    def __getattr__(self, name: str) -> NoReturn:
        if name.startswith("__"):
            raise AttributeError(name)
        self._refuse(f"{self.__name__}.{name}", _NoAttribute)

    def __instancecheck__(self, instance: object) -> bool:
        return False

    def __mro_entries__(self, bases: tuple[object, ...]) -> NoReturn:
        self._refuse(self.__name__)

    def __repr__(self) -> str:
        return f"<{self.__name__}: not in this version>"


_SPARSE = "sparse fields are made of nodes: `sg.root.pointer(...)`, `.bitmasked(...)`, `.dynamic(...)`"
_COUNTERS = "hardware counters are not read; use Nsight Compute or a similar tool"
_QUANT = "quantised and bit-packed types come in a later version"
_MESH = "meshes come in a later version; keep their connections in fields"
_BACK_END = "there is no such back end; `sg.cuda`, `sg.vulkan` and `sg.wgpu` reach the same devices"
_COMPAT = "it is in `spirograd.compat.taichi` and `spirograd.compat.quadrants`"
_LEVELS = "levels are strings: `sg.set_logging_level('debug')`"
_TEXTURE = "textures come in a later version; use a field, and interpolate in the kernel"

# Reasons by name, for names of the module itself.
LATER: dict[str, str] = {
    **dict.fromkeys(("sparse",), _SPARSE),
    **dict.fromkeys(("BitpackedFields",), _QUANT),
    **dict.fromkeys(("Mesh", "MeshBuilder", "MeshInstance", "MeshRelationType", "mesh_local", "mesh_patch_idx"), _MESH),
    **dict.fromkeys(("Texture", "Format"), _TEXTURE),
    **dict.fromkeys(("opengl", "gles", "dx11", "dx12"), _BACK_END),
    **dict.fromkeys(("DeviceCapability", "experimental", "hex_to_rgb", "rgb_to_hex"), _COMPAT),
    **dict.fromkeys(("TRACE", "DEBUG", "INFO", "WARN", "ERROR", "CRITICAL"), _LEVELS),
    "x86_64": "call it `sg.cpu`",
    "dump_compile_config": "print `sg.cfg`",
    "argpack": "`sg.types.argpack(x=sg.f32)` makes types of argpacks",
}

# Names inside namespaces that exist.
LATER_TYPES: dict[str, str] = {
    "quant": _QUANT,
    **dict.fromkeys(("texture", "rw_texture", "TextureType", "RWTextureType"), _TEXTURE),
    **dict.fromkeys(("annotations", "compound_types", "enums", "ndarray_type", "texture_type", "utils"), _COMPAT),
}
LATER_TOOLS: dict[str, str] = dict.fromkeys(("diagnose", "np2ply", "vtk", "write_vtk"), "`PLYWriter` writes points and faces")
LATER_PROFILER: dict[str, str] = dict.fromkeys(("CuptiMetric", "get_predefined_cupti_metrics"), _COUNTERS)
LATER_MATH: dict[str, str] = {"fns": "its functions are in `sg.math` itself"}


def later(name: str, table: dict[str, str] = LATER, prefix: str = "") -> Later | None:
    """Return the stand-in for ``name``, or None if it is not in the table."""
    reason = table.get(name)
    return None if reason is None else Later(prefix + name, reason)


def attributes(
    module: str,
    known: Iterable[str],
    table: Mapping[str, str] | None = None,
    modules: Container[str] = (),
    elsewhere: Mapping[str, str] | None = None,
) -> Callable[[str], object]:
    """Return the ``__getattr__`` of a module. It gives stand-ins for the names of ``table``, imports ``modules`` below the module and names
    that are ``elsewhere`` when they are first used, and raises AttributeError with similar names for all others."""
    prefix = module.partition(".")[2]

    def __getattr__(name: str) -> object:
        if name in modules:
            return importlib.import_module(f"{module}.{name}")
        if elsewhere is not None and name in elsewhere:
            return getattr(importlib.import_module(elsewhere[name]), name)
        if table is not None and name in table:
            return Later(f"{prefix}.{name}" if prefix else name, table[name])
        message = f"module {module!r} has no attribute {name!r}"
        if name.startswith("__"):
            raise AttributeError(message)
        for family in ("Taichi", "Quadrants"):
            ours = name.replace(family, "Spirograd", 1)
            if name.startswith(family) and ours in known:
                raise AttributeError(f"{message}; it is `{ours}` here, and `{name}` in `spirograd.compat.{family.lower()}`")
        raise NoAttribute(f"module {module!r}", name, lambda: known)

    return __getattr__
