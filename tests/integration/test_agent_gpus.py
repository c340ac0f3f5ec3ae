"""The agent's look at a node's GPUs, with an NVML built here: a lost GPU, no driver, no library, one that blocks."""

import asyncio
import os
import shutil
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from ncclwatch.contract.model.devices import DeviceView
from ncclwatch_agent.gpu import node_gpus
from ncclwatch_agent.gpu.node_gpus import GpuDesk, NodeGpus

pytestmark = pytest.mark.integration
UUID = "GPU-5a1d0000-0000-0000-0000-{:012d}"
Settings = Callable[..., None]


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with our libnvidia-ml.so.1, to be searched first by the dynamic linker."""
    compiler = shutil.which("gcc") or shutil.which("cc")
    if compiler is None:
        pytest.skip("no C compiler here")
    directory = tmp_path_factory.mktemp("nvml")
    source = Path(__file__).with_name("nvml") / "shim.c"
    name = "libnvidia-ml.so.1"
    command = [compiler, "-shared", "-fPIC", "-O1", f"-Wl,-soname,{name}", "-o", str(directory / name), str(source)]
    subprocess.run(command, check=True, timeout=60)
    return directory


@pytest.fixture
def shim(library: Path, monkeypatch: pytest.MonkeyPatch) -> Settings:
    """Set what the shim pretends, and let children find it."""

    def pretend(**settings: object) -> None:
        monkeypatch.setenv("LD_LIBRARY_PATH", f"{library}:{os.environ.get('LD_LIBRARY_PATH', '')}")
        for name, value in settings.items():
            monkeypatch.setenv(f"SHIM_{name.upper()}", str(value))

    return pretend


def ask(deadline_s: float = 60.0) -> NodeGpus:
    return asyncio.run(node_gpus.ask(deadline_s))


def test_the_gpus_of_a_node_are_listed_in_order(shim: Settings):
    shim(gpus=3)
    seen = ask()
    assert [gpu.uuid for gpu in seen.gpus] == [UUID.format(number) for number in range(3)]
    assert (seen.gpus[0].name, seen.gpus[0].trouble, seen.failure) == ("Shim 80GB", "", "")


def test_a_lost_gpu_is_an_observation_and_the_others_are_well(shim: Settings):
    shim(gpus=3, lost=1)
    assert [gpu.trouble for gpu in ask().gpus] == ["", "GPU is lost", ""]


def test_a_driver_that_is_not_loaded_is_an_observation(shim: Settings):
    shim(init=9)
    assert ask() == NodeGpus(failure="Driver Not Loaded")


def test_a_missing_library_is_an_observation():
    seen = ask()
    if seen.gpus:
        pytest.skip("this machine has GPUs")
    assert seen.failure


def test_an_nvml_that_blocks_is_given_up_and_its_process_killed(shim: Settings):
    shim(gpus=1, hangs=1)
    children: list[int] = []

    async def watched() -> NodeGpus:
        started = asyncio.create_subprocess_exec

        async def start(*command: str, **options: object) -> asyncio.subprocess.Process:
            child = await started(*command, **options)  # type: ignore[arg-type]
            children.append(child.pid)
            return child

        asyncio.create_subprocess_exec = start  # type: ignore[assignment]
        try:
            return await node_gpus.ask(3.0)
        finally:
            asyncio.create_subprocess_exec = started

    seen = asyncio.run(watched())
    assert "did not answer within 3 s" in seen.failure
    (child,) = children
    with pytest.raises(ProcessLookupError):
        os.kill(child, 0)


def test_the_desk_asks_when_a_rank_has_a_gpu_and_not_before(shim: Settings):
    shim(gpus=2)

    async def seen() -> tuple[NodeGpus, NodeGpus]:
        desk = GpuDesk()
        desk.look_for([None, DeviceView(backend="gloo", index=0)])
        await asyncio.sleep(0)
        before = desk.seen
        desk.look_for([DeviceView(backend="cuda:nccl", index=1)])
        until = time.monotonic() + 60
        while not desk.seen.gpus and time.monotonic() < until:
            await asyncio.sleep(0.01)
        await desk.close()
        return before, desk.seen

    before, after = asyncio.run(seen())
    assert before == NodeGpus()
    assert len(after.gpus) == 2
