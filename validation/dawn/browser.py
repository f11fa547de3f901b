"""Chromium's WebGPU on SwiftShader: `page.js` runs in a page without a window, which gets calls by the DevTools protocol, through pipes."""

from __future__ import annotations

import base64
import itertools
import json
import os
import shutil
import subprocess
import tempfile
import weakref
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np

from spirograd.base.errors import SpirogradRuntimeError
from validation.dawn.translation import wgsl
from validation.rdna3.arithmetic import Array

_SCRIPT = Path(__file__).with_name("page.js")
_OPTIONS = (
    "--headless=new",
    "--no-sandbox",
    "--no-first-run",
    "--remote-debugging-pipe",
    "--enable-unsafe-webgpu",
    "--use-webgpu-adapter=swiftshader",
)
_END = b"\0"  # of a message
_CHUNK = 1 << 16


class _Process:
    """A browser process, which answers calls of the DevTools protocol."""

    def __init__(self) -> None:
        self._folder = tempfile.mkdtemp()
        self.page = Path(self._folder, "page.html")  # Only pages with an address have WebGPU.
        self.page.touch()
        read, self._requests = os.pipe()
        self._answers, write = os.pipe()
        # The browser reads from file descriptor 3 and writes to 4.
        command = ["sh", "-c", f'exec "$@" 3<&{read} 4>&{write}', "sh", "chromium", *_OPTIONS, f"--user-data-dir={self._folder}"]
        quiet = subprocess.DEVNULL
        self._process = subprocess.Popen(command, pass_fds=(read, write), stdin=quiet, stdout=quiet, stderr=quiet)
        os.close(read)
        os.close(write)
        weakref.finalize(self, _end, self._process, (self._requests, self._answers), self._folder)
        self._numbers = itertools.count(1)
        self._received = b""
        self.version = str(self.call("Browser.getVersion")["product"])

    @property
    def ended(self) -> bool:
        """Whether the process ended."""
        return self._process.poll() is not None

    def call(self, method: str, session: Mapping[str, str] = MappingProxyType({}), **parameters: object) -> dict[str, Any]:
        """Return the result of a method. ``session``: the part of a request that names a page, empty for the browser."""
        number = next(self._numbers)
        rest = json.dumps({"id": number, "method": method, "params": parameters, **session}).encode() + _END
        while rest:
            rest = rest[os.write(self._requests, rest) :]
        while True:
            answer = json.loads(self._next())
            if answer.get("id") == number:
                break
        if "error" in answer:
            raise SpirogradRuntimeError(f"the browser answers {method} with {answer['error']}")
        return answer["result"]

    def _next(self) -> bytes:
        parts = [self._received]
        while _END not in parts[-1]:
            part = os.read(self._answers, _CHUNK)
            if not part:
                raise SpirogradRuntimeError("the browser ended")
            parts.append(part)
        message, _, self._received = b"".join(parts).partition(_END)
        return message


def _end(process: subprocess.Popen[bytes], pipes: tuple[int, int], folder: str) -> None:
    process.terminate()
    process.wait()
    for pipe in pipes:
        os.close(pipe)
    shutil.rmtree(folder, ignore_errors=True)


_processes: list[_Process] = []  # at most one, for all sessions: it takes longer to start than most programs take to run


def _process() -> _Process:
    """Return the browser. If it ended, start another."""
    if not _processes or _processes[0].ended:
        _processes[:] = [_Process()]
    return _processes[0]


class Browser:
    """A `Host`: a page of the browser that evaluates functions of `page.js`."""

    def __init__(self) -> None:
        self._process = _process()
        self._target = self._process.call("Target.createTarget", url="about:blank")["targetId"]
        self._session = {"sessionId": self._process.call("Target.attachToTarget", targetId=self._target, flatten=True)["sessionId"]}
        self._process.call("Page.navigate", self._session, url=self._process.page.as_uri())
        self._process.call("Runtime.evaluate", self._session, expression=_SCRIPT.read_text(encoding="utf-8"))
        self.adapter = str(self._evaluate("openDevice"))
        self.driver = f"{self._process.version}, WGSL by naga"

    def pipeline(self, module: bytes, entry: str, buffers: int, indirect: bool) -> object:
        return self._evaluate("createPipeline", wgsl(module), entry, [buffers] + [1] * indirect)

    def run(self, pipeline: object, contents: Sequence[Array], arguments: bytes, groups: int) -> list[Array]:
        blocks = [arguments.ljust(-(-len(arguments) // 16) * 16, b"\0")] if arguments else []
        bound = [[content.tobytes() for content in contents], blocks][: 1 + bool(blocks)]
        encoded = [[base64.b64encode(content).decode() for content in group] for group in bound]
        results = self._evaluate("dispatch", pipeline, encoded, groups)
        assert isinstance(results, list)
        return [np.frombuffer(base64.b64decode(result), np.uint8) for result in results]

    def close(self) -> None:
        """Close the page. The browser ends with this process."""
        if not self._process.ended:
            self._process.call("Target.closeTarget", targetId=self._target)

    def _evaluate(self, function: str, *arguments: object) -> object:
        """Return what a function of the page returns. Raises SpirogradRuntimeError with the exception that it throws."""
        expression = f"{function}({', '.join(map(json.dumps, arguments))})"
        answer = self._process.call("Runtime.evaluate", self._session, expression=expression, awaitPromise=True, returnByValue=True)
        if "exceptionDetails" in answer:
            raise SpirogradRuntimeError(f"the browser refuses: {answer['exceptionDetails']['exception'].get('description')}")
        return answer["result"].get("value")


def open_host(name: str) -> Browser:
    """Open a page. ``name``: a key of `HOSTS`."""
    return Browser()
