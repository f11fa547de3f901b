"""What a tape saves, and when: which version of memory each reverse reads, as a table.

A write ends a version of the memory that it changes. A recording keeps a version that a reverse reads: its contents are *needed* from the
time in the table until a write, which saves the parts that it overwrites, once, before it changes them. The reverse pass goes back through
the writes and puts back what each saved: after the reverse of the event that wrote, or before it where the event needs what it overwrites.

Events and the versions that their reverses read:

============================================  ==================  ==========================================================
event                                         version             why
============================================  ==================  ==========================================================
launch, overwrites what the gradient reads    before the launch   no other version has it
launch, gives values that the gradient reads  after the launch    no earlier version has it
launch, changes nothing that is read          after the launch    what is read is in both, in memory that the launch may
                                                                  write elsewhere: what it saves then is the version before
launch without a derivative, `no_grad`        none                it has no reverse
write of Python, fill, copy                   none                the reverse changes gradients only
function with a gradient of its own           after the function  `grad_for` finds memory as the function left it
`ad.checkpoint`                               before the call     its launches run again from there
============================================  ==================  ==========================================================

All of them save what they write, as far as it is needed by then. That the third row needs the later version matters where one launch reads
some elements and writes others of one part of memory: the copy that the launch makes for *earlier* events is put back only after its own
reverse, which reads what the launch left. `recording_check` verifies recordings against the table by the contents of memory.
"""

from __future__ import annotations

from enum import Enum

from spirograd.autodiff.derivative import Residual


class Version(Enum):
    """A version of memory that a reverse reads, by the event that it belongs to."""

    BEFORE = "before"
    AFTER = "after"


FUNCTION, REPEATED = Version.AFTER, Version.BEFORE  # of a gradient of Python's own, of `ad.checkpoint`

# By when a residual can be read, and whether its launch overwrites it: see `Residual`.
_LAUNCH = {
    ("before", True): Version.BEFORE,
    ("after", False): Version.AFTER,
    ("before", False): Version.AFTER,
}


def version_of(residual: Residual) -> Version:
    """Return the version that the reverse of a launch reads of a `Residual` of its derivative."""
    return _LAUNCH[residual.when, residual.overwritten is not None]
