"""Options of decorators: those of the family are accepted, others are errors that name the near ones."""

from __future__ import annotations

import pytest

import spirograd as sg


@pytest.mark.parametrize(
    ("decorate", "name", "hint"),
    [
        (sg.kernel, "nonsense", "it takes `checkpoints`, `fastcache`, `fuse`, `graph`, `pure`"),
        (sg.kernel, "fast_cache", "did you mean `fastcache`?"),
        (sg.data_oriented, "nonsense", "it takes `stable_members`, `template_primitives`"),
        (sg.data_oriented, "stable_member", "did you mean `stable_members`?"),
    ],
)
def test_unknown_options(decorate, name, hint):
    with pytest.raises(sg.SpirogradRuntimeTypeError, match=f"`{decorate.__name__}` has no option `{name}`") as caught:
        decorate(**{name: True})
    assert hint in str(caught.value)
    assert isinstance(caught.value, TypeError), "as of any Python function"

    def function(): ...

    with pytest.raises(sg.SpirogradRuntimeTypeError, match=name):
        decorate(function, **{name: True})


@pytest.mark.parametrize("name", ["checkpoints", "fastcache", "graph", "pure"])
def test_options_of_the_family(name):
    @sg.kernel(**{name: True, "graph": name != "pure"})
    def run(): ...

    @sg.data_oriented(stable_members=True, template_primitives=False)
    class Made:
        pass

    assert "run" in repr(run)
    assert isinstance(Made(), Made)
