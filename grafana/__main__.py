"""Write all dashboards into grafana/dashboards, or say with --check which of them are stale."""

import sys
from pathlib import Path

from grafana.dashboards_of import rendered

PLACE = Path(__file__).parent / "dashboards"


def main(arguments: list[str]) -> int:
    """Write or check. Returns the exit code: 1 if a file is stale."""
    wanted = rendered()
    stale = stale_files(wanted)
    if "--check" in arguments:
        for name in stale:
            print(f"grafana/dashboards/{name} is stale: run make dashboards", file=sys.stderr)
        return 1 if stale else 0
    PLACE.mkdir(exist_ok=True)
    for path in PLACE.glob("*.json"):
        if path.name not in wanted:
            path.unlink()
    for name, text in wanted.items():
        (PLACE / name).write_text(text, encoding="utf-8")
    return 0


def stale_files(wanted: dict[str, str]) -> list[str]:
    """Return the names of files that are not what the generator writes, or that it does not write."""
    there = {path.name: path.read_text(encoding="utf-8") for path in PLACE.glob("*.json")}
    return sorted(name for name in {*wanted, *there} if wanted.get(name) != there.get(name))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
