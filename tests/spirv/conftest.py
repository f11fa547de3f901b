from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import needs
import pytest

from spirograd.runtime.loader import open_device


@pytest.fixture(scope="session")
def device() -> Iterator[Any]:
    """The Vulkan device, with the validation layer's complaints turned into errors where it is installed."""
    needs.need("vulkan")
    opened = open_device("vulkan", debug=True)
    yield opened
    opened.close()
