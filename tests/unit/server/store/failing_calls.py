"""Lets the n-th call that SQLite makes of the kernel fail, as SQLite's own tests do: by xSetSystemCall of its VFS."""

import _sqlite3
import ctypes
import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager

_LIBRARY = ctypes.CDLL(_sqlite3.__file__, use_errno=True)  # with it the SQLite that Python uses
_METHODS = (
    "xOpen xDelete xAccess xFullPathname xDlOpen xDlError xDlSym xDlClose xRandomness xSleep xCurrentTime "
    "xGetLastError xCurrentTimeInt64 xSetSystemCall xGetSystemCall xNextSystemCall"
).split()


class _Vfs(ctypes.Structure):
    """sqlite3_vfs of sqlite3.h."""

    _fields_ = (
        ("iVersion", ctypes.c_int),
        ("szOsFile", ctypes.c_int),
        ("mxPathname", ctypes.c_int),
        ("pNext", ctypes.c_void_p),
        ("zName", ctypes.c_char_p),
        ("pAppData", ctypes.c_void_p),
        *((name, ctypes.c_void_p) for name in _METHODS),
    )


_Pointer = ctypes.POINTER(_Vfs)
_LIBRARY.sqlite3_vfs_find.restype = _Pointer
_VFS = _LIBRARY.sqlite3_vfs_find(None)
_set = ctypes.CFUNCTYPE(ctypes.c_int, _Pointer, ctypes.c_char_p, ctypes.c_void_p)(_VFS.contents.xSetSystemCall)
_get = ctypes.CFUNCTYPE(ctypes.c_void_p, _Pointer, ctypes.c_char_p)(_VFS.contents.xGetSystemCall)


def _type(*arguments: type, result: type = ctypes.c_int) -> type:
    return ctypes.CFUNCTYPE(result, *arguments, use_errno=True)


_INT, _SIZE, _TEXT, _ANY = ctypes.c_int, ctypes.c_ssize_t, ctypes.c_char_p, ctypes.c_void_p
# As each is called by SQLite, how it fails, and what it returns then.
_CALLS: dict[str, tuple[type, int, int]] = {
    "open": (_type(_TEXT, _INT, _INT), errno.EMFILE, -1),
    "pwrite64": (_type(_INT, _ANY, _SIZE, _SIZE, result=_SIZE), errno.EIO, -1),
    "pread64": (_type(_INT, _ANY, _SIZE, _SIZE, result=_SIZE), errno.EIO, -1),
    "ftruncate": (_type(_INT, _SIZE), errno.EIO, -1),
    "mmap": (_type(_ANY, _SIZE, _INT, _INT, _INT, _SIZE, result=_SIZE), errno.ENOMEM, -1),
}
KINDS = (*_CALLS, "full disk")


class Count:
    """How many calls of the kind there were."""

    calls = 0


@contextmanager
def failing(kind: str, number: int) -> Iterator[Count]:
    """Let one call of a kind fail, counted from 1. A disk that is full stays so until this ends."""
    full = kind == "full disk"
    name = "pwrite64" if full else kind
    prototype, code, result = _CALLS[name]
    code = errno.ENOSPC if full else code
    real = prototype(_get(_VFS, name.encode()))
    count = Count()

    def call(*arguments: object) -> object:
        count.calls += 1
        if count.calls == number or (full and count.calls > number):
            ctypes.set_errno(code)
            return result
        return real(*arguments)

    hook = prototype(call)
    assert _set(_VFS, name.encode(), ctypes.cast(hook, ctypes.c_void_p)) == 0, os.strerror(code)
    try:
        yield count
    finally:
        _set(_VFS, name.encode(), None)
