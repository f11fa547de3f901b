"""Pages of documents: one self-contained HTML file with its style, script and data."""

from __future__ import annotations

import html
import json
import re
from importlib import resources
from typing import TypedDict

_OPEN = '<script type="application/json" id="report-data">'
_CLOSE = "</script>"
# Inside of <script>, a browser looks for "</script" and "<!--" only, which cannot occur without these three characters.
_ESCAPES = {"<": "\\u003c", ">": "\\u003e", "&": "\\u0026"}


class Document(TypedDict):
    """What a page shows: see `document.document`."""

    title: str
    kernels: list[dict[str, object]]


def page(document: Document) -> str:
    """Return the page of a document (see `document.document`)."""
    data = re.sub("[<>&]", lambda match: _ESCAPES[match[0]], json.dumps(document, separators=(",", ":")))
    parts = {
        "TITLE": html.escape(document["title"]),
        "STYLE": _package_file("report.css"),
        "DATA": f"{_OPEN}{data}{_CLOSE}",
        "PROGRAM": _package_file("report.js"),
    }
    return re.sub(r"\{\{(TITLE|STYLE|DATA|PROGRAM)\}\}", lambda match: parts[match[1]], _package_file("template.html"))


def document_of(text: str) -> Document:
    """Return the document in a page. Raises ValueError if ``text`` is not a page that `page` made."""
    start = text.find(_OPEN)
    end = text.find(_CLOSE, start)
    if start < 0 or end < 0:
        raise ValueError("this is not a page of `spirograd dump --html`")
    document: Document = json.loads(text[start + len(_OPEN) : end])
    return document


def _package_file(name: str) -> str:
    return resources.files("spirograd.report").joinpath(name).read_text(encoding="utf-8")
