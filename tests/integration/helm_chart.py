"""The shipped Helm chart as Kubernetes would get it: what Helm's own engine makes of it and some values.

Helm's engine is a library with the runtime of Go in it. Other tests get the objects from a process of its own,
`python -m tests.integration.helm_chart < VALUES.json`.
"""

import json
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

PLACE = Path(__file__).parents[2] / "deploy" / "helm"
CHART = PLACE / "ncclwatch"
EXAMPLES = sorted((PLACE / "examples").glob("*.yaml"))
RELEASE, NAMESPACE = "ncclwatch", "watch"
Values = dict[str, Any]
Document = dict[str, Any]
_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # ten times as fast, where PyYAML has been built with it


def objects(made: Mapping[str, str]) -> list[Document]:
    """Return the objects in the texts that Helm makes, by path of their template."""
    texts = [text for path, text in made.items() if not path.endswith("NOTES.txt")]
    return [each for text in texts for each in yaml.load_all(text, Loader=_LOADER) if each]


def rendered(values: Values) -> list[Document]:
    """Return what `helm install ncclwatch CHART -n watch` makes, in a process of its own."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.integration.helm_chart"],
        input=json.dumps(values),
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    found: list[Document] = json.loads(done.stdout)
    return found


def the(documents: list[Document], kind: str, name: str = RELEASE, namespace: str = "") -> Document:
    """Return the one object of a kind with this name."""
    (found,) = [
        each
        for each in documents
        if (each["kind"], each["metadata"]["name"], each["metadata"].get("namespace", "")) == (kind, name, namespace)
    ]
    return found


def server_of(documents: list[Document]) -> Document:
    """Return the container of the server."""
    found: Document
    (found,) = the(documents, "Deployment")["spec"]["template"]["spec"]["containers"]
    return found


def main() -> None:
    """Render the chart with the values on standard input."""
    import helm_python

    with helm_python.Chart.load(str(CHART)) as chart:
        print(json.dumps(objects(chart.render(json.load(sys.stdin), name=RELEASE, namespace=NAMESPACE))))


if __name__ == "__main__":
    main()
