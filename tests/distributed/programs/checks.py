"""Runs on any number of processes: all that is checked by the programs beside it."""

from __future__ import annotations

import sys
from pathlib import Path

import spirograd as sg

sys.path.insert(0, str(Path(__file__).parent))

import gradients
import mistakes
import transfers

sg.distributed.init(arch="cpu", timeout=60)
transfers.main(int(sys.argv[1]))
gradients.main()
mistakes.main()
print(f"all is right on process {sg.distributed.rank()} of {sg.distributed.size()}")
