"""Write the tables of docs/fuzzing.md from the records of the fuzzers in tests/fuzz/results.jsonl. ``--check``: only compare."""

from __future__ import annotations

import json
import sys
from collections import Counter
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "tests" / "fuzz" / "results.jsonl"
PAGE = ROOT / "docs" / "fuzzing.md"
BEGIN = "<!-- written by tools/fuzzing.py -->\n"
END = "<!-- end -->\n"


def tables(runs: list[dict[str, Any]]) -> str:
    """Return the tables: programs and comparisons by fuzzer and back end, and programs that failed by fuzzer and kind."""
    programs, comparisons, faults = Counter[tuple[str, str]](), Counter[tuple[str, str]](), Counter[tuple[str, str]]()
    for run in runs:
        fuzzer = run["fuzzer"]
        for arch, count in run["comparisons"].items():
            where = f"{arch} ({run['drivers']})" if run["drivers"] and arch in ("vulkan", "wgpu") else arch
            programs[fuzzer, where] += run["programs"][arch]
            comparisons[fuzzer, where] += count
        for what, count in run["faults"].items():
            faults[fuzzer, what] += count
    lines = ["| fuzzer | back end | programs | comparisons |", "|---|---|---|---|"]
    for fuzzer, arch in sorted(comparisons):
        lines.append(f"| `{fuzzer}` | {arch} | {programs[fuzzer, arch]:,} | {comparisons[fuzzer, arch]:,} |")
    lines += ["", "Programs that failed in these runs, by what was wrong, in the first words of the message:", ""]
    lines += ["| fuzzer | what was wrong | programs |", "|---|---|---|"]
    lines += [f"| `{fuzzer}` | {what.replace('|', '/')} | {count:,} |" for (fuzzer, what), count in sorted(faults.items())]
    return "\n".join(lines) + "\n"


def main() -> int:
    """Write the page, or compare it."""
    runs = [json.loads(line) for line in RESULTS.read_text(encoding="utf-8").splitlines() if line]
    text = PAGE.read_text(encoding="utf-8")
    before, after = text[: text.index(BEGIN) + len(BEGIN)], text[text.index(END) :]
    new = f"{before}\n{tables(runs)}\n{after}"
    if "--check" in sys.argv[1:]:
        if new == text:
            return 0
        print(f"{PAGE} is out of date: run tools/fuzzing.py")
        return 1
    PAGE.write_text(new, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
