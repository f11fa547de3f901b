"""Run a script and show every kernel that it compiles at each stage: IR, SPIR-V, disassembly, LLVM IR, assembly.

    spirograd dump script.py --to dumps -- --arguments --of --the --script      files in a folder
    spirograd dump script.py --html report.html --arch cpu,vulkan               one page for a browser, with kernels of two back ends

The script chooses the back end unless --arch (or SG_ARCH) is given. With several, the script runs once for each."""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from spirograd import dumps
from spirograd.commands.scripts import compat_argument, profile_argument, run_script
from spirograd.report.document import document, merged
from spirograd.report.page import Document, document_of, page

HELP = "run a script and show the stages of its kernels"
_DEFAULT_FOLDER = Path("spirograd_dumps")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the script, the folder or page and the back ends; the script's own arguments come after ``--``."""
    parser.add_argument("script", type=Path, help="a Python file")
    parser.add_argument("--to", type=Path, metavar="DIR", help=f"folder for files (default without --html: {_DEFAULT_FOLDER})")
    parser.add_argument("--html", type=Path, metavar="FILE", help="HTML page to write; it is self-contained")
    parser.add_argument("--quiet", action="store_true", help="do not list the files written")
    profile_argument(parser)
    compat_argument(parser)
    parser.add_argument("--arch", type=_arches, default=[], metavar="ARCH[,ARCH]", help="back ends to use instead of the script's")


def _arches(text: str) -> list[str]:
    return list(dict.fromkeys(name.strip() for name in text.split(",") if name.strip()))


def run(args: argparse.Namespace) -> int:
    """Run the script; list the files that are new or changed. Exit status: the script's, or 1 if nothing was compiled."""
    if not args.script.is_file():
        print(f"spirograd dump: there is no file {args.script}", file=sys.stderr)
        return 2
    if args.html is not None:
        args.html = args.html.absolute()  # the script may change the working directory
        if not args.html.parent.is_dir():
            print(f"spirograd dump: there is no folder {args.html.parent} for the page", file=sys.stderr)
            return 2
    if args.to is None and args.html is None:
        args.to = _DEFAULT_FOLDER
    return _run_each(args) if len(args.arch) > 1 else _run_here(args)


def _run_here(args: argparse.Namespace) -> int:
    if args.arch:
        os.environ["SG_ARCH"] = args.arch[0]
    if args.profile:
        os.environ["SG_PROFILE"] = args.profile
    before = _times(args.to)
    compilations: list[dumps.Compilation] = []
    listener = compilations.append
    if args.html is not None:
        dumps.listeners.append(listener)
    written: list[Path] = []
    try:
        if args.to is not None:
            os.environ["SG_DUMP"] = str(args.to.resolve())
        status = run_script(args.script, args.rest, compat=args.compat)
    finally:
        # if a script fails, the page has the kernels compiled so far
        if args.html is not None:
            dumps.listeners.remove(listener)
        if compilations:
            written.append(_write_page(args.html, document(compilations, args.script.name)))
    written += sorted(path for path, time in _times(args.to).items() if before.get(path) != time)
    if not written:
        print(f"{args.script} compiled no kernel; nothing was written")
    _list_files(args, written)
    return status or (0 if written else 1)


def _run_each(args: argparse.Namespace) -> int:
    """Run each back end in a process of its own, because modules that the script imports may hold fields of the first."""
    documents: list[Document] = []
    status = 0
    with tempfile.TemporaryDirectory() as folder:
        for number, arch in enumerate(args.arch):
            part = Path(folder, f"{number}.html")
            command = [sys.executable, "-m", "spirograd", "dump", str(args.script), "--arch", arch]
            command += ["--profile", args.profile] if args.profile else []
            command += ["--compat", args.compat] if args.compat else []
            command += ["--to", str(args.to)] if args.to is not None else []
            command += ["--html", str(part)] if args.html is not None else []
            command += ["--quiet"] if args.to is None or args.quiet else []
            status = subprocess.run([*command, "--", *args.rest], check=False).returncode or status
            if part.exists():
                documents.append(document_of(part.read_text(encoding="utf-8")))
    if documents:
        _list_files(args, [_write_page(args.html, merged(documents))])
    return status


def _list_files(args: argparse.Namespace, written: list[Path]) -> None:
    for path in [] if args.quiet else written:
        print(f"{path.stat().st_size:>9}  {path}")


def _write_page(path: Path, content: Document) -> Path:
    path.write_text(page(content), encoding="utf-8")
    return path


def _times(folder: Path | None) -> dict[Path, int]:
    if folder is None or not folder.is_dir():
        return {}
    return {path: path.stat().st_mtime_ns for path in folder.rglob("*") if path.is_file()}
