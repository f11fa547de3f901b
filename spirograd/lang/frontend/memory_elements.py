"""Elements of fields and arrays, as lvalues."""

from __future__ import annotations

from spirograd.lang.data.field import MatrixField, ScalarField, StructField
from spirograd.lang.frontend.array_proxy import ArrayProxy, TripletsProxy
from spirograd.lang.frontend.indices import index_values
from spirograd.lang.frontend.lvalues import Element, Lvalue, SharedElement, SpreadElement, StructElement
from spirograd.lang.frontend.sparse_elements import SparseElement
from spirograd.lang.frontend.tracer import Tracer
from spirograd.lang.frontend.triplet_elements import TripletElement
from spirograd.lang.frontend.view_proxy import ViewProxy
from spirograd.lang.groups import SharedArray


def element_of(t: Tracer, base: object, key: object) -> Lvalue | None:
    """Return the element of a field or array at ``key``; None if ``base`` is neither. Records which field a reference stands for."""
    if isinstance(base, ViewProxy):
        return element_of(t, base.base, base.element(index_values(key, len(base.shape), base.name)))
    if isinstance(base, ArrayProxy):
        indices = index_values(key, base.decl.ndim, base.decl.name)
        return Element(base.ref, [indices[axis] for axis in base.axes_in_memory], label=indices)
    if isinstance(base, TripletsProxy):
        return TripletElement(base, key)
    if isinstance(base, StructField):
        members = {name: element_of(t, member, key) for name, member in base.members.items()}
        return StructElement({name: element for name, element in members.items() if element is not None}, base.make_value)
    if isinstance(base, SharedArray):
        return SharedElement(base, index_values(key, len(base.shape), base.ref.name, base.shape, fixed=True))
    if isinstance(base, MatrixField) and base.by_components:
        parts = [element_of(t, component, key) for component in base.component_fields]
        return SpreadElement([part for part in parts if isinstance(part, Element)], base.element_shape)
    if isinstance(base, (ScalarField, MatrixField)):
        ref = base.refs()
        t.fields[ref] = base
        if base.batch is not None:
            indices = index_values(key, len(ref.shape) - 1, ref.name, ref.shape[1:])
            indices.insert(0, t.environment(base.batch))
            return Element(ref, indices, label=indices)
        shape = base.shape if base.sparse_path else ref.shape
        indices = index_values(key, len(shape), ref.name, shape, base.origin if base.sparse_path else ref.layout.origin)
        return SparseElement(t, base, ref, indices) if base.sparse_path else Element(ref, indices, label=None if base.hidden else indices)
    return None
