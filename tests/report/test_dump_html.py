"""`spirograd dump --html`: what is on the page, and from which line of Python each line comes."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest
from report import reading
from report.reading import CALL, LOOP, SQUARE, STORE, data_of, dump, kernel, python_lines

from spirograd.report import native, shaders
from spirograd.report.page import document_of, page

ARCHS = ("interpreter", "cpu", "vulkan", "wgpu")
TITLES = {
    "interpreter": ["Python", "IR: kernel"],
    "cpu": ["Python", "IR: kernel", "IR: offloaded", "IR: device", "IR: vectors", "IR: loops", "LLVM", "LLVM optimised", "assembly"],
    "vulkan": ["Python", "IR: kernel", "IR: offloaded", "IR: device", "SPIR-V", "MSL"],
}
TITLES["wgpu"] = TITLES["vulkan"]


@pytest.fixture(scope="module")
def text_of(tmp_path_factory):
    """The page of a back end, made once."""
    pages = {}

    def get(arch: str) -> str:
        reading.needs.need(arch)
        if arch not in pages:
            folder = tmp_path_factory.mktemp(arch)
            done = dump(folder, "--arch", arch)
            assert done.returncode == 0, done.stderr
            pages[arch] = (folder / "page.html").read_text(encoding="utf-8")
        return pages[arch]

    return get


@pytest.mark.parametrize("name", ARCHS)
def test_page_has_every_kernel_and_stage(text_of, name):
    document = data_of(text_of(name))
    assert document["title"] == reading.NAME
    assert [k["name"] for k in document["kernels"]] == ["fill", "count"]
    for entry in document["kernels"]:
        assert list(dict.fromkeys(stage["title"] for stage in entry["stages"])) == TITLES[name]
        assert entry["arch"] == name
        assert entry["seconds"] > 0
        for stage in entry["stages"]:
            assert len(stage["lines"]) == len(stage["places"])
            assert all("\n" not in line for line in stage["lines"])
    assert kernel(document, "fill")["signature"] == "fill(offset: f32, a: f32[:])"


@pytest.mark.parametrize("name", ARCHS)
def test_page_needs_nothing_from_outside(text_of, name):
    page_text = text_of(name)
    shell = page_text.replace(re.search(r'<script type="application/json".*?</script>', page_text, re.S)[0], "")
    assert not re.search(r"https?://|\bsrc=|href=|@import|url\(", shell)
    assert "default-src 'none'" in shell


@pytest.mark.parametrize("name", ARCHS)
def test_python_of_the_kernel_and_of_what_it_inlines(text_of, name):
    python = kernel(data_of(text_of(name)), "fill")["stages"][0]
    shown = {number: line for number, line in zip(python["numbers"], python["lines"]) if number}
    source = reading.SCRIPT.splitlines()
    assert all(line == source[number - 1] for number, line in shown.items())
    assert {*range(8, 11), *range(14, 19)} == set(shown)
    assert [line.rpartition(": ")[2] for line in python["lines"] if line.startswith("# /")] == ["fill", "square"]


@pytest.mark.parametrize(
    ("name", "title", "text", "line"),
    [
        ("interpreter", "IR: kernel", "= mul(", SQUARE),
        ("cpu", "IR: kernel", "= mul(", SQUARE),
        ("cpu", "IR: kernel", "for[", LOOP),
        ("cpu", "IR: device", "store[", STORE),
        ("cpu", "LLVM", "fmul", SQUARE),
        ("cpu", "LLVM", "store float", STORE),
        ("cpu", "LLVM optimised", " = fmul ", SQUARE),
        ("cpu", "LLVM optimised", "store <", STORE),
        ("vulkan", "SPIR-V", "OpFMul", SQUARE),
        ("vulkan", "SPIR-V", "OpStore %iteration", LOOP),
        ("vulkan", "SPIR-V", "OpFAdd", CALL),
        ("wgpu", "SPIR-V", "OpFMul", SQUARE),
    ],
)
def test_lines_come_from_the_right_python(text_of, name, title, text, line):
    found = python_lines(kernel(data_of(text_of(name)), "fill"), title, text)
    assert found == [{line}] * len(found)


def test_lines_of_assembly(text_of):
    (stage,) = [s for s in kernel(data_of(text_of("cpu")), "fill")["stages"] if s["title"] == "assembly"]
    assert stage["note"] == "", "debug locations have changed the code"
    entry = kernel(data_of(text_of("cpu")), "fill")
    multiplies = re.compile(r"\s+v?f?mul(ps|ss)?\b")
    places = [entry["places"][p][1] for line, p in zip(stage["lines"], stage["places"]) if p >= 0 and multiplies.match(line)]
    assert places and set(places) == {SQUARE}


@pytest.mark.parametrize("name", ["vulkan", "wgpu"])
def test_lines_of_metal(text_of, name):
    reading.needs.need("spirv-cross")
    entry = kernel(data_of(text_of(name)), "fill")
    assert any({SQUARE, STORE} <= lines for lines in python_lines(entry, "MSL", "] = "))
    assert not any("#line" in line for stage in entry["stages"] for line in stage["lines"])


def test_metal_without_the_translator(monkeypatch):
    monkeypatch.setattr(shutil, "which", lambda program: None)
    assert "install SPIRV-Cross" in shaders.metal(b"").note


def test_modules_that_cannot_be_translated_say_so():
    reading.needs.need("spirv-cross")
    found = shaders.metal(b"no module")
    assert found.lines == []
    assert "cannot translate" in found.note


def test_stages_that_debug_locations_change_are_not_mapped():
    listing = native._aligned("  ret i32 1\n", ["  ret i32 2, !dbg !1"], [("f", 1)], native._ir_form)
    assert listing.places == [None]
    assert "cannot be mapped" in listing.note


def test_facts_of_shaders(text_of):
    document = data_of(text_of("vulkan"))
    fill, count = kernel(document, "fill"), kernel(document, "count")
    rows = {slot["name"]: slot for slot in fill["block"]["slots"]}
    assert {name: (slot["kind"], slot["type"]) for name, slot in rows.items()} == {
        "field_of_x": ("tree", "address (u64)"),
        "a": ("array", "address (u64)"),
        "offset": ("scalar", "f32"),
    }
    assert [slot["offset"] for slot in fill["block"]["slots"]] == [0, 8, 16]
    (task,) = fill["tasks"]
    assert (task["bounds"], task["known"], task["group_size"], task["groups"]) == ("0 .. 1000", "constant", "256", "at most 4")
    assert task["size"] > 1000
    assert "Shader" in task["capabilities"]
    (task,) = count["tasks"]
    assert (task["bounds"], task["known"]) == ("0 .. n", "argument")
    assert task["groups"].startswith("at most min(ceil(n / 256), ")


def test_bindings_of_wgpu(text_of):
    rows = kernel(data_of(text_of("wgpu")), "fill")["block"]["slots"]
    assert {row["name"]: row["bindings"] for row in rows if row["bindings"]} == {"field_of_x": ["fill_0:0"], "a": ["fill_0:1"]}


def test_several_back_ends_on_one_page(tmp_path):
    reading.needs.need("vulkan")
    done = dump(tmp_path, "--arch", "cpu,vulkan", "--quiet")
    assert (done.returncode, done.stdout) == (0, ""), done.stderr
    found = [(k["arch"], k["name"]) for k in data_of((tmp_path / "page.html").read_text())["kernels"]]
    assert found == [("cpu", "fill"), ("cpu", "count"), ("vulkan", "fill"), ("vulkan", "count")]


def test_a_script_that_fails_has_a_page_too(tmp_path):
    done = dump(tmp_path, "--arch", "cpu", script=reading.SCRIPT + "\nraise ValueError('oops')\n")
    assert done.returncode == 1
    assert "oops" in done.stderr
    assert len(data_of((tmp_path / "page.html").read_text())["kernels"]) == 2


def test_no_kernel_no_page(tmp_path):
    done = dump(tmp_path, "--arch", "cpu", script="pass\n")
    assert done.returncode == 1
    assert "compiled no kernel" in done.stdout
    assert not (tmp_path / "page.html").exists()


def test_no_folder_for_the_page(tmp_path):
    done = dump(tmp_path, "--html", str(tmp_path / "none" / "page.html"))
    assert done.returncode == 2
    assert "there is no folder" in done.stderr


@pytest.mark.parametrize("evil", ["</script><b>", "<!-- <script>", "]]>", "{{PROGRAM}} {{DATA}} \\1 \\g<0>", "\u2028 & \ud7ff"])
def test_texts_cannot_leave_the_data(evil):
    document = {"title": evil, "kernels": [{"name": evil}]}
    made = page(document)
    assert made.count("</script") == page({"title": "", "kernels": []}).count("</script") == 2
    assert data_of(made) == document == document_of(made)


def test_other_files_are_no_pages():
    with pytest.raises(ValueError, match="not a page"):
        document_of(Path(__file__).read_text(encoding="utf-8").replace("script", ""))
