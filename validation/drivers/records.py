"""What a run of a setup found, kept as JSON, so that a page can be written from several runs."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path

from validation.tools import FAILED

# The names of reasons, and what messages have them: those of the compiler, and those of `validation.worker`, which names needs of cases.
_REASONS = (
    ("64-bit floats", r"no 64-bit floats|^needs .*\bf64\b"),
    ("64-bit integers", r"no 64-bit integers|^needs .*(?<!_)i64\b"),
    ("64-bit atomics", r"64-bit atomics|^needs atomic_i64$"),
    ("not for this back end", r"^too much work|^n/a"),
)


@dataclass(slots=True)
class Record:
    """Results of the setup ``name``.

    ``outcomes``: for each back end and case, (status, reason); the back end of a driver that only compiles is "compile". ``random``: how
    many random programs, or kernels of them, ended with each status; ``programs``: how many there were; ``seed``: that of the first program
    of each kind; ``refusals``: how many were refused, by reason; ``faults``: what is
    wrong with the others. ``usage``: numbers of the machine
    code. ``seconds``: the time that the driver's compiler, or the programs took.
    """

    name: str
    driver: str
    day: str
    commit: str
    outcomes: dict[str, dict[str, tuple[str, str]]] = field(default_factory=dict)
    random: dict[str, int] = field(default_factory=dict)
    programs: int = 0
    seed: int = 0
    refusals: dict[str, int] = field(default_factory=dict)
    faults: list[str] = field(default_factory=list)
    usage: dict[str, int] = field(default_factory=dict)
    seconds: float = 0.0

    def counts(self, arch: str) -> Counter[str]:
        """Return how many cases ended with each status on a back end."""
        return Counter(status for status, _ in self.outcomes[arch].values())

    def failures(self) -> Iterator[tuple[str, str, str]]:
        """Return (back end, case, reason) of each case that failed."""
        for arch, cases in self.outcomes.items():
            yield from ((arch, case, reason) for case, (status, reason) in cases.items() if status == FAILED)

    @property
    def failed(self) -> bool:
        """Whether anything failed."""
        return bool(self.faults) or any(True for _ in self.failures())

    def save(self, folder: Path) -> None:
        """Write the record to its file."""
        folder.mkdir(parents=True, exist_ok=True)
        (folder / f"{self.name}.json").write_text(json.dumps(asdict(self), indent=1), encoding="utf-8")


def reason_of(message: str) -> str:
    """Return the name of the reason of a refusal; the message itself, if it has none."""
    return next((name for name, pattern in _REASONS if re.search(pattern, message)), message)


def load(folder: Path, name: str) -> Record | None:
    """Return the last record of a setup, None if it never ran."""
    path = folder / f"{name}.json"
    return Record(**json.loads(path.read_text(encoding="utf-8"))) if path.exists() else None
