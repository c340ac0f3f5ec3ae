"""Says on which machine a process runs, in a word that only programs on that machine can know."""

import hashlib

_BOOT_ID = "/proc/sys/kernel/random/boot_id"  # random, another one after each boot; proc(5)


def machine(path: str = _BOOT_ID) -> str:
    """Return a word that stands for this boot of this machine, the same in all of its containers; "" if unknown.

    It is a hash: the boot id itself stays on the machine.
    """
    try:
        with open(path, "rb") as file:
            boot_id = file.read(64).strip()
    except OSError:
        return ""
    return hashlib.blake2b(boot_id, digest_size=16, person=b"ncclwatch").hexdigest() if boot_id else ""
