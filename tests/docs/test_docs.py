"""Every Python block of the documentation runs, page by page; a text block right after one is what it prints."""

from __future__ import annotations

import dataclasses
import re
import subprocess
import sys
from pathlib import Path

import needs
import pytest
from pages import BLOCK, PAGES, ROOT, WITH_CODE, Block, blocks, name, program

import spirograd as sg
from spirograd.base.knobs import KNOBS
from spirograd.config import Config

_LINK = re.compile(r"\]\(([^)#\s]*)(?:#([^)]*))?\)")


@pytest.mark.parametrize("page", WITH_CODE, ids=name)
def test_blocks_run(page, tmp_path, capsys, monkeypatch):
    """In one namespace, from a file whose lines are those of the page, so that kernels find their source and errors name the line."""
    text = page.read_text(encoding="utf-8")
    for arch in needs.ARCHS:
        if re.search(rf"\bsg\.{arch}\b", program(text)):
            needs.need(arch)
    for package in ("torch", "jax"):
        if f"import {package}" in program(text):
            needs.need(package)
    monkeypatch.chdir(tmp_path)
    file = tmp_path / f"{page.stem}.py"
    file.write_text(program(text), encoding="utf-8")
    namespace = {"__name__": "__main__", "__file__": str(file)}
    try:
        for block in blocks(text):
            capsys.readouterr()
            exec(compile("\n" * block.line + block.source, str(file), "exec", dont_inherit=True), namespace)
            if block.printed is not None:
                printed = capsys.readouterr().out.replace(str(file), file.name)
                assert printed == block.printed, f"{page.name}:{block.line}"
    finally:
        sg.reset()


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_links_lead_somewhere(page):
    text = re.sub(r"`[^`\n]+`", "", BLOCK.sub("", page.read_text(encoding="utf-8")))
    links = [(page.parent / target if target else page, anchor) for target, anchor in _LINK.findall(text) if "://" not in target]
    assert [target for target, _ in links if not target.exists()] == []
    assert [f"{target.name}#{anchor}" for target, anchor in links if anchor and anchor not in anchors(target)] == []


def anchors(page: Path) -> set[str]:
    """The anchors of the headings of a page, as the site and hosts of repositories make them."""
    headings = re.findall(r"^#+ (.+)$", BLOCK.sub("", page.read_text(encoding="utf-8")), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def test_operations_page_is_up_to_date():
    done = subprocess.run([sys.executable, str(ROOT / "tools" / "gen_ops_doc.py"), "--check"], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_knobs_page_is_complete():
    text = (ROOT / "docs" / "knobs.md").read_text(encoding="utf-8")
    missing = [name for name, knob in KNOBS.items() if f"| `{name}` | {knob.doc} |" not in text]
    assert not missing, "rows `| `NAME` | its documentation |` for these variables"
    assert set(re.findall(r"^\| `((?:SG|QD)_\w+)`", text, re.MULTILINE)) == set(KNOBS)
    options = {f.name for f in dataclasses.fields(Config)}
    assert set(re.findall(r"^\| `([a-z]\w+)` \|", text, re.MULTILINE)) == options


def test_only_the_text_block_right_after_is_output():
    page = "a\n```python\nx = 1\nprint(x)\n```\n\n```text\n1\n```\nThen:\n```text\nsomething else\n```\n"
    assert blocks(page) == [Block(2, "x = 1\nprint(x)\n", "1\n")]
