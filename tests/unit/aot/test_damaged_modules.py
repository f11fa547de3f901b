"""Modules that were altered: an error that names file and field; nothing in them is executed, and no file takes more memory than it has."""

from __future__ import annotations

import builtins
import json
import pickle
import struct
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import spirograd as sg
from spirograd.aot import archive
from spirograd.aot.requirements import problems
from spirograd.base.records import replace
from spirograd.llvmgen import ptx

CODE = "setattr(__import__('builtins'), 'altered_module', 1)"
ARCHS = ("cpu", "vulkan", "wgpu")
pytestmark = pytest.mark.archs(*ARCHS)


def saved(path: Path) -> Path:
    x = sg.field(sg.f32, shape=(4, 4))

    @sg.kernel
    def run(a: sg.types.NDArray[sg.f32, 1], n: sg.i32, m: sg.i32):
        for i, j in sg.ndrange(n, m):
            x[i % 4, j % 4] = a[0]
        if n < 0:
            print("n is", n)

    module = sg.aot.Module()
    module.add_field("x", x)
    module.add_kernel(run)
    module.save(path)
    return path


def altered(path: Path, change: Any, seal: bool = True, **files: bytes) -> Path:
    """A copy of a module whose manifest was changed. ``seal``: with the digest of what it is now."""
    with zipfile.ZipFile(path) as packed:
        found = {name: packed.read(name) for name in packed.namelist()} | files
    contents = json.loads(found["manifest.json"])
    change(contents)
    if seal:
        contents["digest"] = archive._digest(contents, [found[name] for name in contents["files"]])
    copy = path.with_name("altered.zip")
    with zipfile.ZipFile(copy, "w") as packed:
        for name, data in found.items():
            packed.writestr(name, json.dumps(contents) if name == "manifest.json" else data)
    return copy


def limit_of(contents: Any) -> Any:
    (limit,) = contents["manifest"]["kernels"][0]["compiled"]["space_limits"]
    return limit


def compiled_of(contents: Any) -> Any:
    return contents["manifest"]["kernels"][0]["compiled"]


@pytest.mark.parametrize("seal", [True, False])
@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("space_limits[0].most", CODE),
        ("space_limits[0].largest[0]", f"0) or {CODE} or (0"),
        ("space_limits[0].sizes[0].number", CODE),
        ("tasks[0].group_size", CODE),
        ("args.slots[0].index", CODE),
        ("args.slots[0].kind", "__class__"),
        ("faults", {"list": [CODE]}),
        ("space_limits[0].most", {"class": "Arg", "number": 0}),
    ],
)
def test_no_text_is_executed(session: Any, tmp_path: Path, field: str, value: Any, seal: bool) -> None:
    def change(contents: Any) -> None:
        at, *path = [int(part) if part.isdecimal() else part for part in field.replace("[", ".").replace("]", "").split(".")][::-1]
        target = compiled_of(contents)
        for part in reversed(path):
            target = target[part]
        target[at] = value

    path = altered(saved(tmp_path / "m.zip"), change, seal)
    with pytest.raises(sg.SpirogradDamagedError, match="is damaged: `manifest") as caught:
        sg.aot.load(path).kernel("run")(sg.ndarray(sg.f32, 1), 1, 1)
    assert caught.value.file == str(path) and caught.value.field.startswith(f"manifest.kernels[0].compiled.{field}")
    assert not hasattr(builtins, "altered_module")
    copy = pickle.loads(pickle.dumps(caught.value))
    assert (copy.file, copy.field, copy.problem, str(copy)) == (str(path), caught.value.field, caught.value.problem, str(caught.value))


def nested(depth: int) -> Any:
    size: Any = {"class": "Arg", "number": 1}
    for _ in range(depth):
        size = {"class": "Add", "a": size, "b": 1}
    return size


def path_of(*parts: Any) -> Any:
    """A change: the value at a path of the contents becomes the last one of ``parts``."""

    def change(contents: Any) -> None:
        *path, at, value = parts
        for part in path:
            contents = contents[part]
        contents[at] = value

    return change


KERNEL = ("manifest", "kernels", 0)
COMPILED = (*KERNEL, "compiled")
CHANGES = {
    r"`manifest.kernels\[0\].compiled.tasks\[0\].end` is nested too deeply": path_of(*COMPILED, "tasks", 0, "end", nested(140)),
    r"compiled.returns` is missing": lambda contents: compiled_of(contents).pop("returns"),
    r"compiled.more` is not a field of it": path_of(*COMPILED, "more", 1),
    r"compiled.run` is not a field of it": path_of(*COMPILED, "run", {"class": "Arg"}),
    r"compiled.binaries\[0\]` is .*, expected the number of one of": path_of(*COMPILED, "binaries", 0, {"bytes": 7}),
    r"compiled.args.size` is -8, expected 0 to": path_of(*COMPILED, "args", "size", -8),
    r"compiled.args.size` is 4, and the slots take": path_of(*COMPILED, "args", "size", 4),
    r"compiled.args.format` is '<9999999x', expected '<": path_of(*COMPILED, "args", "format", "<9999999x"),
    r"compiled.tasks\[0\].group_size` is 0, expected 1 to": path_of(*COMPILED, "tasks", 0, "group_size", 0),
    r"compiled.tasks\[0\].binary` is 99, and there are": path_of(*COMPILED, "tasks", 0, "binary", 99),
    r"compiled.temps_size` is an integer of more than 64 bits|temps_size` is \d+, expected 0": path_of(*COMPILED, "temps_size", 1 << 70),
    r"compiled.prints\[0\].parts\[1\]\[1\]` has too many digits": path_of(*COMPILED, "prints", 0, "parts", ["", [0, "999999d"]]),
    r"compiled.space_limits\[0\].largest` has 1 entries for 2 sizes": lambda contents: limit_of(contents)["largest"].pop(),
    r"kernels\[0\].parameters\[0\].name` is 'a b', expected a name": path_of(*KERNEL, "parameters", 0, "name", "a b"),
    r"kernels\[0\].parameters\[1\].first` is 2, expected 1": path_of(*KERNEL, "parameters", 1, "first", 2),
    r"manifest.kernels\[1\].name` is 'run', which another kernel has": lambda contents: contents["manifest"]["kernels"].append(
        contents["manifest"]["kernels"][0]
    ),
    r"`manifest.fields\[0\].memory` is 5, and there are 1": path_of("manifest", "fields", 0, "memory", 5),
    r"`manifest.fields\[0\].role` is '__init__', expected one of": path_of("manifest", "fields", 0, "role", "__init__"),
    r"`manifest.trees\[0\].nodes\[0\].kind` is 'parent', expected one of": path_of("manifest", "trees", 0, "nodes", 0, "kind", "parent"),
    r"`manifest.trees` cannot be made again: .*has another layout": path_of("manifest", "fields", 0, "shape", [2, 8]),
    r"`manifest.trees` cannot be made again: .* 64 as made again": path_of("manifest", "memory", 0, "nbytes", 8),
    r"`files\[0\]` the name '../../x' is none": path_of("files", 0, "../../x"),
    r"`more` is not a field of it": path_of("more", 1),
}


@pytest.mark.archs("cpu")
@pytest.mark.parametrize("message", CHANGES)
def test_what_does_not_fit(session: Any, tmp_path: Path, message: str) -> None:
    path = saved(tmp_path / "m.zip")
    change = CHANGES[message]
    if "files" in message or message.startswith("`more`"):
        with pytest.raises(sg.SpirogradDamagedError, match=message):
            sg.aot.load(altered(path, change, seal=False))
        return
    with pytest.raises(sg.SpirogradDamagedError, match=message):
        sg.aot.load(altered(path, change))


@pytest.mark.archs("cpu")
def test_a_number_that_was_changed(session: Any, tmp_path: Path) -> None:
    """It fits, so only the digest tells of it: without that, the kernel would do less."""
    path = saved(tmp_path / "m.zip")
    for change in (path_of(*COMPILED, "space_limits", []), lambda contents: compiled_of(contents)["effects"]["writes"]["set"].pop()):
        with pytest.raises(sg.SpirogradDamagedError, match="`digest` is that of other contents"):
            sg.aot.load(altered(path, change, seal=False))
    with pytest.raises(sg.SpirogradDamagedError, match="`digest` is that of other contents"):
        sg.aot.load(altered(path, lambda contents: contents.pop("digest"), seal=False))
    with zipfile.ZipFile(path) as packed:
        (name,) = json.loads(packed.read("manifest.json"))["files"]
        data = packed.read(name)
    other = data[:-1] + bytes([data[-1] ^ 1])
    with pytest.raises(sg.SpirogradDamagedError, match="`digest` is that of other contents"):
        sg.aot.load(altered(path, lambda contents: None, seal=False, **{name: other}))
    assert sg.aot.load(altered(path, lambda contents: None, seal=False))  # written anew, with the same contents


@pytest.mark.archs("cpu")
def test_the_text_of_the_manifest(session: Any, tmp_path: Path) -> None:
    path = saved(tmp_path / "m.zip")
    with zipfile.ZipFile(path) as packed:
        files = {name: packed.read(name) for name in packed.namelist()}
    text = files["manifest.json"].decode()

    def load(changed: str) -> None:
        with zipfile.ZipFile(tmp_path / "text.zip", "w") as packed:
            for name, data in files.items():
                packed.writestr(name, changed if name == "manifest.json" else data)
        sg.aot.load(tmp_path / "text.zip")

    for changed, message in (
        (text.replace('"format": 3', '"format": 3, "format": 3'), "`manifest.json` has `format` twice"),
        (text.replace('"format": 3', '"format": NaN'), "has NaN, which JSON does not have"),
        ("[" * 100_000 + "]" * 100_000, "`manifest.json` is nested too deeply"),
        (text[: len(text) // 2], "`manifest.json` is not JSON"),
        (text.replace('"format": 3', f'"format": {"9" * 5000}'), "is not JSON|has format"),
        (text.replace('"format": 3', '"format": true'), "has format True"),
    ):
        with pytest.raises(sg.SpirogradRuntimeError, match=message):
            load(changed)


@pytest.mark.archs("cpu")
def test_archives(session: Any, tmp_path: Path) -> None:
    path = saved(tmp_path / "m.zip")
    with zipfile.ZipFile(path) as packed:
        files = {name: packed.read(name) for name in packed.namelist()}

    def load(*entries: tuple[str, bytes], method: int = zipfile.ZIP_STORED) -> None:
        with zipfile.ZipFile(tmp_path / "made.zip", "w", method) as packed:
            for name, data in (*files.items(), *entries):
                packed.writestr(name, data)
        sg.aot.load(tmp_path / "made.zip")

    load()
    for name in ("../escaped", "/etc/escaped", "kernels/../../escaped", "a\\b", "c:x", "./x", "a//b", "new\nline"):
        with pytest.raises(sg.SpirogradDamagedError, match="is none of a file of a module"):
            load((name, b"x"))
    with pytest.raises(sg.SpirogradDamagedError, match=r"`manifest\.json` is compressed"):
        load(method=zipfile.ZIP_DEFLATED)
    with (
        pytest.warns(UserWarning, match="Duplicate name"),
        pytest.raises(sg.SpirogradDamagedError, match=r"`manifest\.json` is in the archive twice"),
    ):
        load(("manifest.json", b"{}"))
    data = bytearray((tmp_path / "m.zip").read_bytes())
    directory = data.rindex(b"PK\x01\x02")
    for at in (20, 24):  # lengths, packed and unpacked
        struct.pack_into("<I", data, directory + at, 0xFFFFFFF0)
    (tmp_path / "long.zip").write_bytes(data)
    with pytest.raises(sg.SpirogradDamagedError, match="is too long"):
        sg.aot.load(tmp_path / "long.zip")
    for end in range(2, len(data), 997):
        (tmp_path / "cut.zip").write_bytes(data[:end])
        with pytest.raises(sg.SpirogradDamagedError, match="it is no module"):
            sg.aot.load(tmp_path / "cut.zip")


@pytest.mark.archs("cpu")
def test_folders(session: Any, tmp_path: Path) -> None:
    """A module in a folder reads the files that it names, and no other."""
    saved(tmp_path / "module")
    (tmp_path / "module" / "others").write_text("of the user")
    run = sg.aot.load(tmp_path / "module").kernel("run")
    run(sg.ndarray(sg.f32, 1), 1, 1)
    (binary,) = (tmp_path / "module" / "kernels").iterdir()
    binary.write_bytes(binary.read_bytes()[:-1])
    with pytest.raises(sg.SpirogradDamagedError, match="`digest` is that of other contents"):
        sg.aot.load(tmp_path / "module")
    binary.unlink()
    with pytest.raises(sg.SpirogradDamagedError, match=f"`kernels/{binary.name}` is missing"):
        sg.aot.load(tmp_path / "module")


@pytest.mark.archs("cpu")
def test_messages_show_no_line_of_other_files(session: Any, tmp_path: Path) -> None:
    path = saved(tmp_path / "m.zip")

    def change(contents: Any) -> None:
        compiled_of(contents)["prints"][0]["loc"]["file"] = "/etc/passwd"

    with pytest.raises(sg.SpirogradDamagedError, match=r"`.*loc\.file` is '/etc/passwd', expected a name without a folder"):
        sg.aot.load(altered(path, change))


@pytest.mark.archs("vulkan", "wgpu")
def test_modules_of_spirv_have_their_entry_point(session: Any, tmp_path: Path) -> None:
    path = altered(saved(tmp_path / "m.zip"), path_of(*COMPILED, "tasks", 0, "entry", "another"))
    with pytest.raises(sg.SpirogradRuntimeError, match="the SPIR-V module has no entry point 'another'"):
        sg.aot.load(path).kernel("run")(sg.ndarray(sg.f32, 1), 1, 1)


@pytest.mark.archs("cpu")
def test_architectures_that_are_none(session: Any) -> None:
    device = ptx.capabilities("sm_90")
    for name in ("sm_", "x", "sm_99999999999"):
        assert problems(replace(ptx.capabilities("sm_70"), cpu_name=name), device, ())


def test_right_results(session: Any, tmp_path: Path) -> None:
    """Undamaged modules load and run."""
    loaded = sg.aot.load(saved(tmp_path / "m.zip"))
    a = sg.ndarray(sg.f32, 1)
    a.fill(3)
    loaded.kernel("run")(a, 4, 4)
    assert (loaded.field("x").to_numpy() == np.full((4, 4), 3)).all()
    with pytest.raises(sg.SpirogradRuntimeError):
        loaded.kernel("run")(a, 1 << 30, 1 << 30)
