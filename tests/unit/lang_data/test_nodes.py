"""Kinds of nodes: each has a name, a method that makes it, and parts that add up to its extents."""

from __future__ import annotations

import math

import pytest

import spirograd as sg
from spirograd.lang.data.node_inspection import SNodeType
from spirograd.lang.data.nodes import KINDS, Dynamic, SNode, Sparse, Tabled
from spirograd.lang.data.tree import FieldsBuilder


def _made(kind: str) -> SNode:
    above = FieldsBuilder().dense(sg.i, 3)
    return above.dynamic(sg.j, 10, chunk_size=4) if kind == "dynamic" else getattr(above, kind)(sg.ij, (2, 5))


@pytest.mark.parametrize("kind", KINDS)
def test_each_kind_has_a_method_that_makes_it(kind: str) -> None:
    node = _made(kind)
    assert type(node) is KINDS[kind]
    assert node.kind == kind and kind in repr(node)
    assert node.ptr.type is SNodeType[kind]


@pytest.mark.parametrize("kind", KINDS)
def test_parts_of_a_node_cover_its_extents(kind: str) -> None:
    node = _made(kind)
    covered = math.prod(n for part in node.parts() for n in part.extents)
    assert covered >= math.prod(node.extents)
    assert covered - math.prod(node.extents) < (node.chunk if isinstance(node, Dynamic) else 1)
    assert any(part.in_region for part in node.parts()) == isinstance(node, Tabled)


def test_sparse_nodes_of_a_tree_have_numbers_of_their_own() -> None:
    builder = FieldsBuilder()
    nodes = [getattr(builder, kind)(sg.i, 4) for kind in ("pointer", "hash", "bitmasked")]
    nodes.append(builder.dynamic(sg.i, 4))
    assert [node.number for node in nodes if isinstance(node, Sparse)] == [1, 2, 3, 4]
    assert all(node.is_sparse for node in nodes) and builder.tree.root.has_sparse


def test_only_nodes_below_sparse_ones_are_sparse_trees() -> None:
    builder = FieldsBuilder()
    assert not builder.dense(sg.i, 4).has_sparse
    assert builder.dense(sg.i, 4).bitmasked(sg.j, 4).has_sparse
