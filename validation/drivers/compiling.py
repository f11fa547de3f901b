"""Setups whose driver only compiles: the pipelines of the corpus and of random programs, by the compilers of the survey."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from spirograd.survey.collecting import Source, collecting
from spirograd.survey.results import COMPILES, REFUSED, Result
from spirograd.survey.surveying import survey
from tests.fuzz.__main__ import FUZZERS, outcome
from validation.case import Case
from validation.collecting import kernels_of
from validation.drivers.records import Record, reason_of
from validation.drivers.setups import Setup
from validation.drivers.systems import Unavailable
from validation.tools import FAILED, OK

COMPILE = "compile"  # in place of a back end
_KINDS = ("programs", "kernels", "gradients", "scatters", "guards")
_STATUS = {COMPILES: OK, REFUSED: REFUSED}
_WORST = (FAILED, REFUSED, OK)
Named = tuple[str, Source]


def corpus_sources(cases: Sequence[Case]) -> list[Named]:
    """Return the kernels of the corpus, with the names of their cases."""
    return [(case.name, source) for case in cases for source in kernels_of(case)]


def random_sources(count: int, seed: int) -> Iterator[Named]:
    """Return the kernels of ``count`` random programs, of each kind in turn, with the command that repeats each program."""
    for number in range(count):
        kind = _KINDS[number % len(_KINDS)]
        fuzzer, own = FUZZERS[kind], seed + number // len(_KINDS)
        with collecting() as collector:
            outcome(fuzzer, fuzzer.write(own), ["cpu"])
        for source in collector.sources():
            yield f"python -m tests.fuzz {kind} --seed {own} --count 1", source


def compile_all(setup: Setup, record: Record, corpus: Sequence[Named], random: Sequence[Named]) -> None:
    """Compile the corpus and the kernels of random programs by the compiler of ``setup``. Raises Unavailable if it cannot be loaded."""
    named = [*corpus, *random]
    found = survey([setup.device()], [source for _, source in named])
    if setup.name in found.missing:
        raise Unavailable(found.missing[setup.name])
    record.driver = found.devices[setup.name]
    cases = {name: (OK, "") for name, _ in corpus}
    for result in found.results:
        name, status = named[result.source][0], _STATUS.get(result.build.outcome, FAILED)
        if result.source < len(corpus):
            cases[name] = min(cases[name], (status, _reason(result)), key=lambda one: _WORST.index(one[0]))
        else:
            record.random[status] = record.random.get(status, 0) + 1
            if status == REFUSED:
                reason = reason_of(result.build.reason)
                record.refusals[reason] = record.refusals.get(reason, 0) + 1
            record.faults += [f"{name}: {_reason(result)}"] if status == FAILED else []
    record.outcomes[COMPILE] = cases
    record.usage = _usage(found.results)
    record.seconds = sum(result.build.seconds or 0.0 for result in found.results)


def _reason(result: Result) -> str:
    return f"{result.build.outcome}: {result.build.reason}" if _STATUS.get(result.build.outcome) is None else result.build.reason


def _usage(results: Sequence[Result]) -> dict[str, int]:
    """Return numbers of the machine code of all pipelines; those that the driver does not tell are missing."""
    built = [result.build.usage for result in results if result.build.outcome == COMPILES]
    registers = [usage.registers for usage in built if usage.registers is not None]
    instructions = [usage.instructions for usage in built if usage.instructions is not None]
    spills = [usage.spills for usage in built if usage.spills is not None]
    numbers = {"pipelines": len(built)}
    numbers |= {"most registers": max(registers)} if registers else {}
    numbers |= {"instructions": sum(instructions)} if instructions else {}
    return numbers | ({"pipelines with spills": sum(1 for n in spills if n)} if spills else {})
