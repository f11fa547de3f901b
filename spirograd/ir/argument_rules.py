"""Rules of operations whose values only a launch has: arguments, and properties of the launch."""

from __future__ import annotations

from collections.abc import Callable

from spirograd.base.adstack_layout import AdstackWord
from spirograd.base.artifact import Slot
from spirograd.base.dtypes import DType, i32, i64, u1, u32, u64
from spirograd.ir import ops
from spirograd.ir.group_rules import Verifier
from spirograd.ir.nodes import ArrayArg, BuiltIn, Op, ScalarArg
from spirograd.ir.ops import OpCode


def _arg(v: Verifier, op: Op) -> None:
    args = v.kernel.args
    v.need(isinstance(op.attr, int) and 0 <= op.attr < len(args), op, "there is no such argument")
    argument = args[op.attr]
    if not isinstance(argument, ScalarArg):
        v.fail(op, "that argument is no scalar")
    v.need(op.type is argument.dtype, op, f"that argument is {argument.dtype}")


def _shape(v: Verifier, op: Op) -> None:
    attr, args = op.attr, v.kernel.args
    v.need(isinstance(attr, tuple) and len(attr) == 2 and all(isinstance(k, int) for k in attr), op, "takes (argument, axis)")
    v.need(0 <= attr[0] < len(args), op, "there is no such argument")
    argument = args[attr[0]]
    if not isinstance(argument, ArrayArg):
        v.fail(op, "that argument is no array")
    v.need(0 <= attr[1] < argument.ndim, op, f"that array has {argument.ndim} axes")
    v.need(op.type is i32, op, "an extent is i32")


def _address(v: Verifier, op: Op) -> None:
    attr, args = op.attr, v.kernel.args
    v.need(isinstance(attr, tuple) and [type(k) for k in attr] in ([int, str], [str, int]), op, 'takes (argument, role) or ("tree", n)')
    known = attr[0] == "tree" or (type(attr[0]) is int and 0 <= attr[0] < len(args) and isinstance(args[attr[0]], ArrayArg))
    v.need(known, op, "that argument is no array")
    v.need(op.type is u64, op, "an address is u64")


def _builtin(v: Verifier, op: Op) -> None:
    v.need(op.type is i32 and isinstance(op.attr, BuiltIn), op, "is i32, its attribute a BuiltIn")


def _adstack_word(v: Verifier, op: Op) -> None:
    known = isinstance(op.attr, tuple) and len(op.attr) == 2 and op.attr[0] in set(AdstackWord)
    v.need(known and op.type is i32, op, "is i32, and takes (kind of slot, number)")


def _launch_word(v: Verifier, op: Op) -> None:
    t = {ops.seed: u32, ops.clock: i64, ops.stack_room: u1}.get(op.code, i32)
    v.need(op.type is t and op.attr is None, op, f"is {t}, without attribute")


def _slot(v: Verifier, op: Op) -> None:
    v.need(isinstance(op.attr, Slot), op, "takes a Slot")
    v.need(isinstance(op.type, DType), op, "is a scalar")
    known = {"array": u64, "tree": u64, "seed": u32, "launch": u32, "scalar": op.attr.dtype, **dict.fromkeys(("shape", *AdstackWord), i32)}
    v.need(op.attr.kind in known and known[op.attr.kind] in (None, op.type), op, f"that slot is {known.get(op.attr.kind)}")


ARGUMENT_RULES: dict[OpCode, Callable[[Verifier, Op], None]] = {
    ops.arg: _arg,
    ops.shape: _shape,
    ops.address: _address,
    ops.slot: _slot,
    ops.builtin: _builtin,
    ops.adstack_word: _adstack_word,
    **dict.fromkeys((ops.clock, ops.seed, ops.thread_slot, ops.lane_slots, ops.stack_room), _launch_word),
}
