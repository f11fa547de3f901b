"""Compare SPIRV-Cross's translation to Metal with naga's, for every module of target wgpu: `python -m validation.metal`.

Both are read by the C++ compiler with the stand-in for Metal's library. MoltenVK uses SPIRV-Cross, wgpu uses naga. The report lists the
modules for which the outcomes differ, and the functions of Metal's library that one translator calls and the other does not."""

from __future__ import annotations

import argparse
import fnmatch
import re
import sys
from collections import Counter
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path

from spirograd.base.errors import SpirogradUnsupportedError
from spirograd.compiler import compile_kernel
from validation.case import Case, load
from validation.collecting import kernels_of
from validation.profiles import DEVICES, PROFILES
from validation.tools import ABSENT, FAILED, OK, SHIM, Verdict, naga_text, read_by_stand_in, spirv_cross_text

_VERSION = "3.0"
_CALL = re.compile(r"\b((?:fast::|precise::)?[a-z]\w*)\s*(?:<\w+>)?\(")
_ADAPTERS = ["wgpu", *[name for name in DEVICES if name.startswith("wgpu-")]]


@dataclass(frozen=True, slots=True)
class Translation:
    """What a translator makes of a module: what the tools say of it, and the functions of Metal's library that it calls."""

    verdict: Verdict
    functions: frozenset[str]


@dataclass(frozen=True, slots=True)
class Comparison:
    """A module by both translators. ``name``: case, profile and task."""

    name: str
    spirv_cross: Translation
    naga: Translation

    @property
    def differs(self) -> bool:
        """Whether one translation is accepted and the other is not."""
        return (self.spirv_cross.verdict.status == OK) != (self.naga.verdict.status == OK)


def library_functions() -> frozenset[str]:
    """Return the names that the stand-in declares as functions, with the namespaces `fast` and `precise`."""
    text = (SHIM / "metal_stdlib").read_text(encoding="utf-8")
    names: set[str] = set()
    for space, body in re.findall(r"namespace (fast|precise) \{(.*?)\n\}", text, re.DOTALL):
        names |= {f"{space}::{name}" for name in re.findall(r"METAL_OF_(?:ONE|TWO)\((\w+)\)", body)}
    names |= set(re.findall(r"METAL_OF_(?:ONE|TWO)\((\w+)\)", text))
    names |= {f"atomic_{name}_explicit" for name in re.findall(r"METAL_ATOMIC\((\w+), ", text)}
    names |= set(re.findall(r"(?:T|bool|void|vec<T, N>) (\w+)\([^{\n]*\);", text))
    return frozenset(names - {"name", "vec", "atomic_name_explicit"})


def _modules(case: Case, profiles: Iterable[str]) -> Iterator[tuple[str, bytes]]:
    for source in kernels_of(case):
        for profile in profiles:
            try:
                for kernel in source.kernels(PROFILES[profile]):
                    compiled = compile_kernel(kernel, PROFILES[profile], replace(source.options, verify=True))
                    for number, binary in enumerate(compiled.binaries):
                        yield f"{case.name}, {profile}, {compiled.name}/{number}", bytes(binary)
            except SpirogradUnsupportedError:  # which `python -m validation` judges
                continue


def _translation(tool: str, verdict: Verdict, text: str, library: frozenset[str]) -> Translation:
    if verdict.status != OK:
        return Translation(verdict, frozenset())
    called = frozenset(_CALL.findall(text.replace("metal::", ""))) & library
    return Translation(read_by_stand_in(tool, text, "wgpu", _VERSION), called)


def compare(name: str, module: bytes, library: frozenset[str]) -> Comparison:
    """Translate a module twice, and have both results read."""
    cross = _translation("MSL", *spirv_cross_text(module, "wgpu", _VERSION), library)
    return Comparison(name, cross, _translation("naga", *naga_text(module, _VERSION), library))


def report(comparisons: list[Comparison]) -> str:
    """Return the report as Markdown."""
    accepted = Counter((c.spirv_cross.verdict.status == OK, c.naga.verdict.status == OK) for c in comparisons)
    lines = ["# Metal by SPIRV-Cross and by naga", "", "| accepted by | modules |", "|---|---|"]
    labels = {(True, True): "both", (True, False): "SPIRV-Cross only", (False, True): "naga only", (False, False): "neither"}
    lines += [f"| {label} | {accepted[key]} |" for key, label in labels.items()]
    lines += ["", "| module | SPIRV-Cross | naga |", "|---|---|---|"]
    lines += [f"| {c.name} | {_said(c.spirv_cross.verdict)} | {_said(c.naga.verdict)} |" for c in comparisons if c.differs]
    lines += ["", "| function | modules where SPIRV-Cross alone calls it | naga alone |", "|---|---|---|"]
    both = [c for c in comparisons if c.spirv_cross.verdict.status == c.naga.verdict.status == OK]
    first = Counter(name for c in both for name in c.spirv_cross.functions - c.naga.functions)
    second = Counter(name for c in both for name in c.naga.functions - c.spirv_cross.functions)
    lines += [f"| `{name}` | {first[name]} | {second[name]} |" for name in sorted({*first, *second})]
    return "\n".join(lines) + "\n"


def _said(verdict: Verdict) -> str:
    return verdict.status if verdict.status == OK else f"{verdict.status}: {' '.join(verdict.text.split())[:200]}".replace("|", "/")


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m validation.metal", description=__doc__, epilog="See docs/validation.md.")
    parser.add_argument("--only", action="append", metavar="PATTERN", help="cases whose name fits, like 'atomic_*' (may be repeated)")
    parser.add_argument("--profiles", nargs="*", choices=_ADAPTERS, default=_ADAPTERS, help="compile for these (default: all)")
    parser.add_argument("--jobs", type=int, default=2, help="how many modules to translate at a time (default 2)")
    parser.add_argument("--out", type=Path, default=Path("out/validation/metal.md"), help="file of the report")
    options = parser.parse_args()
    cases = [c for c in load() if not options.only or any(fnmatch.fnmatch(c.name, pattern) for pattern in options.only)]
    library = library_functions()
    with ThreadPoolExecutor(options.jobs) as pool:
        pending = [pool.submit(compare, name, module, library) for case in cases for name, module in _modules(case, options.profiles)]
        comparisons = [future.result() for future in pending]
    verdicts = [t.verdict for c in comparisons for t in (c.spirv_cross, c.naga)]
    if missing := {verdict.text for verdict in verdicts if verdict.status == ABSENT}:
        sys.exit("\n".join(sorted(missing)))
    text = report(comparisons)
    options.out.parent.mkdir(parents=True, exist_ok=True)
    options.out.write_text(text, encoding="utf-8")
    print(text)
    return 1 if any(verdict.status == FAILED for verdict in verdicts) else 0


if __name__ == "__main__":
    sys.exit(main())
