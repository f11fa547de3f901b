"""Captures of a kernel: its arguments, the arrays that it names, and the attributes that it depends on."""

from __future__ import annotations

from typing import TYPE_CHECKING

from spirograd.base.dtypes import DType, i32
from spirograd.base.records import replace
from spirograd.ir import ops as ir
from spirograd.ir.nodes import ArrayArg, ScalarArg
from spirograd.lang import scalar
from spirograd.lang.data.ndarray import BufferView, Ndarray, array_of
from spirograd.lang.data.scalar_field import Field, ScalarField
from spirograd.lang.data.slices import numbers_of
from spirograd.lang.frontend.array_proxy import ArrayProxy, array_decl
from spirograd.lang.frontend.guards import Path, is_guardable
from spirograd.lang.frontend.outside_values import OutsideValues
from spirograd.lang.frontend.view_proxy import ViewAxis, ViewProxy
from spirograd.lang.scalar import Value

if TYPE_CHECKING:
    from spirograd.lang.frontend.recorded_reads import Reads


class Declarations:
    """The flat arguments of the kernel being traced."""

    def __init__(self) -> None:
        self.args: list[ScalarArg | ArrayArg] = []

    def scalar(self, name: str, t: DType) -> Value:
        """Return a scalar argument; its value in the kernel."""
        self.args.append(ScalarArg(name, t))
        return Value(scalar.builder().emit(ir.arg, attr=len(self.args) - 1, type=t))

    def array(self, decl: ArrayArg) -> ArrayProxy:
        self.args.append(decl)
        return ArrayProxy(len(self.args) - 1, decl)

    def ndarray(self, name: str, array: Ndarray) -> ArrayProxy | ViewProxy:
        """Return an ndarray; of a view the array that it is of, and the numbers that say which part."""
        decl = array_decl(name, array_of(array))
        if not isinstance(array, BufferView):
            return self.array(decl)
        proxy = self.array(replace(decl, view=array._sg_kinds))
        axes: list[ViewAxis] = []
        for k, kind in enumerate(array._sg_kinds):
            names = numbers_of(kind)
            numbers = {number: self.scalar(f"{name}.{number}{k}", i32) for number in names}
            axes.append(ViewAxis(**numbers) if names else ViewAxis(extent=proxy.shape[k]))
        return ViewProxy(proxy, axes, f"view `{name}`")


class Captures:
    """``arrays``: named by the kernel, each an argument that the user does not see, with its path if it has one. ``guarded``: attributes
    of template arguments, with the values that they have now. ``results``: fields of the numbers that a kernel of a batch returns."""

    def __init__(self) -> None:
        self.declarations = Declarations()
        self.arrays: list[tuple[Ndarray, Path | None]] = []
        self.guarded: dict[Path, object] = {}
        self.results: list[ScalarField] = []
        self.outside = OutsideValues()
        self.reads: Reads | None = None  # what the trace reads, if it is recorded
        self._proxies: dict[object, ArrayProxy | ViewProxy] = {}
        self._paths: dict[int, Path] = {}

    def reachable(self, path: Path, obj: object) -> None:
        """Guard the attributes of ``obj``, which a launch reaches by ``path``: they may change between launches."""
        self._paths[id(obj)] = path

    def is_reachable(self, owner: object) -> bool:
        """Return whether a launch reaches ``owner`` from the arguments, as far as the trace knows by now."""
        return id(owner) in self._paths

    def global_name(self, name: str, obj: object) -> object:
        """Return what ``obj``, found under a name from outside, is in the kernel: an ndarray becomes an argument."""
        if isinstance(obj, Field):
            obj.suggest_name(name)
        return self.item(obj, name)

    def attribute(self, owner: object, name: str, obj: object, text: str = "") -> object:
        """Return what ``owner.name`` is in the kernel; it is guarded if ``owner`` can be reached from the arguments. ``text``: what
        messages call it."""
        if isinstance(obj, Field):
            obj.suggest_name(name)
        base = None if isinstance(owner, (Field, type)) else self._paths.get(id(owner))
        path = None if base is None else base.then(name)
        if path is None:
            self.outside.member(owner, name, obj, f"`{text or name}`", scalar.builder().loc)
        if isinstance(obj, Ndarray):
            return self._array(name, obj, path)
        if path is not None and is_guardable(owner, name, obj):
            self.guarded[path] = obj
            self._paths.setdefault(id(obj), path)
        return obj

    def item(self, obj: object, name: str = "") -> object:
        """Return what an object without a name is in the kernel, such as an item of a list, or a local variable."""
        if not isinstance(obj, Ndarray):
            return obj
        if self.reads is not None:
            self.reads.array(obj, name)
        return self._array(name, obj, None)

    def _array(self, name: str, array: Ndarray, path: Path | None) -> ArrayProxy | ViewProxy:
        key = path or id(array)
        if key not in self._proxies:
            self._proxies[key] = self.declarations.ndarray(name or f"array{len(self.arrays)}", array)
            self.arrays.append((array, path))
        return self._proxies[key]
