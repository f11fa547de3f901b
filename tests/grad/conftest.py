"""Fixtures of the tests of tapes."""

from __future__ import annotations

import pytest

from spirograd.ad.launch_sequences import Repeats
from spirograd.ad.sequence_replay import SequenceReplay


@pytest.fixture
def followed(monkeypatch):
    """Count the launches that follow a sequence, and those that end it."""
    monkeypatch.setenv("SG_CHECK_TAPES", "0")
    count = {"launches": 0, "missed": 0}
    end, missed = SequenceReplay.end, Repeats.missed

    def end_and_count(self):
        count["launches"] += self.count()
        end(self)

    def miss_and_count(self):
        count["missed"] += 1
        missed(self)

    monkeypatch.setattr(SequenceReplay, "end", end_and_count)
    monkeypatch.setattr(Repeats, "missed", miss_and_count)
    return count
