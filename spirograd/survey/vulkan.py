"""Vulkan drivers: a process of its own compiles the modules by each, so that a crash of a driver's compiler ends that process only."""

from __future__ import annotations

import base64
import json
import selectors
import signal
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO

from spirograd.base.artifact import CompiledKernel
from spirograd.base.caps import Capabilities
from spirograd.base.errors import SpirogradRuntimeError
from spirograd.base.records import dataclass, fields
from spirograd.survey import loading
from spirograd.survey.drivers import Driver
from spirograd.survey.results import CRASHED, FAILED, Build, Statistic
from spirograd.survey.statistics import usage

SECONDS = 120  # of a driver, for one module
_START_SECONDS = 60
_PACKAGE = Path(__file__).resolve().parents[2]
# Drivers of Mesa keep what they compiled; times are to be those of compiling. The package may be imported from a folder.
_VARIABLES = {"MESA_SHADER_CACHE_DISABLE": "true", "SG_DEVICE": ""}


class _Ended(Exception):
    """The process ended, or does not answer; the message says how."""


class VulkanCompiler:
    """A driver of `DRIVERS`, or the Vulkan device of this machine (None), as a compiler. Use it as a context manager.

    Raises SpirogradRuntimeError if the driver is not installed, or has no device that spirograd can use.
    """

    def __init__(self, driver: Driver | None, root: Path = Path("/")) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="spirograd_survey_")
        try:
            self._command, self._variables = loading.python(driver, root, Path(self._folder.name))
            if driver is None:
                self._variables.pop("SG_DEVICE", None)
            self._variables |= _VARIABLES if driver is not None else {"MESA_SHADER_CACHE_DISABLE": "true"}
            self._variables["PYTHONPATH"] = ":".join(filter(None, (str(_PACKAGE), self._variables.get("PYTHONPATH", ""))))
            self._process: _Process | None = None
            device = self._start()
        except BaseException:
            self._folder.cleanup()
            raise
        self.driver = f"{device['name']}, {device['driver']}"
        self.caps = _capabilities(device["capabilities"])

    def __enter__(self) -> VulkanCompiler:
        return self

    def __exit__(self, *_: object) -> None:
        if self._process is not None:
            self._process.end()
        self._folder.cleanup()

    def build(self, kernel: CompiledKernel, seconds: float) -> list[Build]:
        """Return what the driver made of each task of ``kernel``. After a crash, another process goes on with the next task."""
        return [self._task(kernel.binaries[task.binary], f"{kernel.name} ({task.name})") for task in kernel.tasks]

    def listings(self, module: bytes, name: str, subgroup_size: int) -> tuple[dict[str, Statistic], dict[str, str]]:
        """Return the statistics and all listings of one module (see `Inspection`) for subgroups of this size. Raises
        SpirogradRuntimeError if the driver refuses the module or crashes."""
        request = {"module": base64.b64encode(module).decode(), "name": name, "listings": True, "subgroup_size": subgroup_size}
        try:
            answer = self._ask(request)
        except _Ended as error:
            raise SpirogradRuntimeError(f"{name}: the driver's compiler {error}") from None
        if "error" in answer:
            raise SpirogradRuntimeError(str(answer["error"]))
        return answer["statistics"], answer["listings"]  # type: ignore[return-value]

    def _ask(self, request: Mapping[str, object]) -> dict[str, object]:
        """Return the answer to a request; after a crash, from another process. Raises _Ended, or SpirogradRuntimeError."""
        if self._process is None:
            self._start()
        assert self._process is not None
        try:
            return self._process.ask(request, SECONDS)
        except _Ended:
            self._process = None
            raise

    def _task(self, module: bytes, name: str) -> Build:
        try:
            answer = self._ask({"module": base64.b64encode(module).decode(), "name": name})
        except _Ended as error:
            return Build(CRASHED, f"the driver's compiler {error}")
        except SpirogradRuntimeError as error:
            return Build(FAILED, str(error))
        if "error" in answer:
            return Build(FAILED, str(answer["error"]))
        statistics: dict[str, Statistic] = answer["statistics"]  # type: ignore[assignment]
        return Build(seconds=float(str(answer["seconds"])), usage=usage(statistics), statistics=statistics, code=str(answer["code"]))

    def _start(self) -> dict[str, object]:
        """Start a process, and return what it tells about the device."""
        process = _Process([*self._command, "-m", "spirograd.survey.worker"], self._variables)
        try:
            device = process.answer(_START_SECONDS)
        except _Ended as error:
            raise SpirogradRuntimeError(f"the driver cannot be started: the process that loads it {error}") from None
        if "error" in device:
            process.end()
            raise SpirogradRuntimeError(str(device["error"]))
        self._process = process
        return device


class _Process:
    """A process that runs `worker`."""

    def __init__(self, command: Sequence[str], variables: Mapping[str, str]) -> None:
        self._messages = tempfile.TemporaryFile()  # noqa: SIM115 (open as long as the process)
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._messages, env=dict(variables), cwd="/"
        )

    def ask(self, request: Mapping[str, object], seconds: float) -> dict[str, object]:
        """Return the answer to a request."""
        stream = self._stream(self._process.stdin)
        try:
            stream.write(json.dumps(request).encode() + b"\n")
            stream.flush()
        except BrokenPipeError:
            raise _Ended(self._end()) from None
        return self.answer(seconds)

    def answer(self, seconds: float) -> dict[str, object]:
        """Return the next message."""
        stream = self._stream(self._process.stdout)
        with selectors.DefaultSelector() as selector:
            selector.register(stream, selectors.EVENT_READ)
            if not selector.select(seconds):
                self._process.kill()
                self._end()
                raise _Ended(f"gave no result within {seconds:g} s")
        line = stream.readline()
        if not line:
            raise _Ended(self._end())
        message: dict[str, object] = json.loads(line)
        return message

    @staticmethod
    def _stream(stream: IO[bytes] | None) -> IO[bytes]:
        assert stream is not None
        return stream

    def end(self) -> None:
        """End the process, which waits for requests."""
        self._process.kill()
        self._end()

    def _end(self) -> str:
        """Wait for the end; return how the process ended, with the last line that it wrote."""
        status = self._process.wait()
        self._messages.seek(0)
        lines = self._messages.read().decode(errors="replace").split("\n")
        self._messages.close()
        self._stream(self._process.stdin).close()
        self._stream(self._process.stdout).close()
        said = next((line.strip() for line in reversed(lines) if line.strip()), "")
        how = f"ended by {signal.Signals(-status).name}" if status < 0 else f"ended with status {status}"
        return how + (f": {said}" if said else "")


def _capabilities(told: object) -> Capabilities:
    """Return the record that a worker sent as JSON, which has lists in place of tuples."""
    assert isinstance(told, dict)
    members = {f.name: told[f.name] for f in fields(Capabilities)}
    return Capabilities(**{name: tuple(value) if isinstance(value, list) else value for name, value in members.items()})  # type: ignore[arg-type]


@dataclass(frozen=True, slots=True)
class VulkanDevice:
    """The device of a driver: see `devices.SurveyDevice`. ``driver`` None: the Vulkan device of this machine."""

    name: str
    title: str
    driver: Driver | None
    root: Path

    def open(self) -> VulkanCompiler:
        """See `devices.SurveyDevice`."""
        return VulkanCompiler(self.driver, self.root)
