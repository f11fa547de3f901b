"""docs/security.md lists every place of the package that turns text into code, addresses into memory or data into formats, and what reads
files or starts processes. A new one belongs on the page, with where its text comes from, and why that is safe."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "spirograd"
PAGE = ROOT / "docs" / "security.md"
BUILTINS = {"eval", "exec", "compile", "__import__", "format"}
# Functions of modules, by the name that the package gives these.
FUNCTIONS = {
    "importlib": {"import_module"},
    "pickle": {"load", "loads", "dumps", "dump"},
    "marshal": {"load", "loads"},
    "subprocess": {"run", "Popen", "call", "check_call", "check_output"},
    "os": {"system", "popen", "execv", "execve", "execvp", "startfile"},
    "np": {"load", "loadtxt", "genfromtxt"},
    "json": {"load", "loads"},
    "tempfile": {"mkdtemp", "mkstemp", "mktemp", "TemporaryDirectory", "NamedTemporaryFile", "TemporaryFile"},
    "ctypes": {"CDLL", "WinDLL", "PyDLL", "memmove", "memset", "string_at", "wstring_at", "addressof", "cast", "CFUNCTYPE", "PYFUNCTYPE"},
    "ffi": {"cast", "memmove", "from_buffer", "buffer", "string"},
    "struct": {"Struct", "pack", "unpack", "pack_into", "unpack_from", "calcsize"},  # with formats that are no constants
}
METHODS = {"from_address", "from_buffer", "open_memmap", "parse_assembly", "parse_bitcode", "add_object_file"}


def _kind(call: ast.Call) -> str:
    """What a call is on the page; "" if it has no place there."""
    function = call.func
    if isinstance(function, ast.Name):
        return function.id if function.id in BUILTINS else ""
    if not isinstance(function, ast.Attribute):
        return ""
    owner, name = function.value, function.attr
    if isinstance(owner, ast.Name) and name in FUNCTIONS.get(owner.id, ()):
        constant = call.args and isinstance(call.args[0], ast.Constant)
        return "" if owner.id == "struct" and constant else f"{owner.id}.{name}"
    if name in METHODS:
        return f".{name}"
    return ".format" if name == "format" and not isinstance(owner, ast.Constant) else ""


def uses(path: Path) -> Iterator[str]:
    """The kinds that a file has."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and (kind := _kind(node)):
            yield kind
        if isinstance(node, ast.keyword) and node.arg == "shell":
            yield "shell="
        if isinstance(node, ast.keyword) and node.arg == "allow_pickle":
            yield "allow_pickle="
        if isinstance(node, ast.Attribute) and node.attr in ("pythonapi", "py_object"):
            yield f"ctypes.{node.attr}"


def found() -> dict[str, set[str]]:
    """By file."""
    kinds = {path.relative_to(PACKAGE).as_posix(): set(uses(path)) for path in PACKAGE.rglob("*.py")}
    return {file: these for file, these in kinds.items() if these}


def listed() -> list[tuple[list[str], set[str]]]:
    """The rows of the tables of the page: files, and kinds that all of these have together."""
    rows = re.findall(r"^\| (`[^|]*\.py`[^|]*) \| ([^|]*) \| ([^|]*) \|$", PAGE.read_text(encoding="utf-8"), re.MULTILINE)
    assert all(len(reason) > 20 for *_, reason in rows), "the page does not say why a row is safe"
    return [(re.findall(r"`([^`]*)`", files), set(re.findall(r"`([^`]*)`", kinds))) for files, kinds, _ in rows]


def test_the_page_lists_all() -> None:
    there, rows = found(), listed()
    missing, gone = {}, {}
    for file, kinds in there.items():
        if left := kinds.difference(*[named for files, named in rows if file in files]):
            missing[file] = sorted(left)
    for files, named in rows:
        if left := (set(files) - there.keys()) | named.difference(*[there.get(file, set()) for file in files]):
            gone[", ".join(files)] = sorted(left)
    assert not missing, f"docs/security.md does not say where the text of these comes from: {missing}"
    assert not gone, f"docs/security.md lists what is not there any more: {gone}"


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("eval(x)", "eval"),
        ("template.format(a)", ".format"),
        ("'{}'.format(a)", ""),
        ("struct.Struct(f'<{n}Q')", "struct.Struct"),
        ("struct.Struct('<Q')", ""),
        ("format(value, spec)", "format"),
        ("(ctypes.c_int * 3).from_address(a)", ".from_address"),
        ("subprocess.run(command, shell=True)", "subprocess.run"),
    ],
)
def test_what_is_found(tmp_path: Path, text: str, kind: str) -> None:
    (tmp_path / "a.py").write_text(text)
    assert set(uses(tmp_path / "a.py")) - {"shell="} == ({kind} if kind else set())


def test_never() -> None:
    """No shell, no pickles from files, no names that can be foreseen."""
    kinds = set().union(*found().values())
    assert not kinds & {"shell=", "allow_pickle=", "os.system", "os.popen", "pickle.load", "marshal.loads", "np.load", "tempfile.mktemp"}
