"""Loops over batches, for functions of torch that have no rule for them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from types import ModuleType
from typing import TYPE_CHECKING, Any, Protocol

from spirograd.base.errors import SpirogradUnsupportedError
from spirograd.base.records import dataclass

if TYPE_CHECKING:
    from torch import Tensor


class VmapInfo(Protocol):
    """What torch says of a batch."""

    batch_size: int


def looped(
    torch: ModuleType, label: str, function: Callable[..., Any], info: VmapInfo, dims: Sequence[int | None], args: Sequence[Any]
) -> tuple[Any, int | tuple[int, ...]]:
    """Call ``function`` for each entry of a batch of `torch.func.vmap`; return the results, and their batch axes."""
    axes = [d if isinstance(a, torch.Tensor) else None for a, d in zip(args, dims)]
    results = [function(*(a if d is None else a.select(d, k) for a, d in zip(args, axes))) for k in range(info.batch_size)]
    if not results:
        raise no_entries(label)
    if isinstance(results[0], torch.Tensor):
        return torch.stack(results), 0
    stacked = tuple([torch.stack(parts) for parts in zip(*results)])
    return stacked, (0,) * len(stacked)


def no_entries(label: str) -> SpirogradUnsupportedError:
    """Return the error for an empty batch, whose results have no known shapes."""
    return SpirogradUnsupportedError(f"`{label}` is called for a batch of no entries", None, "omit the call where there are none")


def over_autograd_batches(torch: ModuleType, label: str, operator: Callable[..., object]) -> Callable[..., Any]:
    """Return ``operator`` with a loop over each batch that autograd makes: `torch.autograd.grad(is_grads_batched=True)`,
    `torch.autograd.functional.jacobian(vectorize=True)`. These are not batches of `torch.func.vmap`: torch has no rules for them, and what
    a function of autograd returns for one would lose its history. They may be nested, each at a level of its own, from 1 on."""
    batched = torch._C._functorch.is_legacy_batchedtensor

    def is_batched(value: object) -> bool:
        return any(map(is_batched, value)) if isinstance(value, (list, tuple)) else isinstance(value, torch.Tensor) and batched(value)

    def apart(value: object, level: int) -> object:
        """Return a value with the batch of this level as a `_Batch`."""
        if isinstance(value, (list, tuple)):
            return [apart(v, level) for v in value]
        if not is_batched(value):
            return value
        entries, other = (torch._remove_batch_dim(value, level, size, 0) for size in (1, 2))  # the size is for values without this level
        return _Batch(entries) if entries.shape == other.shape else value

    def at(level: int, args: Sequence[object]) -> object:
        if not is_batched(args):
            return operator(*args)
        parts = [apart(a, level) for a in args]
        size = next(_sizes(parts), None)
        if size is None:
            return at(level - 1, args)
        if not size:
            raise no_entries(label)
        results = [at(level - 1, [_entry(part, k) for part in parts]) for k in range(size)]
        if isinstance(results[0], torch.Tensor):
            return torch._add_batch_dim(torch.stack(results), 0, level)
        return [torch._add_batch_dim(torch.stack(entries), 0, level) for entries in zip(*results)]

    def call(*args: object) -> object:
        if not is_batched(args):
            return operator(*args)
        level = torch._C._vmapmode_increment_nesting() - 1
        torch._C._vmapmode_decrement_nesting()
        return at(level, args)

    return call


@dataclass(frozen=True, slots=True)
class _Batch:
    """Entries along the first axis."""

    entries: Tensor


def _sizes(parts: Sequence[object]) -> Iterator[int]:
    """Yield the number of entries of each batch."""
    for part in parts:
        if isinstance(part, list):
            yield from _sizes(part)
        elif isinstance(part, _Batch):
            yield part.entries.shape[0]


def _entry(part: object, k: int) -> object:
    return [_entry(p, k) for p in part] if isinstance(part, list) else part.entries[k] if isinstance(part, _Batch) else part
