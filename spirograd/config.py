"""Options of `init`: declared once, with type, default and meaning; unknown ones are errors that name the near ones."""

from __future__ import annotations

import dataclasses
import logging
import math
import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from spirograd.base import knobs
from spirograd.base.dtypes import ALL, DType, f32, i32
from spirograd.base.errors import SpirogradRuntimeError
from spirograd.base.wording import did_you_mean
from spirograd.runtime.cache import default_folder

logger = logging.getLogger("spirograd")


@dataclass
class Config:
    """The options in force, as ``sg.cfg``. Each can be overridden by an environment variable ``SG_<NAME>``."""

    arch: str = "cpu"
    default_fp: DType = f32
    default_ip: DType = i32
    debug: bool = False
    check_out_of_bound: bool = False
    fast_math: bool = True
    offline_cache: bool = True
    offline_cache_file_path: str = field(default_factory=lambda: str(default_folder()))
    offline_cache_max_size_of_files: int = 256 << 20
    random_seed: int = 0
    log_level: str = "warn"
    print_ir: bool = False
    kernel_profiler: bool = False
    cpu_max_num_threads: int = 0
    default_cpu_block_dim: int = 0
    default_gpu_block_dim: int = 0
    enable_fallback: bool = False
    device_memory_GB: float = 0.0
    ad_memory_GB: float = 0.0
    device_memory_fraction: float = 0.0
    print_full_traceback: bool = False
    short_circuit_operators: bool = True
    unrolling_limit: int = 32
    cfg_optimization: bool = True
    advanced_optimization: bool = True
    opt_level: int = 3
    num_compile_threads: int = 1


# Options of the family that need no setting here: accepted, and noted at debug level. Prefixes end with an underscore.
ACCEPTED = (
    "ad_stack_", "offline_cache_", "flatten_if", "require_version", "advanced_", "print_", "gdb_trigger", "real_matrix_scalarize",
    "force_scalarize_matrix", "half2_vectorization", "demote_dense_struct_fors", "cuda_stack_limit", "raise_on_templated_floats", "verbose",
    "log_file", "kernel_profiler_", "timeline", "packed", "dynamic_index", "use_", "cpu_", "cuda_", "vk_",
    "saturating_grid_dim", "max_block_dim",
    "make_", "lower_access", "move_loop_invariant_outside_if", "cache_loop_invariant_global_vars", "auto_mesh_local", "constant_folding",
    "detect_read_only", "ndarray_use_cached_allocator", "simplify_before_lower_access", "simplify_after_lower_access", "default_up",
    "quant_opt_", "src_ll_cache", "make_thread_local", "make_block_local", "fast_compile", "compile_config", "allow_nv_shader_extension",
    "external_optimization_level", "num_", "default_ad_stack_size", "experimental_", "mesh_", "check_", "debug_", "graph_", "stack_",
)  # fmt: skip
_ALIASES = {"debug": "SG_DEBUG", "arch": "SG_ARCH"}


def make_config(arch: str, options: dict[str, Any]) -> Config:
    """The configuration for `init`. Raises SpirogradRuntimeError for an unknown option or a value of the wrong type."""
    config = Config(arch=arch)
    known = {f.name: f for f in dataclasses.fields(Config)}
    for name, value in options.items():
        if name in known:
            setattr(config, name, _converted(name, value, getattr(config, name)))
        elif any(name == a or (a.endswith("_") and name.startswith(a)) for a in ACCEPTED):
            logger.debug("option %s=%r needs no setting and is ignored", name, value)
        else:
            hint = did_you_mean(name, [*known, *(a for a in ACCEPTED if not a.endswith("_"))])
            raise SpirogradRuntimeError(f"`init` has no option `{name}`{'; ' if hint else ''}{hint}")
    for name in known:
        text = os.environ.get(_ALIASES.get(name, f"SG_{name.upper()}"), "")
        if text and name != "arch":
            setattr(config, name, _converted(name, text, getattr(config, name)))
    if knobs.get("SG_CACHE_DIR"):
        config.offline_cache_file_path = str(Path(knobs.get("SG_CACHE_DIR")).expanduser())
    return config


def _converted(name: str, value: Any, default: Any) -> Any:
    """``value`` as the type of the option; text comes from the environment."""
    if isinstance(default, DType):
        if isinstance(value, str):
            value = next((t for t in ALL if t.name == value), value)
        if not isinstance(value, DType) or value.kind not in (("float",) if default.is_float else ("int", "uint")):
            example = "a floating-point type like sg.f32" if default.is_float else "an integer type like sg.i32"
            raise SpirogradRuntimeError(f"option `{name}` is {example}, not {value!r}")
        return value
    if value is None:
        return default
    try:
        if isinstance(default, bool):
            return _FLAGS[value.lower()] if isinstance(value, str) else _FLAGS[str(int(value))]
        converted = type(default)(value)
    except (TypeError, ValueError, KeyError):
        raise SpirogradRuntimeError(f"option `{name}` is of type {type(default).__name__}, not {value!r}") from None
    if isinstance(converted, float) and not 0 <= converted < math.inf:  # amounts of memory
        raise SpirogradRuntimeError(f"option `{name}` is 0 or more, not {value!r}")
    return converted


_FLAGS = {**dict.fromkeys(("1", "true", "on", "yes"), True), **dict.fromkeys(("", "0", "false", "off", "no"), False)}
