"""Says where the native recorder cannot be used at all, whoever built it; there the one in Python records the same."""

import ctypes
import platform
import sys
import sysconfig

_AT_HWCAP = 16  # getauxval(3)
_HWCAP_USCAT = 1 << 25  # of arm64: 16 bytes that lie in one line are written at once (LSE2)


def trouble() -> str | None:
    """Return why it cannot be used with this Python, this torch and this processor, None if it can."""
    import torch

    if platform.python_implementation() != "CPython":
        return f"the native recorder knows CPython, and this is {platform.python_implementation()}"
    if sysconfig.get_config_var("Py_GIL_DISABLED"):
        return "this Python has no GIL, and the native recorder needs one"
    if hasattr(sys, "gettotalrefcount"):
        return "this Python is a debug build, whose objects have another layout"
    if torch.version.debug:
        return "this torch is a debug build, whose objects have another layout"
    if not writes_16_bytes_at_once(platform.machine(), _capabilities()):
        return "this processor is not known to write 16 bytes at once, so a reader could see half of what is written"
    return None


def writes_16_bytes_at_once(machine: str, capabilities: int) -> bool:
    """Say whether a reader sees all or nothing of an aligned store of 16 bytes; `capabilities`: of AT_HWCAP."""
    return machine == "x86_64" or (machine == "aarch64" and bool(capabilities & _HWCAP_USCAT))


def _capabilities() -> int:
    ask = ctypes.CDLL(None).getauxval
    ask.restype, ask.argtypes = ctypes.c_ulong, (ctypes.c_ulong,)
    return int(ask(_AT_HWCAP))
