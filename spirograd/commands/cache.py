"""Show or empty the offline cache of compiled kernels.

The folder is SG_CACHE_DIR, or `spirograd` in the user's cache folder."""

from __future__ import annotations

import argparse
from pathlib import Path

from spirograd.base.wording import counted
from spirograd.runtime.offline_cache import Cache, default_folder

HELP = "show or empty the offline cache"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add ``info`` or ``clear``, and the folder."""
    shown = "info (the default): show its folder and size; clear: remove every kernel in it"
    parser.add_argument("action", nargs="?", choices=("info", "clear"), default="info", help=shown)
    parser.add_argument("--dir", type=Path, default=None, help="folder of the cache, if it is not the default one")


def run(args: argparse.Namespace) -> int:
    """Print the folder and the size of the cache, after emptying it if requested."""
    cache = Cache(args.dir or default_folder())
    if args.action == "clear":
        before = cache.stats()
        cache.clear()
        print(f"removed {counted(before.files, 'kernel')}, {before.nbytes / 2**20:.1f} MiB")
    stats = cache.stats()
    print(f"offline cache: {cache.path}\nkernels: {stats.files}\nsize: {stats.nbytes / 2**20:.1f} MiB")
    return 0
