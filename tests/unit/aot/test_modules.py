"""Modules of compiled kernels that cannot be built or loaded: what the errors say. Requirements of code and abilities of devices."""

import dataclasses
import json
import re
import zipfile

import numpy as np
import pytest

import spirograd as sg
from spirograd.aot.requirements import problems
from spirograd.base.artifact import ArgBlock, CompiledKernel, TaskInfo
from spirograd.base.caps import Capabilities
from spirograd.base.records import replace
from spirograd.llvmgen import ptx


@pytest.fixture(autouse=True)
def _session():
    sg.init(arch=sg.cpu)
    yield
    sg.reset()


ARRAY = sg.types.NDArray[sg.f32, 1]


@sg.dataclass
class Pair:
    a: sg.f32
    b: sg.f32


@dataclasses.dataclass
class Settings:
    weight: sg.f32


def _refused():
    """Kernels that a module cannot have: arguments of `add_kernel`, and the error."""
    named, dense = sg.ndarray(sg.f32, 3), sg.field(sg.f32, shape=4, needs_grad=True)

    @sg.kernel
    def names_an_array():
        for i in dense:
            dense[i] = named[0]

    @sg.kernel
    def any_array(a: sg.types.ndarray()):
        a[0] = 1

    @sg.kernel
    def templated(n: sg.template()):
        dense[0] = n

    @sg.kernel
    def takes_struct(p: Pair):
        dense[0] = p.a

    @sg.kernel
    def takes_object(s: Settings):
        dense[0] = s.weight

    @sg.kernel
    def overwrites():
        for i in dense:
            dense[i] = dense[i] * dense[i]

    @sg.kernel
    def returns_several() -> (sg.f32, sg.i32):
        return dense[0], 1

    @sg.kernel
    def fine(a: ARRAY):
        a[0] = 1

    unsupported, value = sg.SpirogradUnsupportedError, sg.SpirogradValueError
    return {
        "names": ((names_an_array,), {}, unsupported, "names the ndarray `named`[^$]*pass it as an argument"),
        "class": ((takes_object,), {}, unsupported, "`s` is an instance of a class[^$]*pass its members one by one"),
        "any": ((any_array,), {}, value, r"`a` leaves open which arrays it takes[^$]*template_args=\{'a': array\}"),
        "template": ((templated,), {}, value, r"`n` is a template argument[^$]*template_args=\{'n': ...\}"),
        "struct": ((takes_struct,), {}, unsupported, "`p` is a struct"),
        "overwrites": ((overwrites,), {"gradients": True}, sg.SpirogradCompilationError, r"test_modules.py[^$]*dense\[i\] \* dense\[i\]"),
        "several": ((returns_several,), {}, unsupported, "returns"),
        "unknown": ((fine,), {"template_args": {"b": 1}}, value, "has no parameter `b`; it has `a`"),
        "no gradient": ((fine,), {"template_args": {"a": named}, "gradients": True}, value, "needs_grad=True"),
        "name": ((fine,), {"name": "a/b"}, value, "'a/b' cannot be a name"),
        "grad": ((fine,), {"name": "a.grad"}, value, "gradient"),
        "function": ((len,), {}, sg.SpirogradTypeError, "takes a kernel"),
    }


@pytest.mark.parametrize("case", ["names", "any", "template", "struct", "class", "overwrites", "several", "unknown",
                                  "no gradient", "name", "grad", "function"])  # fmt: skip
def test_what_cannot_be_built(case):
    args, options, error, message = _refused()[case]
    module = sg.aot.Module()
    with pytest.raises(error, match=message):
        module.add_kernel(*args, **options)
    assert module.manifest().kernels == ()


def test_names_are_given_once():
    @sg.kernel
    def fine(a: ARRAY):
        a[0] = 1

    module = sg.aot.Module()
    module.add_kernel(fine)
    with pytest.raises(sg.SpirogradValueError, match="has a kernel `fine` already"):
        module.add_kernel(fine)
    x, y = sg.field(sg.f32, shape=2), sg.field(sg.f32, shape=2)
    module.add_field("x", x)
    module.add_field("x", x)
    with pytest.raises(sg.SpirogradValueError, match="has a field called 'x' already"):
        module.add_field("x", y)
    with pytest.raises(sg.SpirogradValueError, match="takes a field that has a place"):
        module.add_field("z", sg.field(sg.f32))
    with module.add_kernel_template(fine) as template, pytest.raises(sg.SpirogradValueError, match="no kernel can be named"):
        template.instantiate(a=sg.ndarray(sg.f32, 2))


def test_back_ends_and_capabilities():
    for arch in ("wgpu", "interpreter", "amdgpu"):
        with pytest.raises(sg.SpirogradUnsupportedError, match=f"cannot be built for '{arch}' in a session on `sg.cpu`"):
            sg.aot.Module(arch)
    with pytest.raises(sg.SpirogradValueError, match="'int46'; did you mean 'int64'"):
        sg.aot.Module(sg.vulkan, caps={"int46": True})
    sg.init(arch=sg.interpreter)
    with pytest.raises(sg.SpirogradUnsupportedError, match="the interpreter runs no compiled code"):
        sg.aot.Module()


def test_capabilities_decide_what_a_module_may_use():
    @sg.kernel
    def wide(a: sg.types.NDArray[sg.f64, 1]):
        for i in a:
            a[i] = a[i] * 0.1

    with pytest.raises(sg.SpirogradUnsupportedError, match="a\\[i\\]"):
        sg.aot.Module(sg.vulkan).add_kernel(wide)
    module = sg.aot.Module(sg.vulkan, caps={"float64": True})
    module.add_kernel(wide)
    assert module.manifest().capabilities.float64


def _saved(tmp_path, name="m.zip"):
    x = sg.field(sg.f32, shape=3)

    @sg.kernel
    def run(a: ARRAY, n: sg.i32):
        for i in x:
            x[i] = a[i] * n

    module = sg.aot.Module()
    module.add_field("x", x)
    module.add_kernel(run)
    module.save(tmp_path / name)
    return tmp_path / name


def test_calls_that_do_not_fit(tmp_path):
    loaded = sg.aot.load(_saved(tmp_path))
    run, a = loaded.kernel("run"), sg.ndarray(sg.f32, 3)
    wrong = sg.SpirogradRuntimeTypeError
    for args, error, message in (
        ((a,), sg.SpirogradCallError, "`n`"),
        ((a, 1, 2), sg.SpirogradCallError, "it takes 2 arguments, got 3"),
        ((sg.ndarray(sg.i32, 3), 1), wrong, "argument `a`: expected an array of f32, got i32"),
        ((np.zeros((3, 1), np.float32), 1), wrong, "1 axis, got 2"),
        ((a, 1.5), wrong, "argument `n` takes an integer"),
        ((3, 1), wrong, "argument `a` takes an array"),
        ((a[0:2], 1), wrong, "whole arrays, got a view"),
    ):
        with pytest.raises(error, match=message):
            run(*args)
    with pytest.raises(sg.SpirogradValueError, match=r"no gradient of kernel `run`[^$]*gradients=True"):
        run.grad  # noqa: B018
    with pytest.raises(sg.SpirogradValueError, match="no kernel `runn`; did you mean `run`"):
        loaded.kernel("runn")
    with pytest.raises(sg.SpirogradValueError, match="no field `y`; it has `x`"):
        loaded.field("y")
    loss = sg.field(sg.f32, shape=(), needs_grad=True)
    with pytest.raises(sg.SpirogradRuntimeError, match=r"not recorded by `sg.ad.Tape`"), sg.ad.Tape(loss):
        run(a, 1)
    sg.init(arch=sg.cpu)
    with pytest.raises(sg.SpirogradRuntimeError, match="belongs to an earlier session"):
        run(a, 1)


def test_calls_in_kernels(tmp_path):
    loaded = sg.aot.load(_saved(tmp_path)).kernel("run")
    a = sg.ndarray(sg.f32, 3)

    @sg.kernel
    def outer(n: sg.i32):
        sg.static(loaded(a, 1))

    with pytest.raises((sg.SpirogradRuntimeError, sg.SpirogradCompilationError), match="cannot be called from a kernel"):
        outer(1)


def test_adjoints_of_results(tmp_path):
    x = sg.field(sg.f32, shape=2, needs_grad=True)

    @sg.kernel
    def total(a: ARRAY) -> sg.f32:
        s = 0.0
        for i in range(2):
            s += x[i] * a[i]
        return s

    @sg.kernel
    def both(a: ARRAY) -> sg.math.vec2:
        return sg.math.vec2(x[0] * a[0], x[1])

    @sg.kernel
    def none(a: ARRAY):
        for i in x:
            a[i] = x[i]

    module = sg.aot.Module()
    module.add_field("x", x)
    for kernel in (total, both, none):
        module.add_kernel(kernel, gradients=True)
    module.save(tmp_path / "m.zip")
    loaded = sg.aot.load(tmp_path / "m.zip")
    a = sg.ndarray(sg.f32, 2, needs_grad=True)
    a.fill(3.0)
    loaded.kernel("total").grad(a, returned=2.0)
    assert (loaded.field("x").grad.to_numpy() == 6.0).all()
    with pytest.raises(sg.SpirogradRuntimeTypeError, match="`returned=` takes what the kernel returns, got 'two'"):
        loaded.kernel("total").grad(a, returned="two")
    with pytest.raises(sg.SpirogradRuntimeError, match=r"returns a value: its gradient starts from the adjoint[^$]*returned=1.0"):
        loaded.kernel("both").grad(a)
    with pytest.raises(sg.SpirogradRuntimeError, match="`returned=` is given, but nothing that the kernel returns depends on memory"):
        loaded.kernel("none").grad(a, returned=1.0)


def test_gradients_of_arrays_that_share_memory(tmp_path):
    @sg.kernel
    def square(a: ARRAY, b: ARRAY):
        for i in a:
            b[i] = a[i] * a[i]

    module = sg.aot.Module()
    module.add_kernel(square, gradients=True)
    module.save(tmp_path / "m.zip")
    square = sg.aot.load(tmp_path / "m.zip").kernel("square")
    a, b = sg.ndarray(sg.f32, 3, needs_grad=True), sg.ndarray(sg.f32, 3, needs_grad=True)
    a.fill(3)
    square(a, b)
    b.grad.fill(1)
    square.grad(a, b)
    assert (a.grad.to_numpy() == 6).all()
    with pytest.raises(sg.SpirogradRuntimeError, match="arguments `b` and `a` share memory"):
        square.grad(a, a)
    with pytest.raises(sg.SpirogradRuntimeTypeError, match="needs_grad=True"):
        square.grad(sg.ndarray(sg.f32, 3), b)


def test_files_that_are_no_modules(tmp_path):
    path = _saved(tmp_path)
    with zipfile.ZipFile(path) as archive:
        files = {name: archive.read(name) for name in archive.namelist()}
    manifest = json.loads(files["manifest.json"])

    def load(change):
        contents = json.loads(json.dumps(manifest))
        change(contents)
        with zipfile.ZipFile(tmp_path / "changed.zip", "w") as archive:
            for name, data in files.items():
                archive.writestr(name, json.dumps(contents) if name == "manifest.json" else data)
        return sg.aot.load(tmp_path / "changed.zip")

    load(lambda plain: None).kernel("run")(sg.ndarray(sg.f32, 3), 1)
    changes = {
        "is damaged: `digest` is that of other contents": lambda plain: plain["manifest"]["fields"][0].update(shape=[2]),
        "has format 1": lambda plain: plain["manifest"].update(format=1),
        "has format None": lambda plain: plain.update(manifest=[]),
        "was built by spirograd 0": lambda plain: plain["manifest"].update(version="0"),
        r"is damaged: `manifest.kernels\[0\]` is a Kernel, expected a KernelRecord": lambda plain: plain["manifest"]["kernels"][0].update(
            {"class": "Kernel"}
        ),
        "`digest` is that of other": lambda plain: plain["manifest"]["memory"][0].update(nbytes=8),
        "is damaged: `missing` is missing": lambda plain: plain.update(files=["missing"]),
    }
    for message, change in changes.items():
        with pytest.raises(sg.SpirogradRuntimeError, match=message):
            load(change)
    (tmp_path / "text.zip").write_text("no archive")
    for name in ("text.zip", "nothing.zip"):
        with pytest.raises(sg.SpirogradRuntimeError, match=f"{re.escape(str(tmp_path / name))} is no module"):
            sg.aot.load(tmp_path / name)
    data = path.read_bytes()
    (tmp_path / "cut.zip").write_bytes(data[: len(data) // 2])
    with pytest.raises(sg.SpirogradRuntimeError, match="is no module"):
        sg.aot.load(tmp_path / "cut.zip")


def _kernel(group_size=64, block=100):
    return CompiledKernel("k", "vulkan", "", ArgBlock((), "", block), (TaskInfo("t", "range_for", "main", 0, group_size=group_size),))


_DEVICE = Capabilities("vulkan", int64=True, subgroup_size=32, subgroup_arithmetic=True, exact_specials=(32, 64))


@pytest.mark.parametrize(
    ("code", "device", "message"),
    [
        ({}, {}, ""),
        ({}, {"float64": True, "shared_memory": 65536, "exact_specials": (16, 32, 64)}, ""),
        ({"int64": False}, {}, ""),
        ({"subgroup_size": 0, "subgroup_arithmetic": False}, {"subgroup_size": 64}, ""),
        ({}, {"int64": False}, "`int64` is True in the module and False on the device"),
        ({}, {"subgroup_size": 64}, "`subgroup_size` is 32"),
        ({}, {"shared_memory": 1024}, "`shared_memory`"),
        ({}, {"exact_specials": (32,)}, "`exact_specials`"),
        ({}, {"loop_limit": 65535}, "`loop_limit` is 0 in the module and 65535"),
        ({"loop_limit": 65535}, {}, ""),
        ({"memory_barriers": False}, {}, "`memory_barriers`"),
        ({}, {"memory_barriers": False}, "`memory_barriers`"),
        ({"matrix_shapes": ("m16n16k16_f16",)}, {}, "`matrix_shapes`"),
        ({"matrix_shapes": ("m16n16k16_f16",)}, {"matrix_shapes": ("m16n8k16_f16", "m16n16k16_f16")}, ""),
        ({}, {"max_group_size": 32}, "workgroups of 64 invocations, and the device takes 32"),
        ({}, {"max_push_constants": 64}, "take 100 bytes"),
        ({}, {"max_push_constants": 256}, ""),
    ],
)
def test_requirements(code, device, message):
    found = problems(replace(_DEVICE, **code), replace(_DEVICE, **device), [_kernel()])
    assert [True] * bool(message) == [message in line for line in found]


def test_requirements_of_processors():
    old, new = ptx.capabilities("sm_70"), ptx.capabilities("sm_90")
    assert problems(old, new, []) == []
    *abilities, architecture = problems(new, old, [])
    assert architecture == "the code is for sm_90, and the device is sm_70"
    assert all(line.startswith(("`subgroup_reductions`", "`subgroup_scans`", "`matrix_shapes`")) for line in abilities)
    amd = replace(old, target_name="amdgpu", cpu_name="gfx1100")
    assert problems(amd, replace(amd, cpu_name="gfx1200"), []) != []
    host = sg.lang.context.session().device.caps
    assert problems(host, host, []) == []
    assert problems(host, replace(host, cpu_features="+sse2"), []) != []
    assert problems(replace(host, cpu_features="+sse2,-avx"), host, []) == []
