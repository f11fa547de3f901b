"""The site of the documentation: its pages, the files that they mention, its diagrams and pictures. `make docs` builds it."""

from __future__ import annotations

import functools
import re

import pytest
from pages import PAGES, ROOT, name, prose

from tools import diagrams

DOCS = ROOT / "docs"
SITE_PAGES = [page for page in PAGES if DOCS in page.parents]
FOLDERS = ("benchmarks", "ci", "examples", "spirograd", "tests", "tools", "validation")
_PATH = re.compile(r"(?:[\w-]+/)*[\w-]+\.pyi?|(?:[\w-]+/)+[\w-]*")


@functools.cache
def all_files() -> str:
    """Each file and folder in a line, folders with a slash at the end."""
    paths = [path for folder in FOLDERS for path in ((ROOT / folder), *(ROOT / folder).rglob("*"))]
    return "".join(f"/{path.relative_to(ROOT).as_posix()}{'/' if path.is_dir() else ''}\n" for path in paths)


# --- pages, files, pictures ---


def test_every_page_is_in_the_navigation():
    listed = re.findall(r"^ +- (?:.+: )?([\w/-]+\.md)$", (ROOT / "mkdocs.yml").read_text(encoding="utf-8"), re.MULTILINE)
    assert sorted(listed) == sorted(page.relative_to(DOCS).as_posix() for page in SITE_PAGES)


@pytest.mark.parametrize("page", SITE_PAGES, ids=name)
def test_files_that_are_mentioned_exist(page):
    """Code that looks like a path is the end of one; `adding-an-operation.md` adds to files that are there."""
    text = all_files()
    spans = [span for span in re.findall(r"`([^`\n]+)`", prose(page.read_text(encoding="utf-8"))) if _PATH.fullmatch(span)]
    assert [span for span in spans if not re.search(rf"/{re.escape(span.rstrip('/'))}/?$", text, re.MULTILINE)] == []


def test_pages_that_the_source_mentions_exist():
    """In docstrings, messages and comments."""
    sources = [path for folder in FOLDERS for path in (ROOT / folder).rglob("*") if path.suffix in (".py", ".md", ".yml", ".html")]
    sources += [path for path in (ROOT / "ci").iterdir() if path.is_file()]
    pages = {(page, path.name) for path in sources for page in re.findall(r"\bdocs/[\w/-]+\.md", path.read_text(encoding="utf-8"))}
    assert len(pages) > 5
    assert sorted((page, source) for page, source in pages if not (ROOT / page).exists()) == []


def test_boxes_of_the_architecture_are_files():
    sources = diagrams.BLOCK.findall((DOCS / "architecture.md").read_text(encoding="utf-8"))
    boxes = [box for source in sources for box in re.findall(r'\["(\S+?)<br/>', source)]
    assert len(boxes) > 20 and all(source.count('["') == len(re.findall(r'\["\S+?<br/>', source)) for source in sources)
    assert [box for box in boxes if not (ROOT / box).exists()] == []
    table = re.findall(r"^\| (`spirograd/.*?) \|", (DOCS / "architecture.md").read_text(encoding="utf-8"), re.MULTILINE)
    packages = [package for cell in table for package in re.findall(r"`(.+?)`", cell)]
    assert [package for package in packages if not (ROOT / package).exists()] == []
    below = {path.name for path in (ROOT / "spirograd").iterdir() if path.is_dir() and (path / "__init__.py").exists()}
    assert below - {package.removeprefix("spirograd/") for package in packages} == set(), "packages without a row"


def test_diagrams_are_rendered():
    """tools/diagrams.py says how."""
    wanted = [found for page in SITE_PAGES for found in diagrams.diagrams(page)]
    assert [file.name for file, source in wanted if not diagrams.is_current(file, source)] == []
    assert {file for file, _ in wanted} == set(diagrams.FOLDER.glob("*.svg"))


def test_every_example_has_a_picture():
    """tools/gallery.py draws them."""
    gallery = (DOCS / "gallery.md").read_text(encoding="utf-8")
    examples = [path.stem for path in (ROOT / "examples").glob("*.py") if path.stem != "common"]
    assert [example for example in examples if f"`{example}.py`" not in gallery or f"(images/{example}.png)" not in gallery] == []


def test_pictures_are_small_and_shown():
    pictures = [path for path in (DOCS / "images").rglob("*") if path.is_file() and path.suffix != ".svg"]
    sizes = {picture.name: picture.stat().st_size for picture in pictures}
    assert max(sizes.values()) <= 150_000 and sum(sizes.values()) < 1_000_000
    text = "\n".join(page.read_text(encoding="utf-8") for page in PAGES)
    assert [picture for picture in sizes if f"images/{picture})" not in text] == []
