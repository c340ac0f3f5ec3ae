"""Runs `ncclwatch analyze` as a user does and returns what it says."""

import json
from pathlib import Path
from typing import Any

from click.testing import CliRunner

from ncclwatch_server.offline.command import analyze


def said(*paths: Path) -> dict[str, Any]:
    """Return the JSON answer."""
    result = CliRunner().invoke(analyze, [*map(str, paths), "--json"], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    answer: dict[str, Any] = json.loads(result.stdout)
    return answer


def told(*paths: Path) -> str:
    """Return the answer for people, unwrapped."""
    result = CliRunner().invoke(analyze, [*map(str, paths), "--text"], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return " ".join(result.stdout.split())


def brief(*paths: Path) -> list[tuple[str, str, str, list[int], list[int]]]:
    """Return (severity, certainty, cause, culprits, victims) of each incident."""
    return [
        (i["severity"], i["certainty"], i["cause"], [c["rank"] for c in i["culprits"]], i["victims"])
        for i in said(*paths)["incidents"]
    ]
