"""Loops that update many elements: the number of compared pairs of accesses grows with their number, not with its square."""

from __future__ import annotations

from unittest import mock

import pytest

import spirograd as sg
from spirograd.analysis.dependence import Dependence


@pytest.mark.archs("cpu")
def test_compared_pairs(session) -> None:
    y = sg.field(sg.f32, 256)
    counts = []
    for n in (64, 128, 256):

        @sg.kernel
        def updates():
            for i in range(1000):
                for k in sg.static(range(n)):
                    y[k] += 1.0 * i

        alias = Dependence.alias
        with mock.patch.object(Dependence, "alias", autospec=True, side_effect=alias) as compared:
            updates()
        counts.append(compared.call_count)
    assert counts[2] <= 2.2 * counts[1] <= 2.2 * 2.2 * counts[0]
    assert y[255] == y[128] == y[200] > 0
