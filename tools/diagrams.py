"""The Mermaid diagrams of the documentation as SVG, so that the site shows them without a script from another server.

    npm pack mermaid && tar -xzf mermaid-*.tgz package/dist/mermaid.min.js
    python tools/diagrams.py package/dist/mermaid.min.js        # renders the diagrams that changed; needs Chromium

Each fenced block ``mermaid`` of a page has a file ``docs/images/diagrams/<page>-<number>.svg``, which holds the digest of the block that it
was rendered from. mkdocs.yml names this file as a hook: `on_page_markdown` replaces the block by the SVG. Other hosts, such as GitHub,
render the block itself. tests/docs/test_site.py compares the digests.
"""

from __future__ import annotations

import hashlib
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

DOCS = Path(__file__).resolve().parents[1] / "docs"
FOLDER = DOCS / "images" / "diagrams"
BLOCK = re.compile(r"^```mermaid\n(.*?)^```$", re.MULTILINE | re.DOTALL)
# Colours of the page, which has a light and a dark scheme, by the colours that Mermaid writes into the SVG; the second is the default.
COLOURS = {
    "#010203": "var(--md-default-fg-color, #333)",
    "#040506": "var(--md-code-bg-color, #f5f5f5)",
    "#070809": "var(--md-default-fg-color--light, #777)",
    "#0a0b0c": "var(--md-default-bg-color, #fff)",
}
TEXT, BOX, LINE, PAGE = COLOURS
PAGE_HTML = """<!doctype html><meta charset="utf-8"><body><script src="{script}"></script><pre id="out"></pre><script>
mermaid.initialize({{
  startOnLoad: false, theme: "base", htmlLabels: false, deterministicIds: true, fontFamily: "sans-serif",
  flowchart: {{htmlLabels: false, useMaxWidth: true, wrappingWidth: 400}},
  themeVariables: {{
    fontSize: "14px", primaryColor: "{box}", primaryTextColor: "{text}", primaryBorderColor: "{line}", lineColor: "{line}",
    textColor: "{text}", titleColor: "{text}", edgeLabelBackground: "{page}", clusterBkg: "{page}", clusterBorder: "{line}",
  }},
}});
mermaid.render("{name}", {source}).then(({{svg}}) => {{
  document.getElementById("out").textContent = btoa(unescape(encodeURIComponent(svg)));
}});
</script>"""


def digest(source: str) -> str:
    """Return the digest of a diagram: 16 hexadecimal digits."""
    return hashlib.sha256(source.encode()).hexdigest()[:16]


def diagrams(page: Path) -> list[tuple[Path, str]]:
    """Return file and source of each diagram of a page."""
    name = "-".join(page.relative_to(DOCS).with_suffix("").parts)
    sources = BLOCK.findall(page.read_text(encoding="utf-8"))
    return [(FOLDER / f"{name}-{number}.svg", source) for number, source in enumerate(sources, 1)]


def is_current(file: Path, source: str) -> bool:
    """Return whether ``file`` was rendered from ``source``."""
    return file.exists() and f'data-source="{digest(source)}"' in file.read_text(encoding="utf-8")


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Return the text of a page with its diagrams replaced by SVG: a hook of mkdocs. Raises ValueError for a diagram that was not
    rendered."""
    files = iter(diagrams(Path(page.file.abs_src_path)))

    def picture(_: re.Match[str]) -> str:
        file, source = next(files)
        if not is_current(file, source):
            raise ValueError(f"{file.name} is not rendered from the diagram of {page.file.src_uri}: run tools/diagrams.py")
        return f'<figure class="diagram" markdown="0">{file.read_text(encoding="utf-8").strip()}</figure>'

    return BLOCK.sub(picture, markdown)


def render(source: str, name: str, mermaid: Path) -> str:
    """Return the SVG of a diagram, on one line, in colours of the page."""
    import base64
    import json

    with tempfile.TemporaryDirectory() as folder:
        html = Path(folder) / "diagram.html"
        box, text, line, page = BOX, TEXT, LINE, PAGE
        filled = PAGE_HTML.format(
            script=mermaid.resolve().as_uri(), name=name, source=json.dumps(source), box=box, text=text, line=line, page=page
        )
        html.write_text(filled, encoding="utf-8")
        command = ["chromium", "--headless", "--no-sandbox", "--disable-gpu", "--virtual-time-budget=20000", "--dump-dom", html.as_uri()]
        dom = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True).stdout
    found = re.search(r'<pre id="out">([^<]+)</pre>', dom)
    if not found:
        raise RuntimeError(f"Mermaid refused the diagram {name}; open it in an editor for Mermaid to see why")
    svg = base64.b64decode(found[1]).decode()
    for colour, variable in COLOURS.items():
        svg = re.sub(colour, variable, svg, flags=re.IGNORECASE)
        red, green, blue = (int(colour[k : k + 2], 16) for k in (1, 3, 5))
        svg = re.sub(rf"rgb\({red},\s*{green},\s*{blue}\)", variable, svg)
    svg = re.sub(r"\s*\n\s*", " ", svg)
    svg = re.sub(r' data-[\w-]+="[^"]*"', "", svg)
    svg = re.sub(r'<tspan font-style="normal" class="text-inner-tspan" font-weight="normal">([^<]*)</tspan>', r"\1", svg)
    return svg.replace("<svg ", f'<svg data-source="{digest(source)}" ', 1) + "\n"


def main() -> int:
    """Render diagrams that changed, and remove files without a diagram."""
    if len(sys.argv) != 2:
        print(__doc__)
        return 2
    if not shutil.which("chromium"):
        print("tools/diagrams.py needs chromium, which runs Mermaid: apt install chromium", file=sys.stderr)
        return 2
    wanted = [found for page in sorted(DOCS.rglob("*.md")) for found in diagrams(page)]
    for file in {*FOLDER.glob("*.svg")} - {file for file, _ in wanted}:
        file.unlink()
    for file, source in wanted:
        if not is_current(file, source):
            file.write_text(render(source, file.stem, Path(sys.argv[1])), encoding="utf-8")
            print(f"wrote {file.relative_to(DOCS.parent)}, {file.stat().st_size} bytes")
    return 0


if __name__ == "__main__":
    sys.exit(main())
