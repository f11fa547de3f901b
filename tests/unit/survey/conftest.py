"""Programs that tests run change the process as if it were their own; here nothing of that may stay."""

from __future__ import annotations

import os
import sys

import pytest


@pytest.fixture(autouse=True)
def clean(monkeypatch):
    monkeypatch.setattr(sys, "argv", list(sys.argv))
    monkeypatch.setattr(sys, "path", list(sys.path))
    before = dict(os.environ)
    yield
    os.environ.clear()
    os.environ.update(before)
