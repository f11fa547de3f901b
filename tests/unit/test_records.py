"""`base/records.py` does what `dataclasses.dataclass` does."""

from __future__ import annotations

import copy
import dataclasses
import pickle
import re
from dataclasses import field
from pathlib import Path
from typing import Any, ClassVar

import pytest

from spirograd.base import records


def _classes(dataclass: Any, **options: Any) -> tuple[Any, Any, Any]:
    @dataclass(**options)
    class Base:
        a: int
        b: list[int] = field(default_factory=list)
        c: float = 2.5
        count: ClassVar[int] = 7

    @dataclass(**options)
    class Derived(Base):
        d: str = field(default="d", kw_only=True)
        e: Any = field(default=None, init=False, repr=False, compare=False)

        def twice(self) -> int:
            return 2 * self.a

    @dataclass(**options)
    class Nothing:
        pass

    return Base, Derived, Nothing


OPTIONS = [
    {"frozen": frozen, "slots": slots, **more}
    for frozen in (False, True)
    for slots in (False, True)
    for more in ({}, {"eq": False}, {"repr": False})
]


@pytest.fixture(params=[0, records._UNCOMPILED], ids=["compiled", "interpreted"])
def constructor(request, monkeypatch):
    """How instances are constructed."""
    monkeypatch.setattr(records, "_UNCOMPILED", request.param)


@pytest.mark.usefixtures("constructor")
@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_as_in_the_standard_library(options):
    base, derived, nothing = _classes(records.dataclass, **options)
    base_, derived_, nothing_ = _classes(dataclasses.dataclass, **options)

    def seen(make: Any) -> Any:
        """What an instance shows, or the error."""
        try:
            made = make()
        except TypeError as error:
            return str(error).rpartition("__init__")[2]
        return (
            [f.name for f in dataclasses.fields(made)],
            [getattr(made, f.name) for f in dataclasses.fields(made)],
            type(made).__match_args__,
        )

    calls: list[tuple[Any, ...]] = [(), (1,), (1, [2]), (1, [2], 3.0), (1, [2], 3.0, "x")]
    for args in calls:
        for kwargs in ({}, {"d": "y"}, {"c": 0.0}, {"e": 1}, {"f": 1}):
            for ours, theirs in ((base, base_), (derived, derived_), (nothing, nothing_)):
                assert seen(lambda: ours(*args, **kwargs)) == seen(lambda: theirs(*args, **kwargs))
    x, y, x_, y_ = derived(1, d="x"), derived(1, d="x"), derived_(1, d="x"), derived_(1, d="x")
    assert x.b is not y.b
    assert (x == y, x != y, x == derived(2), x == base(1), x.twice(), x.count) == (
        x_ == y_,
        x_ != y_,
        x_ == derived_(2),
        x_ == base_(1),
        2,
        7,
    )
    assert hasattr(x, "__dict__") == hasattr(x_, "__dict__")
    if options.get("repr", True):
        assert repr(x) == repr(x_)
    assert (derived.__hash__ is None) == (derived_.__hash__ is None)
    assert copy.copy(x).a == 1
    if options["frozen"]:
        with pytest.raises(dataclasses.FrozenInstanceError, match="cannot assign to field 'a'"):
            x.a = 3
        with pytest.raises(dataclasses.FrozenInstanceError, match="cannot delete field 'a'"):
            del x.a
    else:
        x.a = 3
        assert x.a == 3


@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_replace_and_fields(options):
    _, derived, _ = _classes(records.dataclass, **options)
    x = derived(1, [5], d="x")
    for replace in (records.replace, dataclasses.replace):
        y = replace(x, a=4)
        assert (y.a, y.b, y.c, y.d, y.e) == (4, [5], 2.5, "x", None)
    assert [f.name for f in records.fields(derived)] == [f.name for f in dataclasses.fields(derived)] == list("abcde")
    assert dataclasses.is_dataclass(derived) and dataclasses.asdict(x) == {"a": 1, "b": [5], "c": 2.5, "d": "x", "e": None}


@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_fields_of_the_standard_library_are_computed_once(options):
    base, derived, _ = _classes(records.dataclass, **options)
    plain = type("Plain", (derived,), {})  # which is no record itself
    known = plain.__dataclass_fields__
    assert known is plain.__dataclass_fields__ is derived.__dataclass_fields__
    assert [*base.__dataclass_fields__] == [f.name for f in records.fields(base)] != [*known]


@records.dataclass(frozen=True, slots=True)
class Point:
    x: float
    y: float = 0.0

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Point) and self.x == other.x

    def __post_init__(self) -> None:
        object.__setattr__(self, "y", self.y + 1)


def test_written_methods_are_kept():
    assert Point(1.0, 2.0) == Point(1.0, 3.0) and Point(1.0).y == 1.0
    assert hash(Point(1.0)) == hash(Point(1.0))
    assert pickle.loads(pickle.dumps(Point(1.0, 2.0))).y == 3.0


def test_single_values_compare_as_tuples():
    @records.dataclass(frozen=True, slots=True)
    class One:
        value: float

    nan = float("nan")
    assert One(nan) == One(nan) and One(1.0) != One(2.0) and len({One(1.0), One(1.0)}) == 1


def test_the_package_uses_these():
    package = Path(records.__file__).parents[1]
    rule = re.compile(r"^(from dataclasses import .*\b(dataclass|fields|replace)\b|@dataclasses\.)", re.MULTILINE)
    assert [
        str(path) for path in package.rglob("*.py") if path.name != "records.py" and rule.search(path.read_text(encoding="utf-8"))
    ] == []
