"""IR can be pickled: entries of the table of operations are found by name, and every kernel shares them."""

from __future__ import annotations

import copy
import pickle
import subprocess
import sys
from pathlib import Path

from spirograd.base.dtypes import VOID, i32
from spirograd.ir import ops
from spirograd.ir.builder import Builder
from spirograd.ir.nodes import Kernel
from spirograd.ir.text import parse, to_text


def test_another_process_reads_a_kernel(tmp_path: Path) -> None:
    b = Builder()
    b.begin()
    b.emit(ops.add, b.const(2, i32), b.const(3, i32))
    kernel = Kernel("k", (), b.end())
    data = pickle.dumps(kernel)
    assert len(data) < 5_000
    file = tmp_path / "kernel"
    file.write_bytes(data)
    program = f"import pickle, spirograd.ir.text as t; print(t.to_text(pickle.load(open({str(file)!r}, 'rb'))), end='')"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=120)
    assert done.stdout == to_text(kernel)
    assert to_text(parse(done.stdout)) == to_text(kernel)


def test_entries_and_types_are_the_same_objects() -> None:
    for thing in (ops.add, VOID, i32):
        assert copy.deepcopy(thing) is thing and pickle.loads(pickle.dumps(thing)) is thing
