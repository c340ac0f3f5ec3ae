"""Names all that msgspec raises on bytes that are no message; that a text is no UTF-8 is no `DecodeError`."""

import msgspec

UNDECODABLE = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
