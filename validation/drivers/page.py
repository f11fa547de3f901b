"""The results of all setups as a page of the documentation, and of one as lines for a terminal."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
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
  [ci/drivers](validation.md#other-drivers). `dxc` is Microsoft's compiler for DirectX 12: it refuses
  what SPIRV-Cross cannot translate to HLSL.

A case is refused if spirograd raises an error that names what the device lacks. All other errors, wrong numbers and crashes are failures.
"""


def text(found: Sequence[Record]) -> str:
    """Return the page, in Markdown."""
    parts = [_INTRODUCTION, *_totals(found), *_refusals(found), *_topics(found), *_usage(found), *_failures(found)]
    return "\n".join(parts) + "\n"


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


def _table(head: Sequence[str], rows: Sequence[Sequence[object]]) -> list[str]:
    return ["| " + " | ".join(head) + " |", "|" + "---|" * len(head), *["| " + " | ".join(map(str, row)) + " |" for row in rows], ""]


def _columns(found: Sequence[Record]) -> Iterator[tuple[Record, str]]:
    yield from ((record, arch) for record in found for arch in record.outcomes)


def _label(record: Record, arch: str) -> str:
    return record.name if arch == COMPILE else f"{record.name}, {arch}"


def _totals(found: Sequence[Record]) -> list[str]:
    rows = []
    for record, arch in _columns(found):
        counts = record.counts(arch)
        kind = "compiles" if arch == COMPILE else "executes"
        random = _random(record) if arch == next(iter(record.outcomes)) else "the same"
        rows.append((_label(record, arch), record.driver, kind, counts[OK], counts["refused"], counts[FAILED], random, record.day))
    head = ("setup", "driver", "kind", "cases that pass", "refused", "failed", "random programs (compiles: kernels of them)", "day")
    return ["## Results\n", *_table(head, rows)]


def _refusals(found: Sequence[Record]) -> list[str]:
    columns = [(_label(record, arch), record.outcomes[arch].values()) for record, arch in _columns(found)]
    counted = {label: Counter(reason_of(why) for status, why in outcomes if status == "refused") for label, outcomes in columns}
    counted |= {f"{record.name}, random programs": Counter(record.refusals) for record in found}
    names = list(dict.fromkeys(reason for counts in counted.values() for reason in counts))
    rows = [(label, *[counts[name] or "" for name in names]) for label, counts in counted.items() if counts]
    return ["## Refusals by reason\n", *_table(("setup", *names), rows)] if rows else []


def _topics(found: Sequence[Record]) -> list[str]:
    """Return how many cases of each file of the corpus pass."""
    topics: dict[str, list[str]] = {}
    for case in load():
        topics.setdefault(Path(case.place.rpartition(":")[0]).stem, []).append(case.name)
    rows = []
    for record, arch in _columns(found):
        outcomes = record.outcomes[arch]
        ran = [[outcomes[name][0] for name in names if name in outcomes] for names in topics.values()]
        rows.append((_label(record, arch), *[f"{statuses.count(OK)} of {len(statuses)}" if statuses else "" for statuses in ran]))
    return ["## Cases that pass, by topic\n", *_table(("setup", *[topic.replace("_", " ") for topic in topics]), rows)]


def _usage(found: Sequence[Record]) -> list[str]:
    told = [record for record in found if record.usage]
    names = list(dict.fromkeys(name for record in told for name in record.usage))
    rows = [(r.name, *[f"{r.usage[n]:,}" if n in r.usage else "" for n in names], f"{r.seconds:.1f} s") for r in told]
    head = ("setup", *names, "time of the driver's compiler")
    note = "Of all pipelines of the corpus and of the random programs, as the drivers tell:\n"
    return ["## Machine code\n", note, *_table(head, rows)] if rows else []


def _failures(found: Sequence[Record]) -> list[str]:
    rows = [(_label(record, arch), case, why[:300].replace("|", "\\|")) for record in found for arch, case, why in record.failures()]
    rows += [(record.name, "a random program", fault[:300].replace("|", "\\|")) for record in found for fault in record.faults]
    return ["## Failures\n", *(_table(("setup", "case", "what is wrong"), rows) if rows else ["None."])]
