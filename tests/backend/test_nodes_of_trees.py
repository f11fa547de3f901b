"""Nodes of field trees by the family's names: parents, children, sizes in bytes."""

from __future__ import annotations

from typing import Any

import pytest

import spirograd as sg

pytestmark = [pytest.mark.vulkan_or_wgpu, pytest.mark.usefixtures("session")]


def test_nodes_say_where_they_are() -> None:
    x, y, z = sg.field(sg.f32), sg.field(sg.i8), sg.field(sg.f64, shape=())
    outer = sg.root.dense(sg.ij, (4, 6))
    inner = outer.dense(sg.i, 2)
    inner.place(x, y)
    place = x.snode
    assert [inner, outer, sg.root] == [x.parent(), x.parent(2), x.parent(3)] == [place.parent(n) for n in (1, 2, 3)]
    assert x.parent(3) == z.parent() == sg.root and x.parent(3) != inner and sg.FieldsBuilder().dense(sg.i, 3).parent() != sg.root
    assert {x.parent(3), z.parent()} == {z.parent()}
    assert inner._get_children() == [x.snode, y.snode] and outer._get_children() == [inner]
    builder = sg.FieldsBuilder()
    assert builder._get_children() == [] and builder.empty
    assert [builder.dense(sg.i, 3)] == builder._get_children() and not builder.empty
    assert place._path_from_root() == [sg.root, outer, inner, place]
    assert place._dtype is sg.f32 and inner._dtype is None
    assert outer._physical_index_position() == {0: 0, 1: 1}
    assert place._snode_tree_id == outer._snode_tree_id
    assert [n._cell_size_bytes for n in (outer, inner)] == [16, 8]
    assert [n._offset_bytes_in_parent_cell for n in (inner, place, y.snode)] == [0, 0, 4]
    x[7, 5] = 2.0
    assert x[7, 5] == 2.0
    with pytest.raises(sg.SpirogradRuntimeError):
        inner.place(sg.field(sg.f32))


def test_the_shape_of_elements_of_arguments_may_be_called() -> None:
    @sg.kernel
    def k(x: sg.types.ndarray(), m: sg.types.ndarray(dtype=sg.types.matrix(2, 3, sg.f32), ndim=1)) -> sg.i32:
        r = 0
        if sg.static(x.element_shape() == [2]):
            r = 1
        if sg.static(m.element_shape() == [2, 3] and m.element_shape == (2, 3)):
            r += 10
        return r + m.element_shape[1] * 100

    m = sg.Matrix.ndarray(2, 3, sg.f32, 3)
    assert (k(sg.Vector.ndarray(2, sg.f32, 3), m), k(sg.ndarray(sg.f32, 3), m)) == (311, 310)


def test_nodes_of_sparse_trees() -> None:
    x, y, entries = sg.field(sg.f32), sg.field(sg.i32), sg.field(sg.i64)
    blocks = sg.root.pointer(sg.ij, 4)
    cells = blocks.bitmasked(sg.ij, 4)
    cells.place(x, y)
    lists = sg.root.dense(sg.i, 3).dynamic(sg.j, 100, chunk_size=8)
    lists.place(entries)
    assert str(x.snode) == "root => pointer [4, 4] => bitmasked [16, 16] => place [16, 16]"
    assert [n._cell_size_bytes for n in (blocks, cells, x.snode, lists)] == [132, 8, 4, 8]
    assert [n._offset_bytes_in_parent_cell for n in (blocks, x.snode, y.snode)] == [0, 0, 4]
    assert [n._num_dynamically_allocated for n in (blocks, cells, lists)] == [0, 0, 0]
    x[0, 0], x[1, 1], x[15, 15], entries[2, 17] = 1.0, 2.0, 3.0, 4
    assert [n._num_dynamically_allocated for n in (blocks, cells, lists)] == [2, 0, 3]
    blocks.deactivate_all()
    assert [n._num_dynamically_allocated for n in (blocks, cells, lists)] == [0, 0, 3]


def test_pointers_of_nodes(session: Any) -> None:
    """The family's view of a node: beside what was built. What a field lacks, it names."""
    x, v, g = sg.field(sg.f32), sg.Vector.field(2, sg.i32), sg.field(sg.f64, needs_grad=True)
    outer = sg.root.dense(sg.ij, (8, 6))
    inner = outer.dense(sg.i, 2)
    inner.place(x)
    outer.place(v)
    columns = sg.root.dense(sg.jk, (4, 2))
    columns.place(g, offset=(1, 2))
    columns.place(g.grad, offset=(1, 2))
    p, parent = x.snode.ptr, inner.ptr
    assert (str(p.type), parent.type, int(outer.ptr.parent.type)) == ("SNodeType.place", 1, 0)
    assert p.parent == parent and p.parent.parent == outer.ptr != parent and outer.ptr.parent.parent is None
    assert len({hash(node) for node in (p, x.snode.ptr, p.parent, parent)}) == 2
    assert [outer.ptr.get_ch(k) for k in range(outer.ptr.get_num_ch())] == [node.ptr for node in outer._get_children()]
    numbers = [node.ptr.id for node in (outer, inner, x.snode, columns, g.snode, *outer._get_children()[1:])]
    assert len(set(numbers)) == 7 and numbers[0] == outer._id
    assert [p.get_shape_along_axis(k) for k in range(p.num_active_indices())] == [16, 6]
    assert g.snode.ptr.get_physical_index_position()[:3] == [1, 2, -1] and g.snode.ptr.offset == [1, 2] and p.offset == []
    assert (p.data_type(), g.snode.ptr.data_type(), parent.data_type()) == (sg.f32, sg.f64, None)
    assert [(q.is_place(), q.is_primal(), q.has_adjoint(), q.has_dual()) for q in (p, g.snode.ptr, g.grad.snode.ptr, parent)] == [
        (True, True, False, False), (True, True, True, False), (True, False, False, False), (False,) * 4
    ]  # fmt: skip
    assert [str(q.get_snode_grad_type()) for q in (p, g.grad.snode.ptr)] == ["SNodeGradType.PRIMAL", "SNodeGradType.ADJOINT"]
    assert (p.name(), x.snode._name, parent.name()) == (x.name, x.name, "")
    assert (outer.ptr.cell_size_bytes, v.snode.ptr.offset_bytes_in_parent_cell) == (16, 8)
    assert p.get_snode_tree_id() == outer._snode_tree_id
    with pytest.raises(AttributeError, match="`ptr` of a node of a field tree has no attribute `write_float`"):
        p.write_float([0, 0], 1.0)
    with pytest.raises(TypeError, match="only the place of a scalar"):
        parent.get_snode_grad_type()
    with pytest.raises(IndexError):
        p.get_shape_along_axis(2)
