"""The chart's server and an example's pods as real processes, with what their manifests say and nothing else."""

import contextlib
import json
import tempfile
from collections.abc import Iterator
from pathlib import Path
from subprocess import Popen
from typing import Any

import pytest
import yaml

from tests.integration.cluster import read_until
from tests.integration.helm_chart import EXAMPLES, rendered, server_of, the
from tests.integration.launch import PROGRAMS
from tests.integration.machine import Machine, needs_root
from tests.integration.network import INTERFACE, Network
from tests.integration.pods import Pod, expand, start
from tests.integration.real_jobs import DEADLINE_S, until

pytestmark = [pytest.mark.integration, pytest.mark.timeout(180)]
HOSTS = """127.0.0.1 localhost
10.92.0.1 ncclwatch.watch.svc
10.92.0.2 trainer-0.trainer
"""
_ASK = """import sys, urllib.request
request = urllib.request.Request(sys.argv[1], headers={"Authorization": sys.argv[2]})
print(urllib.request.urlopen(request, timeout=10).read().decode())"""


class Kubernetes:
    """A release of the chart in the namespace `watch`, and pods of the namespace `team-a`."""

    def __init__(self, directory: Path) -> None:
        needs_root()
        self._directory = directory
        values = {"image": {"repository": "r"}, "jobs": {"namespaces": ["team-a"]}}
        self.objects = rendered(values)
        self.secrets = {"ncclwatch": the(self.objects, "Secret", "ncclwatch", "team-a")["stringData"]}
        self.tokens = the(self.objects, "Secret", "ncclwatch-server")["stringData"]
        hosts = directory / "hosts"
        hosts.write_text(HOSTS)
        self._stack = contextlib.ExitStack()
        network = self._stack.enter_context(Network())
        self.machines = [
            self._stack.enter_context(Machine(name, hosts)) for name in ("server", "trainer-0", "trainer-1")
        ]
        for machine in self.machines:
            network.join(machine)

    def serve(self) -> "Popen[str]":
        """Start the server's container, its volumes being directories of the test."""
        container = server_of(self.objects)
        volumes = {each["name"]: each["mountPath"] for each in container["volumeMounts"]}
        for name in volumes:
            (self._directory / name).mkdir()
        for name, text in self.tokens.items():
            (self._directory / "tokens" / name).write_text(text)

        def here(text: str) -> str:
            for name, place in volumes.items():
                text = text.replace(f"{place}/", f"{self._directory / name}/")
            return text

        assert container["command"] == ["ncclwatch-server"]
        environ = {each["name"]: here(each["value"]) for each in container["env"]}
        return start(self.machines[0], ["-m", "ncclwatch_server", *map(here, container["args"])], **environ)

    def train(self, index: int, program: str, *, plain: bool = False, **more: str) -> "Popen[str]":
        """Start a pod of the example `job.yaml`, with one rank and a program of ours. `plain`: without torchrun."""
        (path,) = [each for each in EXAMPLES if each.stem == "job"]
        (job,) = [each for each in yaml.safe_load_all(path.read_text()) if each["kind"] == "Job"]
        (container,) = job["spec"]["template"]["spec"]["containers"]
        pod = Pod(
            name=f"trainer-{index}-x7k2p",
            node=f"gpu-{index}",
            labels={"batch.kubernetes.io/job-name": job["metadata"]["name"]},
            annotations={"batch.kubernetes.io/job-completion-index": str(index)},
        )
        environ = pod.environment(container, self.secrets)
        assert container["command"] == ["torchrun"]
        arguments = [expand(each, environ) for each in container["args"]]
        ours = {"--nproc-per-node=8": "--nproc-per-node=1", "train.py": str(PROGRAMS / program)}
        assert ours.keys() <= set(arguments)
        command = ["-m", "torch.distributed.run", *(ours.get(each, each) for each in arguments)]
        if plain:  # as a PyTorchJob names the ranks of pods that have one each
            command = [str(PROGRAMS / program)]
            more |= {"MASTER_ADDR": "trainer-0.trainer", "MASTER_PORT": "29500", "RANK": str(index), "WORLD_SIZE": "2"}
        return start(
            self.machines[1 + index], command,
            **{"GLOO_SOCKET_IFNAME": INTERFACE, "PYTHONUNBUFFERED": "1", "OMP_NUM_THREADS": "1", **environ, **more},
        )  # fmt: skip

    def ask(self, path: str, token: str) -> Any:
        """Ask the server, from a machine of the network."""
        url = f"{self.secrets['ncclwatch']['NCCLWATCH_SERVER']}{path}"
        done = self.machines[1].ends("-c", _ASK, url, f"Bearer {token}")
        return json.loads(done.stdout) if done.returncode == 0 else None

    def __enter__(self) -> "Kubernetes":
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()


@pytest.fixture
def kubernetes() -> Iterator[Kubernetes]:
    # Not below /dev/shm, of which each pod has its own.
    with (
        tempfile.TemporaryDirectory(prefix="ncclwatch-pods-", dir="/tmp") as directory,
        Kubernetes(Path(directory)) as found,
    ):
        yield found


def test_pods_without_any_right_report_to_the_charts_server_and_the_verdict_names_node_and_pod(
    kubernetes: Kubernetes,
) -> None:
    kubernetes.serve()
    viewer = kubernetes.tokens["viewer-token"]
    until(lambda: kubernetes.ask("/readyz", viewer))
    trains = [kubernetes.train(index, "hang.py") for index in (0, 1)]
    words = " ".join(read_until(trains[0], "  more").split())
    assert "PROVEN" in words
    assert "rank 1 on gpu-1/trainer-1-x7k2p called barrier at hang.py:16" in words
    assert "culprit rank 1, host gpu-1/trainer-1-x7k2p, pid 2 " in words, "its PID in its pod"
    (incident,) = kubernetes.ask("/api/v1/incidents", viewer)
    assert incident["job"] == "team-a/trainer"
    assert {rank for stack in incident["stacks"] for rank in stack["ranks"]} == {0, 1}
    status = the(kubernetes.objects, "Pod", "ncclwatch-test")["spec"]["containers"][0]
    assert status["command"][0] == "ncclwatch"
    said = kubernetes.machines[1].ends("-m", *status["command"], NCCLWATCH_VIEWER_TOKEN=viewer)
    assert "team-a/trainer" in said.stdout, said.stderr


@pytest.mark.long
def test_a_pod_that_is_killed_with_its_agent_is_named_though_the_other_pods_end_for_it(kubernetes: Kubernetes) -> None:
    kubernetes.serve()
    viewer = kubernetes.tokens["viewer-token"]
    until(lambda: kubernetes.ask("/readyz", viewer))
    trains = [kubernetes.train(index, "trains.py", STEPS_TILL_HANG="0") for index in (0, 1)]
    read_until(trains[0], "trains: step 20")
    trains[1].kill()  # the first process of the container, and with it all others
    trains[0].wait(timeout=DEADLINE_S)  # its launcher ends as a rank has failed, and its agent with it
    until(lambda: kubernetes.ask("/api/v1/incidents", viewer))
    (incident,) = kubernetes.ask("/api/v1/incidents", viewer)
    assert (incident["cause"], incident["severity"]) == ("node_lost", "warning")
    assert [(each["rank"], each["host"]) for each in incident["culprits"]] == [(1, "gpu-1/trainer-1-x7k2p")]
    assert "rank 0 ended for the loss of a peer" in incident["summary"]


def test_doctor_says_which_node_of_a_job_does_not_report_and_why(kubernetes: Kubernetes) -> None:
    kubernetes.serve()
    whole, url = kubernetes.tokens["token"], kubernetes.secrets["ncclwatch"]["NCCLWATCH_SERVER"]
    until(lambda: kubernetes.ask("/readyz", whole))
    trains = [
        kubernetes.train(0, "trains.py", STEPS_TILL_HANG="0"),
        kubernetes.train(1, "trains.py", STEPS_TILL_HANG="0", NCCLWATCH_AGENT_TOKEN="of-another-release"),
    ]
    read_until(trains[0], "trains: step 20")
    until(lambda: kubernetes.ask("/api/v1/refusals", whole))
    asked = ("-m", "ncclwatch", "doctor", "--job", "team-a/trainer", "--server", url)
    found = kubernetes.machines[1].ends(*asked, NCCLWATCH_TOKEN=whole, COLUMNS="120")
    assert found.returncode == 3, found.stderr
    words = " ".join(found.stdout.split())
    assert "gpu-0/trainer-0-x7k2p 0 yes 0.1.0" in words
    assert "1 of 2 ranks are reported; no agent speaks for rank 1" in words
    (refused,) = [line for line in found.stdout.splitlines() if "refused" in line]
    assert "10.92.0.3" in refused, "the address of its pod"
    assert "token" in refused
    lines = found.stdout.splitlines()
    (checked,) = [line.split() for line in lines if " stacks " in line]
    assert checked[0] == "PASS", lines


@pytest.mark.long
@pytest.mark.parametrize("plain", [False, True])
def test_agents_end_pods_where_the_policy_says_so(kubernetes: Kubernetes, *, plain: bool) -> None:
    kubernetes.serve()
    until(lambda: kubernetes.ask("/readyz", kubernetes.tokens["viewer-token"]))
    trains = [kubernetes.train(index, "hang.py", plain=plain, NCCLWATCH_ON_HANG="policy") for index in (0, 1)]
    said = [train.communicate(timeout=DEADLINE_S)[1] for train in trains]
    assert 0 not in [train.returncode for train in trains], said
    assert "(abort): the policy says so for rank_conditional_coll" in " ".join("".join(said).split())
