"""Names what a line is calling right now, from the code object alone: no source file is opened in training.

A host that waits for a GPU stands inside a C function (`item`, `cpu`, `synchronize`), which has no frame in
Python. The instruction that called it knows which part of the line it is, and the instruction before it whose
part begins at the same place loads what is called. Python 3.10 does not keep positions: nothing is told there.
"""

import dis
import functools
from types import CodeType

_LOADS = ("LOAD_METHOD", "LOAD_ATTR", "LOAD_GLOBAL", "LOAD_NAME", "LOAD_FAST", "LOAD_DEREF")


@functools.lru_cache(maxsize=256)
def call_name(code: CodeType, lasti: int) -> str:
    """Return the name of what the instruction at `lasti` calls, "" if it calls nothing or that cannot be told."""
    instructions = list(dis.get_instructions(code))
    call = next((each for each in reversed(instructions) if each.offset <= lasti), None)  # caches lie behind a call
    place = getattr(call, "positions", None)
    if call is None or place is None or not call.opname.startswith("CALL"):
        return ""
    begin, end = (place.lineno, place.col_offset), (place.end_lineno, place.end_col_offset)
    if None in begin or None in end:
        return ""
    best, name = begin, ""
    for each in instructions:
        at = getattr(each, "positions", None)
        if each.offset >= call.offset or at is None or each.opname not in _LOADS or (at.lineno, at.col_offset) != begin:
            continue
        ends = (at.end_lineno, at.end_col_offset)
        if None not in ends and best < ends < end:
            best, name = ends, str(each.argval)
    return name
