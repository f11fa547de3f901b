"""Parameters of kernels: the key, the declaration in the kernel, and the packing at a launch of each kind."""

from __future__ import annotations

import ast
import dataclasses
import functools
import inspect
import math
import weakref
from collections.abc import Callable, Hashable, Sequence
from typing import TYPE_CHECKING, Any, SupportsFloat, TypeGuard

import numpy as np

from spirograd.base import dtypes
from spirograd.base.dtypes import DType
from spirograd.base.errors import SpirogradArrayError, SpirogradNameError, SpirogradRuntimeTypeError, SpirogradValueError, render
from spirograd.base.sizes import python_expressions as x
from spirograd.base.wording import integer_text
from spirograd.ir.nodes import ArrayArg
from spirograd.lang import arithmetic, scalar
from spirograd.lang.annotations import FunctionArgument, MatrixType, NdarrayType, TripletsType, without_none
from spirograd.lang.data.device_arrays import is_torch
from spirograd.lang.data.exports import Exported
from spirograd.lang.data.ndarray import BufferView, BufferViewType, Ndarray, array_of
from spirograd.lang.data.tensor import Tensor
from spirograd.lang.data.triplets import Triplets
from spirograd.lang.frontend.array_proxy import TripletsProxy, array_decl, is_wide
from spirograd.lang.frontend.captures import Declarations
from spirograd.lang.frontend.fingerprints import compared_by_identity, fingerprint
from spirograd.lang.frontend.frozen_instances import Facts, HashedKey, facts
from spirograd.lang.frontend.func import BoundFunc, Func, is_template
from spirograd.lang.frontend.guards import Path
from spirograd.lang.frontend.steps import Array, Constant, External, ForeignArray, Frozen, Number, Numbers, Step
from spirograd.lang.language_options import LanguageOptions
from spirograd.lang.leaves import AggregateType, build
from spirograd.lang.scalar import Value, describe
from spirograd.lang.traced_numbers import TracedNumber

if TYPE_CHECKING:
    from spirograd.base.protocols import Scalar


class Signature(tuple[object, ...]):
    """The properties of an array that the compiled code depends on.

    There is one object for all arrays with the same properties (see `_signature`), so that launches look up their keys without hashing
    their contents.
    """

    __slots__ = ()
    __hash__ = object.__hash__


_signatures: dict[tuple[object, ...], Signature] = {}


def _signature(*parts: object) -> Signature:
    """Return the signature with these parts."""
    return _signatures.get(parts) or _signatures.setdefault(parts, Signature(parts))


def array_signature(array: Ndarray) -> tuple[Any, ...]:
    """Return the signature of an ndarray."""
    signature = array._sg_signature
    if signature is None:
        if isinstance(array, BufferView):
            return (array._sg_kinds, *array_signature(array.arr))
        decl = array_decl("", array)
        signature = _signature(decl.dtype, decl.ndim, decl.element_shape, decl.needs_grad, decl.wide, decl.needs_dual, decl.layout)
        array._sg_signature = signature  # Read at each launch; an array never changes its type.
    return signature


class Parameter:
    """A parameter of a kernel."""

    def __init__(self, name: str, kernel: str) -> None:
        self.name = name
        self.label = f"kernel `{kernel}`: argument `{name}`"  # The name in errors.

    def key(self, value: object) -> object:
        """Return the properties of a value that the compiled code depends on. Parameters without any do not override this."""
        return None

    def constants(self, value: object) -> list[tuple[tuple[str, ...], object]]:
        """Return the objects that are known while compiling, each with the names of attributes that lead to it from ``value``."""
        return []

    def declare(self, value: object, to: Declarations) -> object:
        """Add the flat arguments; return the object that the name stands for in the kernel."""
        raise NotImplementedError

    def steps(self, value: object, path: Path) -> list[Step]:
        """Return the steps by which a launch packs values with the key of ``value``, which are at ``path``."""
        raise NotImplementedError

    def error(self, problem: object, hint: str = "") -> SpirogradRuntimeTypeError:
        return SpirogradRuntimeTypeError(render(f"{self.label}: {problem}", None, hint))

    def misfit(self, wanted: str, value: object) -> SpirogradRuntimeTypeError:
        return SpirogradRuntimeTypeError(f"{self.label} takes {wanted}, got {describe(value)}")


class ScalarParameter(Parameter):
    def __init__(self, name: str, kernel: str, t: DType) -> None:
        super().__init__(name, kernel)
        self.t = t
        # Values of this type in this range are packed as they are.
        self.plain: type = float if t.is_float else bool if t.kind == "bool" else int
        self._least, self._most = (-math.inf, math.inf) if t.is_float else (t.min, t.max)

    def declare(self, value: object, to: Declarations) -> Value:
        return to.scalar(self.name, self.t)

    def steps(self, value: object, path: Path) -> list[Step]:
        return [Number(path, self.t, self.plain, self.convert)]

    def numbers(self, value: Any) -> list[Scalar]:
        """Return the number as it is packed, like `AggregateParameter.numbers`."""
        of_type = type(value) is self.plain
        return [value if of_type and self._least <= value <= self._most else self.convert(value)]

    def convert(self, value: Any) -> Scalar:
        kind = type(value)
        if kind is TracedNumber:
            value = value.refuse(f"argument `{self.name}` here")
            kind = float
        if isinstance(value, float) and kind is float and self.t.is_float:
            return value
        number = value.item() if hasattr(value, "item") and getattr(value, "ndim", 1) == 0 else value
        if self.t.is_float:
            if not isinstance(number, (int, float, np.floating)):
                raise self.misfit(f"a number ({self.t})", value)
            return self._float(number)
        if not isinstance(number, (int, bool)):
            raise self.misfit(f"an integer ({self.t})", number)
        if self.t.kind == "bool":
            return bool(number)
        if not self.t.min <= number <= self.t.max:
            raise self._too_large(number)
        return int(number)

    def _float(self, value: SupportsFloat) -> float:
        try:
            return float(value)
        except OverflowError:
            assert isinstance(value, int)
            raise self._too_large(value) from None

    def _too_large(self, value: int) -> SpirogradRuntimeTypeError:
        return self.error(f"{value if value.bit_length() <= 64 else integer_text(value)} does not fit {self.t}")


class AggregateParameter(Parameter):
    """A parameter that is a vector, matrix or struct, by value."""

    def __init__(self, name: str, kernel: str, t: AggregateType) -> None:
        super().__init__(name, kernel)
        self.t = t
        self.leaves = [ScalarParameter(f"{name}.{k}", kernel, leaf) for k, leaf in enumerate(t.leaf_dtypes())]
        for leaf in self.leaves:
            leaf.label = self.label  # Users do not know the leaves by number.

    def declare(self, value: object, to: Declarations) -> object:
        return build(self.t, [leaf.declare(None, to) for leaf in self.leaves])

    def steps(self, value: object, path: Path) -> list[Step]:
        return [Numbers(path, len(self.leaves), self.numbers)]

    def numbers(self, value: object) -> list[Scalar]:
        """Return the numbers of ``value`` as they are packed."""
        try:
            numbers = self.t.numbers_of(value)
        except TypeError as error:
            raise self.error(error) from None
        integers = isinstance(self.t, MatrixType) and not self.t.dtype.is_float
        if integers and any(isinstance(number, (float, np.floating)) for number in numbers):
            raise self.misfit(f"integers ({self.leaves[0].t})", value)
        return [packed for leaf, number in zip(self.leaves, numbers) for packed in leaf.numbers(number)]


class ArrayParameter(Parameter):
    """A parameter that is an ndarray, a NumPy array or a torch tensor."""

    def __init__(self, name: str, kernel: str, t: NdarrayType) -> None:
        super().__init__(name, kernel)
        self.t = t

    def key(self, value: object) -> object:
        if isinstance(value, Ndarray):
            return array_signature(value)
        return _signature(*self.external(value), False, ())

    def external(self, value: object) -> tuple[DType, int, tuple[int, ...], bool, bool]:
        """Return dtype, number of axes and element shape of an array of another library, whether it has a gradient, and whether it is
        huge."""
        if not is_external(value):
            raise self.misfit("an array", value)
        shape, dtype = tuple(value.shape), _element_type(value)
        if dtype is None:
            what, fix = ("arrays", ".astype(np.float32)") if isinstance(value, np.ndarray) else ("tensors", ".to(torch.float32)")
            problem = f"{what} of {value.dtype} cannot be passed to kernels, which take integers, floats and bool"
            parts = "pass `.real` and `.imag`, or " if "complex" in str(value.dtype) else ""
            raise self.error(problem, f"{parts}convert it: `{fix}`")
        element = self.t.element_shape_of(shape)
        ndim = len(shape) - len(element)
        if ndim < 0 or tuple(shape[ndim:]) != tuple(element):
            raise self.error(f"an array of shape {tuple(shape)} has no elements of shape {tuple(element)}")
        grad = self.t.needs_grad is not False and bool(getattr(value, "requires_grad", False))
        return dtype, ndim, tuple(element), grad, is_wide(shape, ())

    def declare(self, value: object, to: Declarations) -> object:
        if isinstance(value, Ndarray):
            decl = array_decl(self.name, array_of(value))
            shape: tuple[int, ...] = tuple(value.shape)
            if self.t.needs_grad and not decl.needs_grad:
                text = f"{self.label} takes arrays with a gradient, got {describe(value)} without one"
                raise SpirogradValueError(render(text, None, "make it with `needs_grad=True`"))
        else:
            dtype, ndim, element, grad, wide = self.external(value)
            assert is_external(value)
            decl = ArrayArg(self.name, dtype, ndim, element, grad, wide)
            shape = tuple(value.shape)[:ndim]
        problem = self.t.mismatch(decl.dtype, shape, decl.element_shape)
        if problem is not None:
            raise SpirogradArrayError(render(f"{self.label}: {problem}", None, self._conversion(value, decl.dtype)))
        return to.ndarray(self.name, value) if isinstance(value, Ndarray) else to.array(decl)

    def _conversion(self, value: object, dtype: DType) -> str:
        """Return the code that converts an array of another type to the wanted type, for messages."""
        wanted = self.t.dtype
        if wanted is None or wanted is dtype:
            return ""
        if isinstance(value, Ndarray):
            return f"make the array with `sg.{wanted}`, or declare the argument `{self.name}` as an array of {dtype}"
        name = wanted.np.name
        if isinstance(value, np.ndarray):
            return f"convert it with `.astype(np.{'bool_' if name == 'bool' else name})`, which makes a copy"
        return f"convert it with `.to(torch.{name})`, which makes a copy"

    def steps(self, value: object, path: Path) -> list[Step]:
        return [Array(path, value, External(self.t, self.label))]


class TripletsParameter(Parameter):
    """A parameter that is a `linalg.SparseMatrixBuilder`: its arrays."""

    def key(self, value: object) -> object:
        if not isinstance(value, Triplets):
            raise self.misfit("a `linalg.SparseMatrixBuilder`", value)
        return tuple(array_signature(array) for array in value.arrays().values())

    def declare(self, value: object, to: Declarations) -> object:
        assert isinstance(value, Triplets)
        proxies = {name: to.array(array_decl(f"{self.name}.{name}", array)) for name, array in value.arrays().items()}
        return TripletsProxy(self.name, proxies)

    def steps(self, value: object, path: Path) -> list[Step]:
        assert isinstance(value, Triplets)
        return [Array(path.then(name), array) for name, array in value.arrays().items()]


class TemplateParameter(Parameter):
    """A parameter that is fixed while compiling. Ndarrays given for one are still arguments.

    ``types_by_identity``: types of values seen so far whose fingerprints are weak references.
    """

    def __init__(self, name: str, kernel: str) -> None:
        super().__init__(name, kernel)
        self.types_by_identity: set[object] = set()

    def key(self, value: object) -> object:
        if isinstance(value, Ndarray):
            return array_signature(value)
        kind: type = type(value)
        if compared_by_identity(kind):
            self.types_by_identity.add(kind)
        return fingerprint(value)

    def constants(self, value: object) -> list[tuple[tuple[str, ...], object]]:
        return [((), value), (("instance",), value.instance)] if isinstance(value, BoundFunc) else [((), value)]

    def declare(self, value: object, to: Declarations) -> object:
        return to.ndarray(self.name, value) if isinstance(value, Ndarray) else value

    def steps(self, value: object, path: Path) -> list[Step]:
        return [Array(path, value)] if isinstance(value, Ndarray) else [Constant(path)]


class TensorParameter(TemplateParameter):
    """A parameter of type `sg.Tensor`: a field, which is fixed while compiling, or an array."""

    def __init__(self, name: str, kernel: str) -> None:
        super().__init__(name, kernel)
        self.array = ArrayParameter(name, kernel, NdarrayType())

    def key(self, value: object) -> object:
        return self.array.key(value) if is_external(value) else super().key(value)

    def declare(self, value: object, to: Declarations) -> object:
        return self.array.declare(value, to) if is_external(value) else super().declare(value, to)

    def steps(self, value: object, path: Path) -> list[Step]:
        is_array = isinstance(value, Ndarray) or is_external(value)
        return self.array.steps(value, path) if is_array else super().steps(value, path)


class OptionalParameter(Parameter):
    """A parameter that may be None, which is fixed while compiling. ``inner``: the parameter for other values."""

    def __init__(self, name: str, kernel: str, inner: Parameter) -> None:
        super().__init__(name, kernel)
        self.inner = inner
        self.none = TemplateParameter(name, kernel)

    def of(self, value: object) -> Parameter:
        """Return the parameter for ``value``."""
        return self.none if value is None else self.inner

    def key(self, value: object) -> object:
        return self.of(value).key(value)

    def constants(self, value: object) -> list[tuple[tuple[str, ...], object]]:
        return self.of(value).constants(value)

    def declare(self, value: object, to: Declarations) -> object:
        return self.of(value).declare(value, to)

    def steps(self, value: object, path: Path) -> list[Step]:
        return self.of(value).steps(value, path)


class Namespace:
    """An instance of a dataclass inside a kernel: its members are attributes."""

    def __init__(self, name: str, members: dict[str, object]) -> None:
        self.__dict__.update(members)
        self._name = name

    def __sg_describe__(self) -> str:
        return f"an instance of {self._name}"


class DataclassParameter(Parameter):
    """A parameter that is an instance of a Python dataclass, with a parameter for each member."""

    def __init__(self, name: str, kernel: str, cls: type, options: LanguageOptions) -> None:
        super().__init__(name, kernel)
        self.cls = cls
        try:
            hints = inspect.get_annotations(cls, eval_str=True)
        except NameError as error:
            raise SpirogradNameError(
                f"an annotation of dataclass `{cls.__name__}` is a string, and {error} in its module",
                hint="under `from __future__ import annotations`, types that a dataclass names must be defined at the top of the file",
            ) from None
        types = {f.name: hints.get(f.name, f.type) for f in dataclasses.fields(cls)}
        self.members = {key: make_parameter(f"{name}.{key}", t, options, kernel) for key, t in types.items()}
        others = [p for p in self.members.values() if isinstance(p, DataclassParameter)]
        # Whether it is frozen, through all levels.
        self.frozen: bool = cls.__dataclass_params__.frozen and all(p.frozen for p in others)  # type: ignore[attr-defined]

    def _check(self, value: object) -> None:
        if not isinstance(value, self.cls):
            raise self.misfit(f"an instance of {self.cls.__name__}", value)

    def is_steady(self, value: object) -> bool:
        """Return whether keys and flat arguments can change only where `validity` records it."""
        return self.frozen and isinstance(value, self.cls) and all(step.is_steady((value,)) for step in self._members(value, Path(0)))

    def facts(self, value: object) -> Facts | None:
        """Return the facts about a steady instance; None for others."""
        return facts(self.cls, value, lambda: self.is_steady(value)) if self.frozen else None

    def key(self, value: object) -> object:
        known = self.facts(value)
        if known is not None and known.key is not None:
            return known.key
        self._check(value)
        key = HashedKey([p.key(getattr(value, name)) for name, p in self.members.items()])
        if known is not None:
            known.key = key
        return key

    def constants(self, value: object) -> list[tuple[tuple[str, ...], object]]:
        return [((name, *names), obj) for name, p in self.members.items() for names, obj in p.constants(getattr(value, name))]

    def declare(self, value: object, to: Declarations) -> object:
        return Namespace(self.cls.__name__, {name: p.declare(getattr(value, name), to) for name, p in self.members.items()})

    def steps(self, value: object, path: Path) -> list[Step]:
        return [Frozen(path, self.facts, self._members(value, Path(0)))] if self.frozen else self._members(value, path)

    def _members(self, value: object, path: Path) -> list[Step]:
        return [step for name, p in self.members.items() for step in p.steps(getattr(value, name), path.then(name))]


def key_function(parameters: Sequence[Parameter]) -> Callable[[Sequence[object]], Hashable] | None:
    """Return a function that computes the keys of the arguments of a call that have keys; None if no parameter has one.

    The function computes the keys of ndarrays, and of objects compared by identity, without a call of Python.
    """
    names: dict[str, object] = {"getattr": getattr, "type": type, "ref": weakref.ref}
    keys = []
    for k, p in enumerate(parameters):
        if type(p).key is not Parameter.key:
            names[f"key{k}"] = p.key
            value = x.item(x.name("args"), x.number(k))
            key = x.call(f"key{k}", value)
            if isinstance(p, ArrayParameter):
                key = x.either(x.call("getattr", value, x.text("_sg_signature"), x.NONE), key)
            elif type(p) is TemplateParameter:
                names[f"types{k}"] = p.types_by_identity
                key = x.choice(x.compare(x.call("type", value), ast.In(), x.name(f"types{k}")), x.call("ref", value), key)
            keys.append(key)
    return x.function(("args",), x.sequence(keys), names) if keys else None


def is_external(value: object) -> TypeGuard[ForeignArray]:
    """Return whether ``value`` is a NumPy array, a torch tensor, or another array in memory of a GPU."""
    if isinstance(value, (Exported, type)):  # Arrays of spirograd, whose memory the interface would hand out, or a class of arrays.
        return False
    return isinstance(value, np.ndarray) or is_torch(value) or hasattr(value, "__cuda_array_interface__")


def _element_type(array: ForeignArray) -> DType | None:
    """Return the type of the elements of a NumPy array or torch tensor; None for one that kernels do not have."""
    if not isinstance(array, np.ndarray):
        return _foreign_type(array.dtype)
    try:
        return dtypes.from_numpy(array.dtype)
    except (KeyError, TypeError):
        return None


@functools.lru_cache(maxsize=64)
def _foreign_type(dtype: object) -> DType | None:
    """Return the type for the ``dtype`` of torch or another library; None for one that kernels do not have."""
    try:
        return dtypes.from_numpy(np.dtype(str(dtype).rpartition(".")[2]))
    except (KeyError, TypeError):
        return None


def make_parameter(name: str, annotation: object, options: LanguageOptions, kernel: str) -> Parameter:
    """Return the kind of parameter of ``kernel`` for an annotation; raise SpirogradTypeError for an invalid one."""
    if annotation is inspect.Parameter.empty:
        raise scalar.type_error(f"parameter `{name}` has no type", "annotate it: sg.f32, sg.types.NDArray, sg.Template ...")
    inner = without_none(annotation)
    if inner is not None:
        return OptionalParameter(name, kernel, make_parameter(name, inner, options, kernel))
    if annotation is NdarrayType:
        return ArrayParameter(name, kernel, NdarrayType())
    if isinstance(annotation, NdarrayType):
        return ArrayParameter(name, kernel, annotation)
    if annotation is BufferView or isinstance(annotation, BufferViewType):
        view = annotation if isinstance(annotation, BufferViewType) else BufferViewType()
        return ArrayParameter(name, kernel, NdarrayType(view.dtype, 1, boundary=view.boundary))
    if isinstance(annotation, AggregateType):
        return AggregateParameter(name, kernel, annotation)
    if annotation is Tensor:
        return TensorParameter(name, kernel)
    if annotation is TripletsType or isinstance(annotation, TripletsType):
        return TripletsParameter(name, kernel)
    if is_template(annotation) or isinstance(annotation, (FunctionArgument, Func)):
        return TemplateParameter(name, kernel)
    if annotation in (int, float):
        return ScalarParameter(name, kernel, options.default_ip if annotation is int else options.default_fp)
    if isinstance(annotation, type) and dataclasses.is_dataclass(annotation):
        return DataclassParameter(name, kernel, annotation, options)
    shown = annotation.__qualname__ if type(annotation) is type else repr(annotation)
    try:
        return ScalarParameter(name, kernel, arithmetic.as_dtype(annotation))
    except TypeError:
        raise scalar.type_error(
            f"parameter `{name}` has the annotation {shown}, which is not a type of the kernel language",
            "scalars: sg.i32 ...; vectors: sg.types.Vector[n, dtype]; arrays: sg.types.NDArray[dtype, ndim]; "
            "what is fixed while compiling: sg.Template",
        ) from None
