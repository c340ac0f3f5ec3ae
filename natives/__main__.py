"""Builds the native recorder for each torch and each Python into the package. `make natives`.

One torch at a time, so that little of the disk is needed: its headers come out of its wheel, its two libraries only to
see that they have what a torch side asks for.
"""

import json
import platform
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import click

from natives import wheels
from ncclwatch.contract.version import TORCH_NEWEST, TORCH_OLDEST
from ncclwatch.native import prebuilt
from ncclwatch.native.build import MODULE, NativeError, compile_python_side, compile_torch_side, source_id

MINORS = tuple(f"{TORCH_OLDEST[0]}.{minor}" for minor in range(TORCH_OLDEST[1], TORCH_NEWEST[1] + 1))
PYTHONS = tuple(f"python3.{minor}" for minor in range(10, 15))
LIBRARIES = ("libtorch_cpu.so", "libc10.so")
GLIBC_NEWEST = (2, 17)
BOTH_ABIS = {"2.6"}  # one index had it with the old ABI, the other with the new one
_ASK = (
    "import json, sysconfig; "
    "print(json.dumps([sysconfig.get_paths()['include'], sysconfig.get_config_var('EXT_SUFFIX')]))"
)


@click.command(help=__doc__)
@click.option("--torch", "minors", multiple=True, type=click.Choice(MINORS), default=MINORS, help="Default: all.")
@click.option("--python", "pythons", multiple=True, help="An interpreter. Default: all from 3.10 on that are here.")
def main(minors: tuple[str, ...], pythons: tuple[str, ...]) -> None:
    """Build what is asked for; exits with a message that names each torch for which that failed."""
    compiler = [shutil.which("g++") or "c++"]
    directory = prebuilt.DIRECTORY
    if (directory / prebuilt.SOURCE_ID).exists() and (directory / prebuilt.SOURCE_ID).read_text() != source_id():
        shutil.rmtree(directory)
    directory.mkdir(exist_ok=True)
    try:
        for python in pythons or (sys.executable, *filter(None, map(shutil.which, PYTHONS))):
            _build_python_side(compiler, python, directory)
    except (NativeError, OSError, subprocess.CalledProcessError) as error:
        sys.exit(f"natives: {error}")
    failed = {}
    for minor in minors:
        try:
            _build_torch_sides(compiler, minor, directory)
        except (NativeError, OSError, subprocess.CalledProcessError) as error:
            failed[minor] = str(error)
    (directory / prebuilt.SOURCE_ID).write_text(source_id())
    sizes = {path.name: path.stat().st_size for path in sorted(directory.glob("*.so"))}
    click.echo(f"{len(sizes)} sides, {sum(sizes.values()) / 1000:.0f} kB, in {directory}")
    if failed:
        sys.exit("\n".join(f"natives: nothing for torch {minor}: {reason}" for minor, reason in failed.items()))


def _build_python_side(compiler: list[str], python: str, directory: Path) -> None:
    asked = subprocess.run([python, "-c", _ASK], capture_output=True, text=True)
    if asked.returncode:  # a name on the PATH that starts nothing
        return
    headers, suffix = json.loads(asked.stdout)
    if not (Path(headers) / "Python.h").exists():
        click.echo(f"{python}: no Python.h in {headers}; left out")
        return
    side = directory / f"{MODULE}{suffix}"
    compile_python_side(compiler, Path(headers), side)
    _refuse_new_glibc(side)
    click.echo(f"{side.name}: {side.stat().st_size / 1000:.0f} kB")


def _build_torch_sides(compiler: list[str], minor: str, directory: Path) -> None:
    found = wheels.find(f"torch=={minor}.*")
    with tempfile.TemporaryDirectory() as name:
        place = Path(name)
        wheels.extract(found, lambda file: file.startswith("torch/include/"), place)
        wheels.extract(found, lambda file: file in {f"torch/lib/{each}" for each in LIBRARIES}, place)
        libraries = place / "torch/lib"
        has = set().union(*(_symbols(libraries / each, "--defined-only") for each in LIBRARIES))
        for cxx11 in (False, True) if minor in BOTH_ABIS else (True,):
            side = directory / prebuilt.torch_side_name(minor, platform.machine(), cxx11=cxx11)
            compile_torch_side(compiler, place / "torch/include", libraries, side, cxx11=cxx11)
            _refuse_new_glibc(side)
            lacks = {each for each in _symbols(side, "--undefined-only") - has if _is_torchs(each)}
            if lacks and minor not in BOTH_ABIS:
                side.unlink()
                raise NativeError(f"torch {found.version} has no {', '.join(sorted(lacks)[:3])}")
            click.echo(f"{side.name}: {side.stat().st_size / 1000:.0f} kB, from torch {found.version}")


def _refuse_new_glibc(side: Path) -> None:
    """Refuse a side that would not load on what the wheel's tag promises: manylinux_2_17, in hatch_build.py."""
    listed = subprocess.run(["objdump", "-T", str(side)], check=True, capture_output=True, text=True).stdout
    newest = max(tuple(map(int, version.split("."))) for version in re.findall(r"GLIBC_([\d.]+)", listed))
    if newest > GLIBC_NEWEST:
        side.unlink()
        raise NativeError(f"{side.name} asks for glibc {'.'.join(map(str, newest))}")


def _symbols(library: Path, which: str) -> set[str]:
    listed = subprocess.run(["nm", "-D", "-P", which, str(library)], check=True, capture_output=True, text=True)
    return {line.split()[0].split("@")[0] for line in listed.stdout.splitlines()}


def _is_torchs(symbol: str) -> bool:
    return symbol.startswith("_Z") and any(part in symbol for part in ("3c10", "2at", "5torch", "4c10d", "5c10d"))


if __name__ == "__main__":
    main()
