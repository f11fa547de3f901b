"""What a run was made on: the machine, the commit, the date; and where its history is kept."""

from __future__ import annotations

import datetime
import os
import platform
import re
import shutil
import subprocess
from pathlib import Path

from benchmarks.processes import ROOT


def output(*command: str) -> str:
    """What a command prints; empty where there is no such program."""
    if not shutil.which(command[0]):
        return ""
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True).stdout.strip()


def commit() -> str:
    return output("git", "describe", "--always", "--dirty") or "not known"


def date() -> str:
    return f"{datetime.datetime.now(datetime.timezone.utc):%Y-%m-%d %H:%M} UTC"


def processor() -> str:
    """The model of the processor."""
    info = Path("/proc/cpuinfo")
    found = re.search(r"^model name\s*:\s*(.+)$", info.read_text(), re.M) if info.exists() else None
    return found.group(1) if found else output("sysctl", "-n", "machdep.cpu.brand_string") or platform.processor() or platform.machine()


def cores() -> int:
    """Processors that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def system() -> str:
    return f"{platform.system()} {platform.machine()}, Python {platform.python_version()}"


def history_file() -> Path:
    """Where the figures of this machine are kept, outside of the repository."""
    state = Path(os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state")
    name = re.sub(r"[^A-Za-z0-9]+", "-", f"{platform.node()}-{processor()}-{cores()}").strip("-").lower()
    return state / "spirograd" / "benchmarks" / f"{name}.jsonl"
