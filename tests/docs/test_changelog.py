"""CHANGELOG.md: the newest release is the version of the package, and sections are those of Keep a Changelog."""

from __future__ import annotations

import re

from pages import ROOT

from spirograd.base.version import __version__

TEXT = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
SECTIONS = {"Highlights", "Migration", "Added", "Changed", "Deprecated", "Removed", "Fixed", "Security"}


def test_releases() -> None:
    titles = re.findall(r"^## (.+)$", TEXT, re.MULTILINE)
    assert titles[0] == "Unreleased"
    releases = [re.fullmatch(r"(\d+\.\d+\.\d+)( - \d{4}-\d{2}-\d{2})?", title) for title in titles[1:]]
    assert all(releases)
    newest = releases[0]
    assert newest is not None and newest[1] == __version__ and newest[2]
    assert f'\nversion = "{__version__}"\n' in (ROOT / "pyproject.toml").read_text(encoding="utf-8")


def test_sections() -> None:
    assert set(re.findall(r"^### (.+)$", TEXT, re.MULTILINE)) <= SECTIONS
