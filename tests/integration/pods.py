"""Runs containers of Kubernetes' manifests as its kubelet would, but for the image: real processes, other namespaces.

Each pod has a network, a host name, /dev/shm and PIDs of its own, and no capability: what `drop: [ALL]` leaves.
"""

import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from subprocess import Popen
from typing import Any

from tests.integration.machine import Machine

Document = dict[str, Any]
_VARIABLE = re.compile(r"\$\(([A-Za-z_][A-Za-z0-9_]*)\)")
_FIELD = re.compile(r"metadata\.(labels|annotations)\['([^']+)'\]")
# The container's first process is the one that it names, and nothing of the host is seen in /proc.
_CONTAINED = (
    "unshare", "--pid", "--fork", "--kill-child", "--mount-proc",
    "setpriv", "--bounding-set=-all", "--inh-caps=-all", "--no-new-privs",
)  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Pod:
    """What the kubelet knows of a pod."""

    name: str
    node: str
    labels: Mapping[str, str] = field(default_factory=dict)
    annotations: Mapping[str, str] = field(default_factory=dict)

    def environment(self, container: Document, secrets: Mapping[str, Mapping[str, str]]) -> dict[str, str]:
        """Return the environment of a container: `envFrom` first, and later variables may refer to earlier ones."""
        found: dict[str, str] = {}
        for source in container.get("envFrom", ()):
            found |= secrets[source["secretRef"]["name"]]
        for variable in container.get("env", ()):
            found[variable["name"]] = self._value(variable, found, secrets)
        return found

    def _value(self, variable: Document, known: Mapping[str, str], secrets: Mapping[str, Mapping[str, str]]) -> str:
        source = variable.get("valueFrom")
        if source is None:
            return expand(variable["value"], known)
        if "secretKeyRef" in source:
            return secrets[source["secretKeyRef"]["name"]][source["secretKeyRef"]["key"]]
        path = source["fieldRef"]["fieldPath"]
        if (found := _FIELD.fullmatch(path)) is not None:
            return str(getattr(self, found[1])[found[2]])
        return {"metadata.name": self.name, "spec.nodeName": self.node}[path]


def expand(text: str, environ: Mapping[str, str]) -> str:
    """Return a text with its $(VARIABLES) replaced; one that is not known stays."""
    return _VARIABLE.sub(lambda found: environ.get(found[1], found[0]), text)


def start(machine: Machine, command: Sequence[str], **environ: str) -> "Popen[str]":
    """Start a container's command on the machine that is its pod."""
    return machine.execute(*_CONTAINED, sys.executable, *command, **environ)
