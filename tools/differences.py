"""Write the table of differences in docs/how-to/migrate.md from tests/family/differences.py. ``--check``: only compare."""

from __future__ import annotations

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "how-to" / "migrate.md"
HEAD = "| situation | Taichi, Quadrants | spirograd |\n|---|---|---|\n"
BEGIN = "## Deliberate differences\n"
END = "## Gradients\n"


def section() -> str:
    """Return the text of the section."""
    sys.path.insert(0, str(ROOT / "tests"))
    from family.differences import DIFFERENCES

    rows = [f"| {d.situation} | {d.theirs} | {d.ours} |" for d in DIFFERENCES]
    return f"{BEGIN}\n{HEAD}{chr(10).join(rows)}\n\n"


def main() -> int:
    """Write the page, or compare it."""
    text = PAGE.read_text(encoding="utf-8")
    before, after = text[: text.index(BEGIN)], text[text.index(END) :]
    new = before + section() + after
    if "--check" in sys.argv[1:]:
        if new == text:
            return 0
        print(f"{PAGE} is out of date: run tools/differences.py")
        return 1
    PAGE.write_text(new, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
