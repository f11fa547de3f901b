"""The pictures of docs/gallery.md, drawn by the examples themselves.

    python tools/gallery.py              # all of them: some minutes
    python tools/gallery.py wave nbody   # these

Each example runs in full on the CPU back end with one thread, so that sums are taken in one order and a second run gives the same file. Its
picture is scaled down to the first of `WIDTHS` (pixels) with which it takes at most `LIMIT` bytes in `COLOURS` colours, and written to
docs/images/<example>.png.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

try:
    from PIL import Image
except ModuleNotFoundError:
    sys.exit("tools/gallery.py needs Pillow and what the examples need: pip install '.[demo,media]'")

ROOT = Path(__file__).resolve().parents[1]
PICTURES = ROOT / "docs" / "images"
EXAMPLES = sorted(path.stem for path in (ROOT / "examples").glob("*.py") if path.stem != "common")
WIDTHS = (880, 720, 600, 480, 360)
COLOURS = 128
LIMIT = 150_000


def draw(name: str) -> Path:
    """Run an example, and return the file of its picture. Raises CalledProcessError if it fails."""
    environment = os.environ | {"PYTHONPATH": str(ROOT), "SG_NUM_THREADS": "1"}
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, str(ROOT / "examples" / f"{name}.py"), "--arch", "cpu", "--out", folder]
        subprocess.run(command, check=True, env=environment, stdout=subprocess.DEVNULL)
        picture = Image.open(Path(folder) / f"{name}.png").convert("RGB")
    file = PICTURES / f"{name}.png"
    for width in (min(width, picture.width) for width in WIDTHS):
        scaled = picture.resize((width, round(picture.height * width / picture.width)), Image.Resampling.LANCZOS)
        scaled.quantize(COLOURS, dither=Image.Dither.NONE).save(file, optimize=True)
        if file.stat().st_size <= LIMIT:
            break
    return file


def main() -> int:
    """Draw the named pictures, or all."""
    unknown = set(sys.argv[1:]) - set(EXAMPLES)
    if unknown:
        print(f"no example is called {', '.join(sorted(unknown))}; there are {', '.join(EXAMPLES)}", file=sys.stderr)
        return 2
    for name in sys.argv[1:] or EXAMPLES:
        file = draw(name)
        print(f"wrote {file.relative_to(ROOT)}, {file.stat().st_size} bytes", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
