"""The names of the modules of the Taichi family: one table for its members. ``{}`` in a name is the member's prefix ("Taichi",
"Quadrants")."""

from __future__ import annotations

import builtins
from collections.abc import Callable, Sequence
from types import ModuleType

import spirograd
from spirograd import ad, algorithms, aot, api, errors, linalg, math, profiler, simt, tools, types, ui
from spirograd.algorithms import in_kernels
from spirograd.base import later
from spirograd.compat import facade, internals, launch_graphs, linear_solvers, log_functions, old_names
from spirograd.lang import arithmetic, context, forms, graph_statements, hints, primitive_types
from spirograd.lang.annotations import MatrixType, NdarrayType, VectorType
from spirograd.lang.data.axes import axes
from spirograd.lang.data.field import MatrixField, StructField
from spirograd.lang.data.ndarray import BufferView, BufferViewType, MatrixNdarray, Ndarray, ScalarNdarray, VectorNdarray
from spirograd.lang.data.nodes import SNode
from spirograd.lang.data.scalar_field import Field
from spirograd.lang.data.tree import FieldsBuilder, Tree
from spirograd.lang.dispatching import PerformanceDispatcher
from spirograd.lang.frontend.decorators import data_oriented, kernel
from spirograd.lang.frontend.func import Func, func, pyfunc, real_func
from spirograd.lang.matrix import Matrix, Vector
from spirograd.lang.struct import Struct, StructType, dataclass, struct
from spirograd.ui import camera

Names = dict[str, object]

EXCEPTIONS: Names = {
    "{}AssertionError": errors.SpirogradAssertionError,
    "{}CompilationError": errors.SpirogradCompilationError,
    "{}IndexError": errors.SpirogradIndexError,
    "{}NameError": errors.SpirogradNameError,
    "{}RuntimeError": errors.SpirogradRuntimeError,
    "{}RuntimeTypeError": errors.SpirogradRuntimeTypeError,
    "{}SyntaxError": errors.SpirogradSyntaxError,
    "{}TypeError": errors.SpirogradTypeError,
}


def public(module: ModuleType) -> Names:
    """Return the names that a module exports."""
    return {name: getattr(module, name) for name in module.__all__}


def several(module: object, names: str) -> Names:
    return {name: getattr(module, name) for name in names.split()}


def several_later(names: str) -> dict[str, str]:
    return {name: later.LATER[name] for name in names.split()}


# The driver's default stream. The family and torch use it, and programs that share memory with torch rely on its order.
_DEFAULT_STREAM = 0


def init(arch: str | Sequence[str] | None = None, **options: object) -> None:
    """Call `spirograd.init` with the family's defaults: if the back end is missing, the CPU is used, with a warning; if memory without a
    gradient breaks a chain of derivatives, gradients end there, with a warning; overflow is printed; integers to negative powers are
    those to the positive ones; floats as bounds of `range` are cast, with a warning; numbers are shown with six digits behind the point;
    subnormal floats are zeros on the CPU. On CUDA and AMD's GPUs, all work goes to the driver's default stream."""
    options.setdefault("enable_fallback", True)
    options.setdefault("ad_broken_chain", "warn")
    options.setdefault("overflow", "warn")
    options.setdefault("negative_powers", "ignore_sign")
    options.setdefault("float_bounds", "cast")
    options.setdefault("number_format", "fixed")
    options.setdefault("subnormals", "flush")
    api.init(arch, **options)
    sharing = context.session().sharing
    if sharing is not None:
        sharing.switch(_DEFAULT_STREAM)
    facade.RUNTIME.clear()


_PICTURE_WINDOW: Names = {**several(tools, "GUI"), **several(facade, "hex_to_rgb rgb_to_hex")}
ARCHS: Names = {
    **several(api, "cpu x64 arm64 vulkan metal cuda amdgpu gpu"),
    **dict.fromkeys(("opengl", "gles", "dx11", "dx12"), api.vulkan),
    "x86_64": api.cpu,
}
LOG_LEVELS: Names = {name.upper(): name for name in ("trace", "debug", "info", "warn", "error", "critical")}
AXES: Names = {name: value for name, value in public(spirograd).items() if set(name) <= set("ijkl")}
HINTS: Names = several(
    hints,
    "assume_in_range block_local cache_read_only extension loop_unique pure rescale_index stop_grad",
) | several(spirograd, "deactivate_all_snodes no_activate")

MAIN: Names = {
    **{name: value for name, value in public(spirograd).items() if not name.startswith("Spirograd")},
    **EXCEPTIONS,
    **ARCHS,
    **LOG_LEVELS,
    "init": init,
    **several(facade, "reset sync"),
    **several(facade, "CPUWorkScheduling DeviceCapability dump_compile_config hex_to_rgb rgb_to_hex"),
    "sparse_matrix_builder": types.sparse_matrix_builder,
    "ScalarField": internals.ScalarField,
}

_MISC: Names = {
    **ARCHS,
    **AXES,
    **HINTS,
    **several(api, "is_extension_supported is_extension_enabled"),
    "init": init,
    **several(facade, "reset sync"),
    "axes": axes,
    "loop_config": forms.loop_config,
    **several(facade, "get_runtime is_arch_supported adaptive_arch_select"),
}
_IMPL: Names = {
    "call_internal": internals.call_internal,
    **several(facade, "current_cfg get_runtime inside_kernel get_max_shared_memory_bytes reset"),
    "Py{}": facade.Runtime,
    **several(spirograd, "field ndarray root static static_assert static_print grouped one zero axes"),
    **several(spirograd, "deactivate_all_snodes stop_grad"),
    **{c.__name__: c for c in (Field, FieldsBuilder, Matrix, MatrixField, SNode, Struct, StructField, internals.ScalarField)},
    **EXCEPTIONS,
}
_CORE: Names = {"DeviceCapability": facade.DeviceCapability, **internals.CORE}
_ARRAYS: Names = {c.__name__: c for c in (MatrixNdarray, Ndarray, ScalarNdarray, VectorNdarray)}
_MATRIX: Names = {
    "Vector": Vector,
    "_generate_swizzle_patterns": internals._generate_swizzle_patterns,
    **_ARRAYS,
    **{c.__name__: c for c in (Matrix, MatrixField, MatrixType, VectorType)},
}
_KERNELS: Names = {
    "Kernel": internals.Kernel,
    "Func": Func,
    **{f.__name__: f for f in (data_oriented, func, kernel, pyfunc, real_func)},
}

# Names by the path of the module below the package.
MODULES: dict[str, Names] = {
    "lang": {**_IMPL, **_MISC, **_MATRIX, **_KERNELS},
    "lang.exception": EXCEPTIONS,
    "lang.impl": _IMPL,
    "lang.misc": _MISC,
    "lang.ops": {name: value for name, value in MAIN.items() if name.startswith("atomic_") or getattr(arithmetic, name, None) is value},
    "lang.matrix": _MATRIX,
    "lang.struct": {"Struct": Struct, "StructField": StructField, "StructType": StructType, "dataclass": dataclass, "struct": struct},
    "lang.field": {"Field": Field, "ScalarField": internals.ScalarField},
    "lang._ndarray": _ARRAYS,
    "lang.buffer_view": {"BufferView": BufferView, "BufferViewType": BufferViewType},
    "lang.snode": {"SNode": SNode, "rescale_index": hints.rescale_index},
    "lang._ndrange": several(forms, "ndrange"),
    "lang.kernel_impl": _KERNELS,
    "lang.util": internals.UTIL,
    "lang._fast_caching": {"FIELD_METADATA_CACHE_VALUE": "add_value_to_cache_key"},  # a key of the metadata of members
    "lang._perf_dispatch": {"PerformanceDispatcher": PerformanceDispatcher},
    "lang._template_mapper": {"__builtins__": dict(vars(builtins))},  # a copy, which programs change
    "lang.enums": several(spirograd, "Layout Backend"),
    "math": public(math),
    "math._complex": several(math, "cconj cdiv cexp cinv clog cmul cpow csqrt"),
    "types": public(types),
    "types.primitive_types": {
        **{n: v for n, v in vars(primitive_types).items() if not n.startswith("_")},
        **internals.TYPE_TABLES,
        "ref": types.ref,
    },
    "types.compound_types": several(types, "vector matrix struct"),
    "types.annotations": several(types, "template Template"),
    "types.buffer_view_type": {"BufferViewType": BufferViewType},
    "types.ndarray_type": {"NdarrayType": NdarrayType, "ndarray": types.ndarray, "NDArray": types.NDArray},
    "ad": public(ad),
    "algorithms": public(algorithms) | several(in_kernels, in_kernels.NAMES),
    "linalg": {**public(linalg), "SparseSolver": linear_solvers.SparseSolver},
    "aot": {},
    **{f"{path}simt": several(simt, "Tile16x16 Tile32x32") for path in ("", "lang.")},
    **{f"{path}simt.{name}": public(getattr(simt, name)) for path in ("", "lang.") for name in ("block", "grid", "subgroup", "warp")},
    "profiler": public(profiler),
    "profiler.kernel_profiler": {name: value for name, value in public(profiler).items() if "kernel_profiler" in name},
    "profiler.scoped_profiler": several(profiler, "print_scoped_profiler_info clear_scoped_profiler_info"),
    "profiler.memory_profiler": several(profiler, "print_memory_profiler_info"),
    "profiler.kernel_metrics": {},
    "tools": public(tools),
    "graph": several(launch_graphs, "Arg ArgKind Graph GraphBuilder") | public(graph_statements),
    "tools.image": several(tools, "imread imresize imshow imwrite"),
    "tools.video": several(tools, "VideoManager"),
    "ui": public(ui) | _PICTURE_WINDOW | several(facade, "check_ggui_availability"),
    "ui.gui": _PICTURE_WINDOW,
    "ui.window": several(ui, "Window"),
    "ui.canvas": several(ui, "Canvas"),
    "ui.scene": several(ui, "Scene"),
    "ui.camera": several(ui, "Camera"),
    "ui.imgui": several(ui, "Gui"),
    "ui.constants": {name: value for name, value in public(ui).items() if name.isupper()},
    "ui.utils": several(camera, "euler_to_vec vec_to_euler"),
    "experimental": {"real_func": old_names.experimental_real_func},
    "types.quant": {name: later.Declared(f"types.quant.{name}", later.LATER_TYPES["quant"]) for name in ("int", "fixed", "float")},
    "_lib": {},
    "_snode": {},
    "_snode.fields_builder": {"FieldsBuilder": FieldsBuilder},
    "_snode.snode_tree": {"SNodeTree": Tree},
    "_lib.core": _CORE,
    "_lib.core.taichi_python": _CORE,
    "_lib.core.quadrants_python": _CORE,
    "_logging": {**several(api, "set_logging_level is_logging_effective"), **LOG_LEVELS, **log_functions.FUNCTIONS},
}

# Reasons by missing module: any name can be imported from these modules, and raises an error when used.
EMPTY_MODULES: dict[str, str] = {
    **several_later("sparse"),
    "interop": "pass arrays of NumPy and torch to kernels directly",
}

_NOT_IN_GRAPHS = "graphs of launches have `Arg`, `ArgKind`, `GraphBuilder`; kernels with `graph=True` have loops and sections"

# Functions by module that return a stand-in for a missing name, or None.
Fallback = Callable[[str], object]
FALLBACKS: dict[str, Fallback] = {
    "": later.later,
    "graph": lambda name: later.later(name, {name: _NOT_IN_GRAPHS}, "graph."),
    "aot": lambda name: getattr(aot, name, None),  # not before it is used: it imports the compiler
    "profiler": lambda name: later.later(name, later.LATER_PROFILER, "profiler."),
    "profiler.kernel_metrics": lambda name: later.later(name, later.LATER_PROFILER, "profiler."),
    "tools": lambda name: later.later(name, later.LATER_TOOLS, "tools."),
    "types": lambda name: later.later(name, later.LATER_TYPES, "types."),
    "lang": later.later,
    "lang.impl": later.later,
    "lang.misc": later.later,
    "lang.ops": later.later,
}
