"""The types of `types.argpack`: several arguments of a kernel as one object, whose members change between launches."""

from __future__ import annotations

import dataclasses

from spirograd.base.errors import SpirogradCallError
from spirograd.base.wording import did_you_mean


class ArgPack:
    """An instance of a type made by `types.argpack`. Members are attributes, which may be assigned."""

    def __init__(self, **members: object) -> None:
        names = self.keys
        for name in members:
            if name not in names:
                hint = did_you_mean(name, names) or f"it has {', '.join(f'`{n}`' for n in names)}"
                raise SpirogradCallError(f"the argpack has no member `{name}`; {hint}")
        missing = [name for name in names if name not in members]
        if missing:
            raise SpirogradCallError(f"the argpack has no value for {', '.join(f'`{name}`' for name in missing)}")
        for name, value in members.items():
            setattr(self, name, value)

    @property
    def keys(self) -> list[str]:
        """The names of the members."""
        return [f.name for f in dataclasses.fields(self)]  # type: ignore[arg-type]

    @property
    def items(self) -> list[tuple[str, object]]:
        """The names and values of the members."""
        return [(name, getattr(self, name)) for name in self.keys]

    def to_dict(self) -> dict[str, object]:
        """Return the members by name; argpacks among them become dictionaries, too."""
        return {name: value.to_dict() if isinstance(value, ArgPack) else value for name, value in self.items}

    def __repr__(self) -> str:
        return repr(self.to_dict())


def argpack(**members: object) -> type[ArgPack]:
    """A type of arguments that packs ``members``, given as annotations by name: numbers, vectors, structs, `types.NDArray`, other argpacks.
    A kernel takes an instance of it as it takes one of a dataclass. Calling the type with a value for each member makes an `ArgPack`;
    SpirogradCallError if the members are not these.

    >>> import spirograd as sg
    >>> View = sg.types.argpack(far=sg.f32, size=sg.i32)
    >>> View(far=1.5, size=3)
    {'far': 1.5, 'size': 3}
    """
    pack_type: type[ArgPack] = dataclasses.make_dataclass(
        "ArgPack", list(members.items()), bases=(ArgPack,), init=False, repr=False, eq=False
    )
    return pack_type
