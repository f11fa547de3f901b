"""Every test here has a session with host memory, and can ask for a kernel being traced."""

import pytest
from unit.lang_data.host_session import HostSession

from spirograd.base.dtypes import f32, i32
from spirograd.ir.builder import Builder
from spirograd.lang import context
from spirograd.lang.context import Trace, set_trace
from spirograd.lang.data.tree import root
from spirograd.lang.language_options import LanguageOptions
from spirograd.lang.scalar import Value


@pytest.fixture(autouse=True)
def session():
    before = context.session() if context.has_session() else None
    new = HostSession()
    context.set_session(new)
    root.reset()
    yield new
    root.reset()
    context.set_session(before)


@pytest.fixture
def tracing():
    """A kernel being traced; yields an i32 and an f32 value of it."""
    b = Builder()
    params = b.begin(i32, f32)
    before = set_trace(Trace(b, LanguageOptions()))
    yield tuple(Value(p) for p in params)
    set_trace(before)
    b.end()
