"""Validation of modules with spirv-val: in tests, and with SG_VALIDATE=1."""

from __future__ import annotations

import shutil
import subprocess

from spirograd.spirvgen.module import ModuleError

# Arguments of spirv-val, by target.
_ARGUMENTS = {"vulkan": ("--target-env", "vulkan1.2", "--scalar-block-layout"), "wgpu": ("--target-env", "vulkan1.2")}
_TIMEOUT_SECONDS = 120
# Messages of versions that are older than an extension -> the extension, and the first version that knows it.
_TOO_OLD = {
    "Invalid capability operand: 6022": ("cooperative matrices", "v2023.4"),
    "Invalid capability operand: 6029": ("float controls 2", "v2024.1"),
    "Invalid execution mode operand: 6023": ("maximal reconvergence", "v2024.1"),
}


def available() -> bool:
    """Return whether spirv-val is on the path."""
    return shutil.which("spirv-val") is not None


def validate(module: bytes, target: str) -> None:
    """Raise ModuleError with the message of spirv-val unless ``module`` is valid; does nothing where spirv-val is not installed."""
    program = shutil.which("spirv-val")
    if program is None:
        return
    command = [program, *_ARGUMENTS[target], "-"]
    done = subprocess.run(command, input=module, capture_output=True, timeout=_TIMEOUT_SECONDS, check=False)
    if done.returncode:
        message = f"spirv-val: {(done.stderr or done.stdout).decode(errors='replace').strip()}"
        for sign, (extension, version) in _TOO_OLD.items():
            if sign in message:
                message += f"\n  this spirv-val knows no {extension}: install SPIRV-Tools {version} or newer"
        raise ModuleError(message)
