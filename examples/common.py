"""What the examples share: the command line and the picture file."""

from __future__ import annotations

import argparse
from pathlib import Path

import matplotlib

import spirograd as sg

matplotlib.use("Agg")


def start(doc: str) -> argparse.Namespace:
    """Read the command line and start spirograd on the back end that it names."""
    parser = argparse.ArgumentParser(description=doc.strip().splitlines()[0])
    parser.add_argument("--arch", default="cpu", help="cpu, vulkan or interpreter (slow)")
    parser.add_argument("--out", type=Path, default=Path("pictures"), help="folder of the picture")
    parser.add_argument("--quick", action="store_true", help="small and short")
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    sg.init(arch=args.arch)
    return args


def finish(path: Path) -> None:
    """Say where the picture is, and end the session."""
    print(f"wrote {path}")
    sg.reset()
