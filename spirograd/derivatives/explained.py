"""The text of `kernel.grad.explain()`: what a derivative reads, saves, recomputes and adds to."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from spirograd.autodiff.derivative import Derivative, Record, Residual
from spirograd.base.loc import Loc
from spirograd.base.sizes.size_nodes import needs_memory
from spirograd.base.sizes.size_text import count_text
from spirograd.base.wording import counted
from spirograd.ir.nodes import FieldRef, Ref
from spirograd.ir.size_names import size_names


def name_of(ref: Ref) -> str:
    """Return the name of memory in messages."""
    return f"`{ref.name}`"


def explained(label: str, loc: Loc | None, derivative: Derivative) -> str:
    """Describe a gradient kernel: what it starts from, adds to, saves, runs again and reads, and where it ends, a paragraph each."""
    return "\n".join([f"gradient of {label}{_at(loc)}", *_lines(derivative)])


def _lines(derivative: Derivative) -> Iterator[str]:
    yield from _section("takes the gradients of", [f"{name_of(p.ref)}{_at(p.loc)}" for p in derivative.active_outputs], "nothing")
    yield from _section("adds to the gradients of", [f"{name_of(p.ref)}{_at(p.loc)}" for p in derivative.active_inputs], "nothing")
    names = names_in_sizes(derivative)
    yield from _section("records", [f"{_record(r)}; {_capacity(r, derivative, names)}" for r in derivative.records], "nothing")
    yield from _section("has nested checkpoints", list(_nests(derivative)))
    again = [f"{counted(count, 'operation')}{_of_loop(loop)}" for loop, count in derivative.recomputed]
    yield from _section("runs again", again)
    saving = derivative.saving
    buffers = saving.buffers if saving is not None else ()
    yield from _section("reads", [_residual(residual) for residual in derivative.residuals if residual.ref not in buffers])
    if saving is not None:
        yield from _section("has the kernel save, under a tape", [_residual(residual) for residual in saving.loads])
    yield from _section("gradients end at", [f"{name_of(p.ref)}{_at(p.loc)}, which has no gradient" for p in derivative.inactive_writes])
    yield from _section("takes no gradients back to", [f"{name_of(p.ref)}{_at(p.loc)}, which has none" for p in derivative.inactive_reads])


def _section(title: str, items: Iterable[str], empty: str | None = None) -> Iterator[str]:
    unique = list(dict.fromkeys(items))
    if unique or empty is not None:
        yield f"{title}: {'' if unique else empty}".rstrip()
        yield from (f"  {item}" for item in unique)


def _record(record: Record) -> str:
    per = "an iteration" if record.every == 1 else f"for each {record.every} iterations"
    return f"{record.what}{_of_loop(record.loop)}: {counted(record.bytes, 'byte')} {per}, {record.why}"


def _nests(derivative: Derivative) -> Iterator[str]:
    """Yield a line for each loop with nested checkpoints."""
    if derivative.nesting is None:
        return
    for number, level in derivative.nesting.levels:
        loop = next((record.loop for record in derivative.records if record.number == number), None)
        spans = [f"{derivative.nesting.length**k:,}" for k in range(level - 1, 0, -1)]
        every = " and ".join([", ".join(spans[:-1]), spans[-1]]) if len(spans) > 1 else spans[0]
        yield f"the loop at {loop}: {level} levels, with checkpoints every {every} iterations"


def _capacity(record: Record, derivative: Derivative, names: Mapping[tuple[str, int], str]) -> str:
    """Return the capacity of an adstack, and how it is computed."""
    size, capacity = record.entries, derivative.capacities[record.adstack.capacity]
    if record.most is not None:
        return f"at most {counted(int(size), 'entry', 'entries')} at a time" if isinstance(size, int) else "few entries at a time"
    what = "iterations" if record.every == 1 else "entries"
    if capacity is None:
        return f"{what} are counted before the launch" if size is None else f"{what}: {count_text(size, names)}, counted before the launch"
    source = "arguments and memory" if needs_memory(capacity) else "the arguments"
    return f"{what}: {count_text(capacity, names)}, known from {source}"


def names_in_sizes(derivative: Derivative) -> dict[tuple[str, int], str]:
    """Return the names of memory and arguments in sizes."""
    read = {("field", residual.ref.key): residual.ref.name for residual in derivative.residuals if isinstance(residual.ref, FieldRef)}
    return {**read, **size_names(derivative.kernel, *[counting.kernel for counting in derivative.sizing])}


def _residual(residual: Residual) -> str:
    state = "as it was before the kernel" if residual.when == "before" else "as the kernel leaves it"
    overwritten = f" (overwritten at {residual.overwritten})" if residual.overwritten is not None else ""
    return f"{name_of(residual.ref)}{_at(residual.loc)} {state}{overwritten}"


def _at(loc: Loc | None) -> str:
    return f" ({loc})" if loc is not None else ""


def _of_loop(loc: Loc | None) -> str:
    return f" of the loop at {loc}" if loc is not None else ""
