"""Says how a sanitizer is compiled in and started: AddressSanitizer and ThreadSanitizer, of g++."""

import subprocess
from dataclasses import dataclass, replace
from pathlib import Path

SUPPRESSIONS = Path(__file__).parent / "suppressions"
# Addresses as they come: ThreadSanitizer knows only some of the layouts that a kernel may choose.
PREFIX = ("setarch", "-R")


@dataclass(frozen=True, slots=True, kw_only=True)
class Sanitizer:
    """One of them."""

    flag: str
    libraries: tuple[str, ...]  # to be loaded first, into a program that was built without
    settings: dict[str, str]

    def preloaded(self) -> str:
        """Return its libraries for LD_PRELOAD."""
        found = (
            subprocess.run(["g++", f"-print-file-name={name}"], check=True, capture_output=True, text=True).stdout
            for name in self.libraries
        )
        return " ".join(path.strip() for path in found)


# What is recorded is never freed, by design: a thread may be inside when the rank detaches.
ADDRESS = Sanitizer(
    flag="-fsanitize=address",
    libraries=("libasan.so", "libstdc++.so"),
    settings={"ASAN_OPTIONS": "detect_leaks=0:exitcode=66"},
)
THREAD = Sanitizer(
    flag="-fsanitize=thread",
    libraries=("libtsan.so",),
    settings={"TSAN_OPTIONS": "exitcode=66:halt_on_error=1:report_signal_unsafe=0"},
)
# Under the real torch: what its libraries do is left out, their mutexes too, which are then unlocked by whoever waits;
# and that of the GIL, which they give back unseen, counts as taken again and again, until no thread can hold so many.
THREAD_WITH_TORCH = replace(
    THREAD,
    settings={
        "TSAN_OPTIONS": f"{THREAD.settings['TSAN_OPTIONS']}:report_mutex_bugs=0:detect_deadlocks=0"
        f":suppressions={SUPPRESSIONS}/thread.txt"
    },
)
SANITIZERS = {"address": ADDRESS, "thread": THREAD}
SANITIZERS_WITH_TORCH = {"address": ADDRESS, "thread": THREAD_WITH_TORCH}
