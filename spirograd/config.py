"""The options of `init` with types and defaults. Unknown options are errors that suggest similar names."""

from __future__ import annotations

import logging
import math
import os
from dataclasses import field
from pathlib import Path
from typing import Any

from spirograd.base import knobs
from spirograd.base.dtypes import ALL, DType, f32, i32
from spirograd.base.errors import SpirogradOptionError, SpirogradRuntimeError
from spirograd.base.records import dataclass, fields
from spirograd.base.wording import did_you_mean
from spirograd.runtime.offline_cache import default_folder

logger = logging.getLogger("spirograd")


@dataclass
class Config:
    """The options in force, as ``sg.cfg``. Each can be overridden by an environment variable ``SG_<NAME>``."""

    arch: str = "cpu"
    device: str = ""
    profile: str = ""
    default_fp: DType = f32
    default_ip: DType = i32
    debug: bool = False
    check_out_of_bound: bool = False
    detect_races: bool = False
    overflow: str = "error"
    negative_powers: str = "truncate"
    float_bounds: str = "error"
    number_format: str = "shortest"
    fast_math: bool = True
    contraction: str = "keep_zeros"
    subnormals: str = "keep"
    deterministic: bool = False
    fuse_tasks: bool = True
    tune: bool = True
    tune_gpu: bool = False
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
    ad_broken_chain: str = "error"
    device_memory_fraction: float = 0.0
    print_full_traceback: bool = False
    short_circuit_operators: bool = True
    unrolling_limit: int = 1000
    cfg_optimization: bool = True
    advanced_optimization: bool = True
    opt_level: int = 3
    num_compile_threads: int = 1

    def unfused_by(self) -> str:
        """Return the setting that switches task fusion off; "" if it is on."""
        if self.fuse_tasks:
            return knobs.switched_off("QD_AGGRESSIVE_KERNEL_FUSION")
        text = os.environ.get("SG_FUSE_TASKS", "")
        return f"`SG_FUSE_TASKS={text}`" if text else "`init(fuse_tasks=False)`"


# Options without effect, by the advice in the warning; those with no advice are logged at debug level only.
_NO_EFFECT: dict[str, str] = {
    "": """
        ad_stack_experimental_enabled ad_stack_size ad_stack_sparse_threshold_bytes default_ad_stack_size
        allow_nv_shader_extension auto_mesh_local_default_occupacy cache_loop_invariant_global_vars constant_folding cpu_block_dim_adaptive
        cuda_stack_limit default_up demote_dense_struct_fors demote_no_access_mesh_fors detect_read_only dynamic_index
        experimental_auto_mesh_local experimental_real_function external_optimization_level fast_compile flatten_if force_scalarize_matrix
        half2_vectorization lower_access make_block_local make_cpu_multithreading_loop make_mesh_block_local make_thread_local
        mesh_localize_all_attr_mappings mesh_localize_from_end_mapping mesh_localize_to_end_mapping move_loop_invariant_outside_if
        ndarray_use_cached_allocator offline_cache_cleaning_factor offline_cache_cleaning_policy optimize_mesh_reordered_mapping packed
        print_non_pure quant_opt_atomic_demotion quant_opt_store_fusion raise_on_templated_floats real_matrix_scalarize
        simplify_after_lower_access simplify_before_lower_access src_ll_cache use_llvm use_unified_memory""",
    "spirograd has other stages; `print_ir=True`, `kernel.ir()` and `kernel.llvm()` show them": """
        print_accessor_ir print_ir_dbg_info print_kernel_amdgcn print_kernel_asm print_kernel_llvm_ir print_kernel_llvm_ir_optimized
        print_preprocessed_ir print_struct_llvm_ir""",
    "set the environment variable SG_DUMP to the folder for dumps": "debug_dump_path",
    "`log_level` sets what is logged, and handlers of Python's logger `spirograd` where": "log_file verbose verbose_kernel_launches",
    "`sg.profiler.trace(path)` writes one": "timeline",
    "the scheduler divides the iterations among threads; `cpu_max_num_threads` limits those": """
        cpu_fixed_block_dim cpu_per_worker_min_block_dim cpu_work_scheduling default_cpu_block_dim""",
    "memory is allocated as needed; `device_memory_GB` limits it": "device_memory_fraction",
    "tasks of large kernels are compiled on several threads; `offline_cache` keeps the result": "num_compile_threads",
    "the version of spirograd is unrelated to those of the family; compare `sg.__version__`": "require_version",
    "no debugger is started; start Python under one": "gdb_trigger",
    "the version is that of the driver; `spirograd doctor` shows it": "vk_api_version",
    "`sg.loop_config(block_dim=...)` sets the size of workgroups": "gpu_max_reg max_block_dim saturating_grid_dim",
    "spirograd makes a queue of its own; call `sg.sync()` before others use its memory": """
        external_metal_command_queue external_metal_command_queue_is_torch_queue""",
}
WITHOUT_EFFECT = {name: reason for reason, names in _NO_EFFECT.items() for name in names.split()}
# The allowed values of options with a fixed set of values, by name.
_CHOICES = {
    "ad_broken_chain": ("error", "warn", "ignore"),
    "contraction": ("keep_zeros", "free"),
    "float_bounds": ("error", "cast"),
    "negative_powers": ("truncate", "ignore_sign"),
    "number_format": ("shortest", "fixed"),
    "overflow": ("error", "warn"),
    "subnormals": ("keep", "flush"),
}
_ALIASES = {"debug": "SG_DEBUG", "arch": "SG_ARCH"}


def make_config(arch: str, options: dict[str, object]) -> Config:
    """Return the configuration for `init`. Raises SpirogradOptionError for an unknown option, SpirogradRuntimeError for a value of the
    wrong type."""
    config = Config(arch=arch)
    known = {f.name: f for f in fields(Config)}
    for name, value in options.items():
        if name in known:
            setattr(config, name, _converted(name, value, getattr(config, name)))
        elif name in WITHOUT_EFFECT:
            if value:
                _ignored(name, value)
        else:
            hint = did_you_mean(name, [*known, *WITHOUT_EFFECT])
            raise SpirogradOptionError(f"`init` has no option `{name}`{'; ' if hint else ''}{hint}")
    for name, option in known.items():
        text = os.environ.get(_ALIASES.get(name, f"SG_{name.upper()}"), "")
        if text and name != "arch":
            setattr(config, name, _converted(name, text, getattr(config, name)))
        if name in WITHOUT_EFFECT and getattr(config, name) != option.default:
            _ignored(name, getattr(config, name))
    if knobs.get("SG_CACHE_DIR"):
        config.offline_cache_file_path = str(Path(knobs.get("SG_CACHE_DIR")).expanduser())
    return config


def set_option(config: Config, name: str, value: object) -> None:
    """Set an option. Raises SpirogradRuntimeError for a value of the wrong type."""
    setattr(config, name, _converted(name, value, getattr(config, name)))


def _ignored(name: str, value: object) -> None:
    """Warn about an option without effect if there is advice, else log it."""
    if WITHOUT_EFFECT[name]:
        logger.warning("the option `%s` of `init` has no effect: %s", name, WITHOUT_EFFECT[name])
    else:
        logger.debug("option %s=%r needs no setting and is ignored", name, value)


def _converted(name: str, value: Any, default: Any) -> object:
    """Convert ``value`` to the type of the option; text comes from the environment."""
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
    if converted not in _CHOICES.get(name, (converted,)):
        raise SpirogradRuntimeError(f"option `{name}` is one of {', '.join(map(repr, _CHOICES[name]))}, not {value!r}")
    if isinstance(converted, float) and not 0 <= converted < math.inf:  # sizes of memory
        raise SpirogradRuntimeError(f"option `{name}` is 0 or more, not {value!r}")
    return converted


_FLAGS = {**dict.fromkeys(("1", "true", "on", "yes"), True), **dict.fromkeys(("", "0", "false", "off", "no"), False)}
