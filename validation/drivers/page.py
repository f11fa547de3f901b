"""The results of all setups as a page of the documentation, and of one as lines for a terminal."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from validation.case import load
from validation.drivers.compiling import COMPILE
from validation.drivers.records import Record, reason_of
from validation.tools import FAILED, OK

_INTRODUCTION = """# Drivers

The corpus of [validation](validation.md) and random programs under drivers of devices that the machine does not have. `ci/drivers --page`
writes this page. The name of a row is a driver and the system that it comes from: `host` is Debian 12, `trixie` and `sid` are newer
releases of Debian, and `aarch64` is Debian 12 for that processor, which QEMU emulates.

- A driver that **executes** runs kernels on the CPU. Its results are compared with NumPy, for each back end.
- A driver that **compiles** is the driver of a GPU in front of a null device, which reports the capabilities of the chip. Each pipeline
  becomes machine code, but nothing runs: only errors and crashes of the compiler count. Mesa gives such devices; see
  [ci/drivers](validation.md#other-drivers). `dxc` is Microsoft's compiler for DirectX 12: what SPIRV-Cross cannot translate to HLSL is
  refused. `dxc-words` gets modules with numbers of 32 bits only, where 64-bit integers are pairs of words: only 64-bit floats are refused.

A case is refused if spirograd raises an error that names what the device lacks. All other errors, wrong numbers and crashes are failures.
[Drivers](spirv.md#drivers) lists the defects of drivers that these runs found, and what spirograd emits because of them.
"""


@dataclass(frozen=True, slots=True)
class Section:
    """A table of the page. The first cell of a row names a setup, see `_label`."""

    title: str
    head: Sequence[str]
    rows: Sequence[Sequence[object]]
    note: str = ""
    empty: str = ""  # in place of a table without rows

    def lines(self) -> list[str]:
        """Return the section, in Markdown; nothing if it has no rows, and nothing to say about that."""
        if not self.rows:
            return [self.title + "\n", self.empty] if self.empty else []
        cells = [[*row, *[""] * (len(self.head) - len(row))] for row in self.rows]
        table = ["| " + " | ".join(map(str, row)) + " |" for row in (self.head, *cells)]
        return [self.title + "\n", *([self.note] if self.note else []), table[0], "|" + "---|" * len(self.head), *table[1:], ""]

    def with_kept(self, kept: Section, names: Collection[str], order: Sequence[str]) -> Section:
        """Return this with those rows of ``kept`` whose setup is not one of ``names``, in the order of ``order``."""
        rows = [row for row in kept.rows if _name(row) in order and _name(row) not in names]
        used = [column for k, column in enumerate(kept.head) if any(row[k] for row in rows)]
        head = [*self.head, *[column for column in used if column not in self.head]]
        moved = [[dict(zip(kept.head, row)).get(column, "") for column in head] for row in rows]
        return replace(self, head=head, rows=sorted([*self.rows, *moved], key=lambda row: order.index(_name(row))))


def text(found: Sequence[Record], previous: str = "", order: Sequence[str] = ()) -> str:
    """Return the page, in Markdown. ``previous``: the page so far, whose rows stay for setups without a record; ``order``: the names of all
    setups."""
    names = [record.name for record in found]
    sections = [make(found) for make in (_totals, _refusals, _topics, _usage, _failures)]
    sections = [section.with_kept(_parsed(previous, section.title), names, [*order, *names]) for section in sections]
    return "\n".join([_INTRODUCTION, *[line for section in sections for line in section.lines()]]) + "\n"


def _parsed(page: str, title: str) -> Section:
    """Return the table of a section of the page; an empty one if the page does not have it."""
    lines = page.partition(title + "\n")[2].partition("\n## ")[0].splitlines()
    rows = [[cell.strip() for cell in line.strip("|").replace("\\|", "\0").split("|")] for line in lines if line.startswith("| ")]
    rows = [[cell.replace("\0", "\\|") for cell in row] for row in rows]
    return Section(title, rows[0] if rows else (), rows[1:])


def _name(row: Sequence[object]) -> str:
    """Return the name of the setup of a row."""
    return str(row[0]).partition(", ")[0]


def summary(record: Record) -> str:
    """Return what a terminal shows of a record."""
    lines = [f"{record.name}: {record.driver}"]
    lines += [f"  {arch}: {_written(record.counts(arch))}" for arch in record.outcomes]
    lines += [f"  random programs: {_random(record)}"] if record.random else []
    lines += [f"  {name}: {number:,}" for name, number in record.usage.items()]
    lines += [f"  FAILED {case} ({arch}): {why}" for arch, case, why in record.failures()]
    return "\n".join([*lines, *[f"  FAILED {fault}" for fault in record.faults]])


def _written(counts: Counter[str] | dict[str, int]) -> str:
    return ", ".join(f"{count:,} {status}" for status, count in counts.items()) or "-"


def _random(record: Record) -> str:
    if not record.programs:
        return "-"
    return f"{record.programs:,} from seed {record.seed}: {_written(record.random)}"


def _columns(found: Sequence[Record]) -> Iterator[tuple[Record, str]]:
    yield from ((record, arch) for record in found for arch in record.outcomes)


def _label(record: Record, arch: str) -> str:
    return record.name if arch == COMPILE else f"{record.name}, {arch}"


def _totals(found: Sequence[Record]) -> Section:
    rows = []
    for record, arch in _columns(found):
        counts = record.counts(arch)
        kind = "compiles" if arch == COMPILE else "executes"
        random = _random(record) if arch == next(iter(record.outcomes)) else "the same"
        rows.append((_label(record, arch), record.driver, kind, counts[OK], counts["refused"], counts[FAILED], random, record.day))
    head = ("setup", "driver", "kind", "cases that pass", "refused", "failed", "random programs (compiles: kernels of them)", "day")
    return Section("## Results", head, rows)


def _refusals(found: Sequence[Record]) -> Section:
    columns = [(_label(record, arch), record.outcomes[arch].values()) for record, arch in _columns(found)]
    counted = {label: Counter(reason_of(why) for status, why in outcomes if status == "refused") for label, outcomes in columns}
    counted |= {f"{record.name}, random programs": Counter(record.refusals) for record in found}
    names = list(dict.fromkeys(reason for counts in counted.values() for reason in counts))
    rows = [(label, *[counts[name] or "" for name in names]) for label, counts in counted.items() if counts]
    return Section("## Refusals by reason", ("setup", *names), rows)


def _topics(found: Sequence[Record]) -> Section:
    """Return how many cases of each file of the corpus pass."""
    topics: dict[str, list[str]] = {}
    for case in load():
        topics.setdefault(Path(case.place.rpartition(":")[0]).stem, []).append(case.name)
    rows = []
    for record, arch in _columns(found):
        outcomes = record.outcomes[arch]
        ran = [[outcomes[name][0] for name in names if name in outcomes] for names in topics.values()]
        rows.append((_label(record, arch), *[f"{statuses.count(OK)} of {len(statuses)}" if statuses else "" for statuses in ran]))
    return Section("## Cases that pass, by topic", ("setup", *[topic.replace("_", " ") for topic in topics]), rows)


def _usage(found: Sequence[Record]) -> Section:
    told = [record for record in found if record.usage]
    names = list(dict.fromkeys(name for record in told for name in record.usage))
    rows = [(r.name, f"{r.seconds:.1f} s", *[f"{r.usage[n]:,}" if n in r.usage else "" for n in names]) for r in told]
    head = ("setup", "time of the driver's compiler", *names)
    note = "Of all pipelines of the corpus and of the random programs, as the drivers tell:\n"
    return Section("## Machine code", head, rows, note)


def _failures(found: Sequence[Record]) -> Section:
    rows = [(_label(record, arch), case, why[:300].replace("|", "\\|")) for record in found for arch, case, why in record.failures()]
    faults = [(record.name, fault) for record in found for fault in dict.fromkeys(record.faults)]
    rows += [(name, "a random program", fault[:300].replace("|", "\\|")) for name, fault in faults]
    return Section("## Failures", ("setup", "case", "what is wrong"), rows, empty="None.")
