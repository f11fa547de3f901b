"""Files of modules: the same bytes each time, for other back ends, with text for Metal; loading them needs no compiler."""

import json
import re
import subprocess
import sys
import zipfile
from pathlib import Path

import numpy as np
import pytest
from backend.mixing import mix

import spirograd as sg

pytestmark = pytest.mark.archs("cpu", "vulkan", "wgpu", "cuda", "amdgpu")  # no code of the interpreter's can be stored
ROOT = Path(__file__).resolve().parents[2]


def _program(path):
    """A module whose fields have other numbers in the process each time."""
    x, y = sg.field(sg.f32, shape=6, needs_grad=True), sg.field(sg.f32, shape=6, needs_grad=True)

    @sg.kernel
    def run(n: sg.i32, a: sg.types.NDArray[sg.f32, 1]):
        for i in x:
            s = x[i]
            for _ in range(n):
                s = sg.exp(s) * a[i]
            y[i] = s

    module = sg.aot.Module()
    module.add_field("x", x)
    module.add_kernel(run, gradients=True)
    module.add_kernel(mix)
    module.save(path)
    return path.read_bytes()


def test_calls_in_ptx_are_counted_by_module(tmp_path):
    sg.init(arch=sg.interpreter)
    x, y = (sg.field(sg.f32, shape=6, needs_grad=True) for _ in range(2))

    @sg.kernel
    def run(n: sg.i32):
        for i in x:
            s = x[i]
            for _ in range(n):
                s = sg.exp(s)
            y[i] = s

    texts = []
    for name in ("a.zip", "b.zip"):
        module = sg.aot.Module(sg.cuda, {})
        module.add_kernel(run, gradients=True)
        module.save(tmp_path / name)
        texts.append((tmp_path / name).read_bytes())
    assert texts[0] == texts[1] and texts[0].count(b"// callseq 0") > 1


def test_the_same_program_gives_the_same_bytes(arch, tmp_path):
    sg.init(arch=arch)
    first = _program(tmp_path / "a.zip")
    sg.init(arch=arch)
    sg.field(sg.i32, shape=3).fill(1)
    assert _program(tmp_path / "b.zip") == first
    with zipfile.ZipFile(tmp_path / "a.zip") as archive:
        assert {entry.date_time for entry in archive.infolist()} == {(1980, 1, 1, 0, 0, 0)}
        assert archive.testzip() is None
        manifest = json.loads(archive.read("manifest.json"))
        assert sorted(manifest["files"]) == sorted(set(archive.namelist()) - {"manifest.json"})
        text = b"".join(archive.read(name) for name in archive.namelist())
    assert str(ROOT).encode() not in text


_ALONE = """
import sys
import numpy as np
import spirograd as sg
sg.init(arch=sys.argv[1], offline_cache=False)
loaded = sg.aot.load(sys.argv[2])
loaded.field("x").from_numpy(np.full(6, 0.5, np.float32))
a = sg.ndarray(sg.f32, 6, needs_grad=True)
a.fill(0.5)
loaded.kernel("run")(2, a)
loaded.kernel("run").grad(2, a)
sg.sync()
parts = {name.split(".")[1] for name in sys.modules if name.startswith("spirograd.")}
print(sorted(parts & {"compiler", "analysis", "transforms", "autodiff", "spirvgen"}), "spirograd.llvmgen.emit" in sys.modules)
"""


def test_loading_imports_no_compiler(arch, tmp_path):
    sg.init(arch=arch)
    _program(tmp_path / "a.zip")
    sg.reset()
    done = subprocess.run([sys.executable, "-c", _ALONE, arch, tmp_path / "a.zip"], capture_output=True, text=True, cwd=ROOT, timeout=120)
    assert (done.stdout.strip(), done.stderr) == ("[] False", "")


def test_a_module_of_another_back_end(session, arch, tmp_path):
    """Code for devices that are not there, in any session."""
    x = sg.field(sg.f32, shape=5, needs_grad=True)

    @sg.kernel
    def twice():
        for i in x:
            x[i] *= 2

    module = sg.aot.Module(sg.cuda, caps={"cpu_name": "sm_90"})
    module.add_kernel(mix, gradients=True)
    module.save(tmp_path / "folder")
    assert ".target sm_90" in (tmp_path / "folder" / "kernels" / "mix.0.ptx").read_text()
    portable = sg.aot.Module(sg.vulkan)
    portable.add_field("x", x)
    portable.add_kernel(twice)
    portable.archive(tmp_path / "portable")
    native = sg.aot.Module(sg.cpu)
    native.add_field("x", x)
    native.add_kernel(twice)
    native.save(tmp_path / "native.zip")
    for path, wanted in (("folder", "cuda"), ("portable", "vulkan"), ("native.zip", "cpu")):
        if arch == wanted:
            continue
        with pytest.raises(sg.SpirogradRuntimeError, match=f"is a module for `sg.{wanted}`"):
            sg.aot.load(tmp_path / path)
    sg.init(arch=sg.cpu)
    loaded = sg.aot.load(tmp_path / "native.zip")
    loaded.field("x").fill(4)
    loaded.kernel("twice")()
    assert (loaded.field("x").to_numpy() == 8).all()


def _bindings(module):
    """The names of the buffers of a SPIR-V module by the numbers of their bindings, as an identifier has them."""
    words, at, names, found = np.frombuffer(module, np.uint32).tolist(), 5, {}, {}
    while at < len(words):
        code, length = words[at] & 0xFFFF, words[at] >> 16
        if code == 5:  # OpName
            names[words[at + 1]] = np.array(words[at + 2 : at + length], np.uint32).tobytes().rstrip(b"\0").decode()
        if code == 71 and words[at + 2] == 33:  # OpDecorate ... Binding
            found[words[at + 3]] = words[at + 1]
        at += length
    return {binding: re.sub(r"\W+", "_", names[rid]) for binding, rid in found.items()}


@pytest.mark.archs("cpu", "wgpu")  # for what each Mac has, and for this device
@pytest.mark.needs("spirv-cross", "g++")
def test_code_for_metal(arch, tmp_path):
    """What the manifest says of buffers and threads is what the text and the SPIR-V say; a stand-in for Metal's library takes the text."""
    sg.init(arch=arch)
    module = sg.aot.Module(sg.metal if arch == "cpu" else None)
    module.add_kernel(mix, gradients=True)
    module.save(tmp_path / "m", msl=True)
    for name in ("a.zip", "b.zip"):
        module.save(tmp_path / name, msl=True)
    assert (tmp_path / "a.zip").read_bytes() == (tmp_path / "b.zip").read_bytes()
    contents = json.loads((tmp_path / "m" / "manifest.json").read_text())
    compiled = [kernel["compiled"] for kernel in contents["manifest"]["kernels"]]
    tasks = {compiled["binaries"][task["binary"]]["bytes"]: task for compiled in compiled for task in compiled["tasks"]}
    assert len(tasks) >= 2
    for number, task in tasks.items():
        entry, path = contents["metal"][number], tmp_path / "m" / contents["files"][number]
        text = (tmp_path / "m" / entry["file"]).read_text()
        (parameters,) = re.findall(rf"^kernel void {entry['entry']}\((.*)\)$", text, re.MULTILINE)
        given = {int(number): name for name, number in re.findall(r"& (\w+) \[\[buffer\((\d+)\)\]\]", parameters)}
        assert given.pop(entry["arguments"], "arguments") == "arguments"
        assert len(task["bindings"]) == len(entry["bindings"])
        assert given == {entry["bindings"][binding]: name for binding, name in _bindings(path.read_bytes()).items()}
        reflected = subprocess.run(["spirv-cross", path, "--reflect"], capture_output=True, check=True).stdout
        (function,) = json.loads(reflected)["entryPoints"]
        assert function["workgroup_size"] == [task["group_size"], 1, 1]
    texts = sorted((tmp_path / "m" / "kernels").glob("*.metal"))
    assert len(texts) == len(contents["files"])
    options = ["-std=c++17", "-fsyntax-only", "-w", "-fsingle-precision-constant", f"-I{ROOT}/validation/metal_shim", "-x", "c++"]
    subprocess.run(["g++", *options, *texts], check=True, timeout=120)
    assert sg.aot.load(tmp_path / "a.zip").kernels if arch == "wgpu" else True


def test_saving_deletes_the_files_of_the_module_before(arch, tmp_path, monkeypatch):
    """Of kernels that the new one lacks, and Metal's text if there is none now; no other files."""
    sg.init(arch=arch)

    @sg.kernel
    def more(x: sg.types.NDArray[sg.f32, 1]):
        for i in x:
            x[i] += 1.0

    def module(*kernels):
        made = sg.aot.Module()
        for kernel in kernels:
            made.add_kernel(kernel)
        return made

    (tmp_path / "kernels").mkdir()
    others = {"kernels/notes.txt", "kernels/README", "mine.spv"}
    for name in others:
        (tmp_path / name).write_text("of the user")
    module(mix, more).save(tmp_path)
    (tmp_path / "kernels" / "mix.0.metal").write_text("old")
    module(mix).save(tmp_path)
    found = {path.relative_to(tmp_path).as_posix() for path in tmp_path.rglob("*") if path.is_file()}
    assert found == {"manifest.json", *others, *json.loads((tmp_path / "manifest.json").read_text())["files"]}
    assert [*sg.aot.load(tmp_path).kernels] == ["mix"]


def test_code_for_metal_that_cannot_be_made(arch, tmp_path, monkeypatch):
    sg.init(arch=arch)
    module = sg.aot.Module(sg.metal)
    module.add_kernel(mix)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(sg.SpirogradRuntimeError, match=r"the command `spirv-cross`, which is not on the path[^$]*apt install spirv-cross"):
        module.save(tmp_path / "m", msl=True)
    (tmp_path / "spirv-cross").write_text("#!/bin/sh\necho it failed >&2\nexit 1\n")
    (tmp_path / "spirv-cross").chmod(0o755)
    with pytest.raises(sg.SpirogradRuntimeError, match=r"cannot translate kernels/mix\.0\.spv: it failed"):
        module.archive(tmp_path / "m.zip", msl=True)
    if arch != "wgpu":
        with pytest.raises(sg.SpirogradUnsupportedError, match=f"a module for `sg.{arch}` has no code for Metal"):
            sg.aot.Module().save(tmp_path / "m", msl=True)
    assert not (tmp_path / "m").exists() and not (tmp_path / "m.zip").exists()
