"""Run Python with Dawn as the device of `sg.wgpu`: `python -m validation.dawn -m MODULE ...`, or `-c CODE ...`."""

from __future__ import annotations

import runpy
import sys
from unittest import mock

from spirograd.runtime import loader

_USAGE = "usage: python -m validation.dawn -m MODULE ARGUMENT... | -c CODE ARGUMENT..."


def main() -> None:
    """Run what the command line names."""
    if len(sys.argv) < 3 or sys.argv[1] not in ("-m", "-c"):
        sys.exit(_USAGE)
    _, option, program, *rest = sys.argv
    with mock.patch.dict(loader.DEVICES, {"wgpu": "validation.dawn.device"}):
        sys.argv = [option, *rest]
        if option == "-m":
            runpy.run_module(program, run_name="__main__", alter_sys=True)
        else:
            exec(compile(program, "<command>", "exec"), {"__name__": "__main__"})


if __name__ == "__main__":
    main()
