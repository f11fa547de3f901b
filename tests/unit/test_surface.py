"""What users can name: every name that kernels of the family use often is here, or is one of those that come later and say so."""

from __future__ import annotations

import importlib
import inspect
from typing import Any

import pytest

import spirograd as sg
from spirograd.base.later import LATER, LATER_MATH, LATER_TYPES, Later
from spirograd.compat import member_tables
from spirograd.lang import context

# Names of the module, most used first; "SpirogradX" stands for the member's own prefix.
_PRESENT = """
kernel field i32 f32 cpu ndarray cuda extension.adstack Vector types.ndarray amdgpu metal vulkan Matrix template Backend.NDARRAY
root.dense sync tensor ndrange i Backend.FIELD static types.NDArray func f64 Matrix.field Vector.field init i64 data_oriented
extension.data64 types.vector root.place SpirogradCompilationError cast sin atomic_add grouped Tensor u32 u64 root.lazy_grad
SpirogradSyntaxError gpu cfg.arch i16 types.matrix extension.assertion ij real_func loop_config x64 f16 math.vec3 u16 Matrix.ndarray
Vector.ndarray u8 i8 root.lazy_dual types.struct SpirogradTypeError Template reset math.vec2 u1 Matrix.tensor Struct Vector.tensor
atomic_min atomic_max dataclass max extension.sparse log Struct.field cos exp min random atomic_cas floor j k sqrt math.mat2 atan2
VectorTensor abs atomic_and atomic_or atomic_xor select FieldsBuilder MatrixTensor acos asin tanh zero Layout.AOS atomic_sub ceil int32
math.vec4 Matrix.zero SpirogradNameError SpirogradRuntimeError SpirogradRuntimeTypeError atomic_exchange math.mat3 static_assert tan
Layout.SOA int64 math.ffs round uint32 Ndarray Vector.zero SpirogradAssertionError Matrix.cols atomic_mul ijk math.clz math.ivec3
math.mat4 raw_mod rsqrt uint64 Matrix.diag Matrix.rows ScalarField ad.no_grad arm64 bit_shr block_local extension.quant_basic
is_extension_enabled is_extension_supported math.ivec2 math.popcnt math.rotation2d math.uvec2 pure stop_grad types.is_integral
types.is_signed Matrix.identity Matrix.one MatrixNdarray Vector.unit VectorNdarray bit_cast extension.bls extension.quant float16 float32
ijkl math.clamp math.nan math.normalize math.radians math.rot_by_axis math.rot_yaw_pitch_roll math.rotation3d math.scale math.sign
math.translate one pow randn raw_div rescale_index static_print types.primitive_types.all_types uint16 uint8 AdStackOverflow
OutOfDeviceMemory Field MatrixField StructField ScalarNdarray assume_in_range cache_read_only no_activate loop_unique
activate deactivate is_active
deactivate_all_snodes set_logging_level is_logging_effective pyfunc axes SNode types.func types.template types.Template available_archs
perf_dispatch eig make_spd svd sym_eig polar_decompose solve ad.Tape ad.FwdMode ad.grad_replaced ad.grad_for ad.clear_all_gradients
types.sparse_matrix_builder linalg.SparseMatrixBuilder linalg.SparseSolver linalg.MatrixFreeCG
get_addr frexp python ArgPack types.argpack ref types.ref global_thread_idx volatile_load BufferView types.BufferViewType append length
outer simt.Tile16x16 simt.Tile32x32
profiler.print_kernel_profiler_info
aot.Module aot.load
distributed.init distributed.Partition
graph graph_do_while graph_parallel graph_parallel_context checkpoint GraphStatus
stream_parallel create_stream create_event Stream Event
clock_counter clock_freq_hz
ad.torch_function ad.torch_op ad.jax_function
"""
# Deliberately later; the reasons are in base/later.py.
_ABSENT = """
BitpackedFields
Texture mesh_local
sparse
"""
PRESENT, ABSENT = _PRESENT.split(), _ABSENT.split()


def find(path: str, start: Any = sg) -> Any:
    for name in path.split("."):
        if path == "cfg.arch":
            sg.init(arch=sg.cpu)
        start = getattr(start, name)
    return start


@pytest.mark.parametrize("path", PRESENT)
def test_present(path: str) -> None:
    assert not isinstance(find(path), Later)
    assert "." in path or path in sg.__all__
    sg.reset()


@pytest.mark.parametrize("name", sorted({*ABSENT, *LATER}))
def test_later(name: str) -> None:
    stand_in = find(name)
    assert isinstance(stand_in, Later)
    assert not isinstance(1, stand_in)
    with pytest.raises(sg.SpirogradUnsupportedError, match=f"`{name}` is not supported in this version"):
        stand_in(1)
    with pytest.raises(sg.SpirogradUnsupportedError, match=rf"`{name}\.part`"):
        stand_in.part  # noqa: B018
    with pytest.raises(sg.SpirogradUnsupportedError):
        type("Derived", (stand_in,), {}) if not hasattr(stand_in, "__mro_entries__") else stand_in.__mro_entries__(())


def test_what_asks_all_modules_for_names_goes_on() -> None:
    """`pickle` does, for objects that do not tell their module."""
    assert not hasattr(find(min(LATER)), "part")


def test_unknown_names() -> None:
    assert not hasattr(sg.ad, "Tapes")
    near = {"fild": "field", "types.ndarry": "ndarray", "math.vec5": "vec4", "ad.Tap": "Tape", "errors.SpirogradErr": "SpirogradError"}
    for path, wanted in near.items():
        with pytest.raises(AttributeError, match=f"{path.rpartition('.')[2]}`; did you mean `{wanted}`"):
            find(path)
    with pytest.raises(AttributeError, match=r"it is `SpirogradTypeError` here, and `TaichiTypeError` in `spirograd.compat.taichi`"):
        find("TaichiTypeError")
    with pytest.raises(AttributeError, match=r"has no attribute `abcdefg`$"):
        find("abcdefg")


@pytest.mark.parametrize("path", [*(f"types.{name}" for name in LATER_TYPES), *(f"math.{name}" for name in LATER_MATH)])
def test_later_in_namespaces(path: str) -> None:
    assert isinstance(find(path), Later)
    with pytest.raises(sg.SpirogradUnsupportedError, match=rf"`{path}\.part` is not supported in this version"):
        find(path).part  # noqa: B018


def test_back_ends_and_options_of_the_family() -> None:
    with pytest.raises(sg.SpirogradUnsupportedError, match=r"`opengl`.*\n.*`sg.vulkan` and `sg.wgpu`"):
        sg.init(arch=sg.opengl)
    sg.init(arch=sg.interpreter)
    with pytest.raises(AttributeError, match="no option `debg`; did you mean `debug`"):
        sg.cfg.debg  # noqa: B018
    sg.reset()


def test_options_can_be_inspected_without_a_session() -> None:
    """From Python 3.12 on, `inspect` asks any object for names that begin with an underscore."""
    sg.reset()
    assert not inspect.iscoroutinefunction(sg.cfg)
    assert not hasattr(sg.cfg, "_is_coroutine_marker")


@pytest.mark.parametrize("arch", ["cpu", "interpreter"])
def test_extensions(arch: str) -> None:
    sg.init(arch=arch)
    assert sg.is_extension_enabled(sg.extension.data64)
    assert sg.is_extension_supported(arch, sg.extension.assertion)
    assert sg.is_extension_supported(arch, sg.extension.sparse)
    assert not sg.is_extension_supported(arch, sg.extension.mesh)
    assert not sg.is_extension_supported("amdgpu", sg.extension.data64)
    sg.reset()


def test_log_levels() -> None:
    sg.set_logging_level("error")
    assert sg.is_logging_effective("error")
    assert not sg.is_logging_effective("warn")
    with pytest.raises(sg.SpirogradRuntimeError, match="loud"):
        sg.set_logging_level("loud")
    sg.set_logging_level("warn")


def test_rescaled_index_and_functions_of_python() -> None:
    sg.init(arch=sg.cpu)
    fine, coarse = sg.field(sg.i32, (8, 4)), sg.field(sg.i32, (2, 8))

    @sg.pyfunc
    def double(x):  # type: ignore[no-untyped-def]
        return 2 * x

    @sg.kernel
    def k() -> sg.i32:
        index = sg.rescale_index(fine, coarse, sg.Vector([7, 3]))
        return index[0] * 100 + double(index[1])

    assert (k(), double(4)) == (112, 8)
    sg.reset()


# --- the family's names ------------------------------------------------------------------------------------------------------

FAMILY = {"taichi": "Taichi", "quadrants": "Quadrants"}
IMPORTS = [
    ("", "f32 kernel field Vector {}SyntaxError {}RuntimeError eig ui GUI init template x86_64 opengl DeviceCapability"),
    ("lang", "impl misc kernel Matrix"),
    ("lang.exception", "{}CompilationError {}TypeError {}NameError {}IndexError {}AssertionError {}RuntimeTypeError"),
    ("lang.impl", "current_cfg get_runtime field static"),
    ("lang.misc", "is_extension_supported is_arch_supported loop_config extension"),
    ("lang.ops", "sqrt cast atomic_add select"),
    ("lang.matrix", "Matrix Vector MatrixType MatrixField"),
    ("lang.struct", "Struct StructField"),
    ("lang.field", "Field ScalarField"),
    ("lang.kernel_impl", "kernel func data_oriented Kernel"),
    ("lang.snode", "SNode"),
    ("lang._ndarray", "Ndarray ScalarNdarray"),
    ("math", "vec3 mat2 clamp pi"),
    ("math._complex", "cmul cdiv csqrt"),
    ("_logging", "info set_logging_level supported_log_levels"),
    ("types", "ndarray NDArray vector struct quant"),
    ("types.primitive_types", "f32 i64 all_types"),
    ("types.ndarray_type", "NdarrayType"),
    ("ad", "Tape FwdMode no_grad"),
    ("simt", "block subgroup"),
    ("simt.block", "SharedArray sync"),
    ("algorithms", "PrefixSumExecutor parallel_sort"),
    ("aot", "Module"),
    ("linalg", "SparseMatrixBuilder SparseSolver MatrixFreeCG"),
    ("tools", "imwrite VideoManager"),
    ("profiler", "print_kernel_profiler_info query_kernel_profiler_info CuptiMetric"),
    ("profiler.scoped_profiler", "print_scoped_profiler_info"),
    ("experimental", "real_func"),
    ("_lib.core", "DeviceCapability DataType"),
    ("_lib.core.taichi_python", "DataType"),
    ("_lib.core.quadrants_python", "DataTypeCxx"),
    ("_snode.snode_tree", "SNodeTree"),
    ("_snode.fields_builder", "FieldsBuilder"),
]


@pytest.mark.parametrize("family", FAMILY)
@pytest.mark.parametrize(("module", "names"), IMPORTS, ids=lambda x: x.split()[0] if x else "top")
def test_family_imports(family: str, module: str, names: str) -> None:
    path = f"spirograd.compat.{family}" + (f".{module}" if module else "")
    found = importlib.import_module(path)
    top = importlib.import_module(f"spirograd.compat.{family}")
    assert found is find(module, top) if module else found is top
    for name in names.format(*[FAMILY[family]] * 8).split():
        assert getattr(found, name) is not None


@pytest.mark.parametrize("family", FAMILY)
def test_quantised_types_are_declared_and_not_used(family: str) -> None:
    ti: Any = importlib.import_module(f"spirograd.compat.{family}")
    ti.init(arch=ti.cpu)
    bit = ti.types.quant.int(1, signed=False)
    for use in (lambda: ti.field(bit, shape=3), lambda: ti.types.vector(3, bit), lambda: ti.cast(1, bit)):
        with pytest.raises(sg.SpirogradUnsupportedError, match=r"`types.quant.int\(1, signed=False\)` is not supported"):
            use()
    sg.reset()


@pytest.mark.parametrize("family", FAMILY)
def test_family_behaviour(family: str) -> None:
    import spirograd.compat.quadrants
    import spirograd.compat.taichi

    ti: Any = getattr(spirograd.compat, family)
    assert ti.lang.impl.get_runtime().prog is None  # by which programs learn that they must call `init`
    ti.init(arch=ti.amdgpu, log_level=ti.ERROR)  # the CPU takes over, as in the family
    assert ti.lang.impl.current_cfg().arch == ti.cfg.arch == "cpu"
    runtime = ti.lang.impl.get_runtime()
    assert ti.cfg.default_fp.to_string() == "f32" and isinstance(ti.f32, ti._lib.core.DataType)
    assert ti.lang.impl.get_runtime()._prog is not None
    assert (runtime.default_fp, runtime.prog.config().debug) == (ti.f32, False)
    assert runtime.prog.get_device_caps().get(ti._lib.core.DeviceCapability.spirv_has_float64) == 1
    assert getattr(ti, f"{FAMILY[family]}SyntaxError") is sg.SpirogradSyntaxError
    with pytest.raises(sg.SpirogradSyntaxError, match="`SharedArray` works in the body of a parallel loop"):
        ti.simt.block.SharedArray((4,), ti.f32)
    with pytest.raises(sg.SpirogradUnsupportedError, match=r"get_runtime\(\)\.prog\.launch"):
        runtime.prog.launch()
    with pytest.raises(AttributeError, match="did you mean `field`"):
        ti.feild  # noqa: B018
    sg.reset()


def test_tables_name_each_thing_once() -> None:
    assert not set(member_tables.MODULES) & set(member_tables.EMPTY_MODULES)
    assert not {name for name in member_tables.MAIN if isinstance(member_tables.MAIN[name], Later)}
    assert not set(sg.__all__) & set(LATER)


@pytest.mark.parametrize(
    ("options", "expected"), [({}, (True, 3)), ({"cfg_optimization": False}, (True, 1)), ({"opt_level": 0}, (True, 0))]
)
def test_levels_of_optimisation(options: dict[str, Any], expected: tuple[bool, int]) -> None:
    sg.init(arch=sg.cpu, **options)
    compiling = context.session().compile_options
    assert (compiling.optimize, compiling.opt_level) == expected
    sg.reset()


def test_algorithms_of_the_family_that_kernels_call_can_be_imported() -> None:
    found = importlib.import_module("spirograd.compat.quadrants.algorithms")
    assert found.parallel_sort is sg.algorithms.parallel_sort
    with pytest.raises(sg.SpirogradRuntimeError, match="`sort` is a function of the kernel language"):
        found.sort(1)
