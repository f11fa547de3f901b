"""Translation of a module's SPIR-V to source text for Metal by the command `spirv-cross`; the numbers of buffers are read from the text.

spirv-cross numbers the buffers of a function by itself. A second translation, in which they have the numbers of the bindings, maps them to
the bindings of the SPIR-V.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import tempfile
from pathlib import Path

from spirograd.base.errors import SpirogradRuntimeError, render
from spirograd.base.records import dataclass

_COMMAND = "spirv-cross"
_INSTALL = "install it: `apt install spirv-cross`, `brew install spirv-cross`, or the Vulkan SDK; or save without `msl=True`"
# Metal 2.4: macOS 12 and iOS 15.
_OPTIONS = ("--msl", "--msl-version", "20400")
_FUNCTION = re.compile(r"^kernel void (\w+)\((.*)\)$", re.MULTILINE)
_BUFFER = re.compile(r"(\w+)& (\w+) \[\[buffer\((\d+)\)\]\]")
_ARGUMENTS = "Arguments"  # the type of the argument block


@dataclass(frozen=True, slots=True)
class MetalCode:
    """The ``text`` with the function ``entry``. ``arguments``: the number of the buffer with the argument block, None if the function does
    not read it; ``bindings``: the number of the buffer of each binding of the task, None if the function does not use it."""

    text: bytes
    entry: str
    arguments: int | None
    bindings: tuple[int | None, ...]


def check_command() -> None:
    """Raise SpirogradRuntimeError, which says what to install, if `spirv-cross` is missing."""
    if shutil.which(_COMMAND) is None:
        raise SpirogradRuntimeError(render(f"code for Metal is made by the command `{_COMMAND}`, which is not on the path", None, _INSTALL))


def translated(name: str, module: bytes, bindings: int) -> MetalCode:
    """Translate a module of SPIR-V with the given number of ``bindings`` to Metal. ``name``: in errors. Raises SpirogradRuntimeError if
    `spirv-cross` fails, or if its output has buffers that callers cannot provide."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "module.spv"
        path.write_bytes(module)
        text, numbered = (_run(name, path, *options) for options in ((), ("--msl-decoration-binding",)))
    functions, original = _FUNCTION.findall(text), _FUNCTION.findall(numbered)
    if len(functions) != 1 or len(original) != 1:
        raise SpirogradRuntimeError(f"`{_COMMAND}` made {len(functions)} functions of {name}, and one is expected")
    (entry, parameters), (_, with_bindings) = functions[0], original[0]
    arguments, numbers = None, dict.fromkeys(range(bindings))
    binding_of = {variable: int(number) for kind, variable, number in _BUFFER.findall(with_bindings) if kind != _ARGUMENTS}
    for kind, variable, number in _BUFFER.findall(parameters):
        if kind == _ARGUMENTS:
            arguments = int(number)
        else:
            numbers[binding_of[variable]] = int(number)
    if parameters.count("[[buffer(") != (arguments is not None) + sum(n is not None for n in numbers.values()) or len(numbers) > bindings:
        raise SpirogradRuntimeError(f"`{_COMMAND}` gave {name} buffers that are none of its {bindings} bindings: {parameters}")
    return MetalCode(text.encode(), entry, arguments, tuple([numbers[k] for k in range(bindings)]))


def _run(name: str, path: Path, *options: str) -> str:
    done = subprocess.run([_COMMAND, *_OPTIONS, *options, str(path)], capture_output=True, text=True)
    if done.returncode:
        raise SpirogradRuntimeError(f"`{_COMMAND}` cannot translate {name}: {(done.stderr or done.stdout).strip()}")
    return done.stdout
