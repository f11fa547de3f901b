"""Validation of modules with spirv-val: in tests, and with SG_VALIDATE=1."""

from __future__ import annotations

import shutil
import subprocess

from spirograd.spirvgen.module import ModuleError

# Arguments of spirv-val, by target.
_ARGUMENTS = {"vulkan": ("--target-env", "vulkan1.2", "--scalar-block-layout"), "wgpu": ("--target-env", "vulkan1.2")}
_TIMEOUT_SECONDS = 120
# The message of versions before v2023.4 about cooperative matrices.
_TOO_OLD = "Invalid capability operand: 6022"


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
        if _TOO_OLD in message:
            message += "\n  this spirv-val knows no cooperative matrices: install SPIRV-Tools v2023.4 or newer"
        raise ModuleError(message)
