"""The command `ncclwatch build-native`."""

import sys

import click

from ncclwatch.contract.words.console import complain, put
from ncclwatch.native import build, loading


@click.command("build-native")
def build_native() -> None:
    """Compile the native recorder for the torch of this environment.

    Training then records a collective in a fraction of the time. It takes a C++ compiler, Python's headers and
    about a minute, once for each version of torch. Without it everything works, at some microseconds more per
    collective. NCCLWATCH_NATIVE_DIR names another place than ~/.cache/ncclwatch, a shared one for a cluster.
    """
    put("compiling; this takes about a minute ...", error=True)
    try:
        built = build.build()
        loading.load()
    except ImportError as error:
        complain(f"torch cannot be imported here ({error}); run this in training's environment")
        sys.exit(2)
    except build.NativeError as error:
        complain(error)
        sys.exit(2)
    done = f"built in {built.seconds:.0f} s" if built.seconds else "was built already"
    put(f"{built.path} {done}; attach() loads it by itself")
