"""Runs cases on one back end, in a process of its own: `python -m validation.worker ARCH NAME...`. A line of JSON before and after each.

ARCH may name a profile, too: "vulkan-m1"."""

from __future__ import annotations

import contextlib
import json
import sys
import time
import traceback

import spirograd as sg
from spirograd.base.errors import SpirogradUnsupportedError
from validation import rdna3
from validation.case import NEEDS, Case, load


def run(arch: str, case: Case, profile: str = "") -> dict[str, object]:
    """Return the outcome of a case: its status, why, and the seconds that compiling and running took."""
    start = time.perf_counter()
    missing: list[str] = []
    try:
        sg.init(arch=arch, profile=profile, offline_cache=False, **dict(case.options))
        caps = sg.lang.context.session().device.caps
        missing = [need for need in case.needs if not getattr(caps, NEEDS[need])]
        wrong = case.wrong(case.run(*case.args))
        if missing:
            wrong = f"the case says that it needs {', '.join(missing)}, but runs without"
        status = "failed" if wrong else "ok"
    except SpirogradUnsupportedError as error:
        status, wrong = ("refused", f"needs {', '.join(missing)}") if missing else ("failed", str(error))
    except Exception:
        status, wrong = "failed", traceback.format_exc(limit=-4)
    return {"name": case.name, "status": status, "text": wrong, "seconds": time.perf_counter() - start}


def main() -> None:
    name_of_arch, *names = sys.argv[1:]
    arch, _, profile = name_of_arch.partition("-")
    cases = {case.name: case for case in load()}
    with rdna3.emulated(arch) if arch in rdna3.EMULATED else contextlib.nullcontext(arch) as back_end:
        for name in names:
            print(json.dumps({"begin": name}), flush=True)
            print(json.dumps(run(back_end, cases[name], profile)), flush=True)
        sg.reset()


if __name__ == "__main__":
    main()
