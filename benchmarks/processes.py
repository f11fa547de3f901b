"""Processes that answer requests, lines of JSON both ways, within time limits."""

from __future__ import annotations

import json
import os
import queue
import subprocess
import threading
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent


class Failed(RuntimeError):
    """What a process says went wrong, or how it ended."""


class Process:
    """A process of ``command``. What else it prints goes to the file ``log``, or nowhere.

    ``send`` and ``receive`` apart let several processes work at the same time.
    """

    def __init__(self, name: str, command: list[str], environment: dict[str, str] | None = None, log: Path | None = None) -> None:
        self.name, self._path = name, log
        self._log = log.open("a") if log else None
        paths = [str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
        self.process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log or subprocess.DEVNULL,
            text=True,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(paths), **(environment or {})},
        )
        self._lines: queue.Queue[str | None] = queue.Queue()
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            if line.startswith("{"):
                self._lines.put(line)
            elif self._log:  # what the package itself prints
                self._log.write(line)
        self._lines.put(None)

    @property
    def ended(self) -> bool:
        return self.process.poll() is not None

    def send(self, **request: Any) -> None:
        assert self.process.stdin is not None
        try:
            self.process.stdin.write(json.dumps(request) + "\n")
            self.process.stdin.flush()
        except BrokenPipeError:
            raise Failed(f"{self.name}: {self._end()}") from None

    def receive(self, limit: float | None = None) -> Any:
        """The answer to the oldest request. Raises Failed, also if there is none in ``limit`` seconds, after which the process is ended."""
        try:
            line = self._lines.get(timeout=limit)
        except queue.Empty:
            self.process.kill()
            raise Failed(f"{self.name}: no answer within {limit:g} s") from None
        if line is None:
            raise Failed(f"{self.name}: {self._end()}")
        answer = json.loads(line)
        if "error" in answer:
            raise Failed(f"{self.name}: {answer['error']}")
        return answer["result"]

    def ask(self, limit: float | None = None, **request: Any) -> Any:
        self.send(**request)
        return self.receive(limit)

    def _end(self) -> str:
        try:
            status = self.process.wait(5)
        except subprocess.TimeoutExpired:
            return "the process does not answer any more"
        said = self._path.read_text(errors="replace").strip().splitlines() if self._path else []
        return f"the process has ended with status {status}{f': {said[-1]}' if said else ''}"

    def close(self) -> None:
        """Let it end, or end it."""
        assert self.process.stdin is not None
        try:
            self.process.stdin.close()
            self.process.wait(5)
        except (BrokenPipeError, subprocess.TimeoutExpired):
            self.process.kill()
            self.process.wait()
        if self._log:
            self._log.close()
