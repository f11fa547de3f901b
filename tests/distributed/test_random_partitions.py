"""Random programs give the same numbers on several processes and on one, with plain tapes and with checkpoints."""

import pytest
from cases import seeds

from tests.fuzz import partitions

pytestmark = pytest.mark.needs("torch")


@pytest.mark.parametrize("seed", seeds(2, 30))
def test_random_programs(seed):
    partitions.check(partitions.write(seed), ["cpu"])
