"""Checks the dashboards against Grafana's own types. `python -m grafana.types_check`; needs npm.

Each file becomes a constant of the type `Dashboard` of npm's @grafana/schema, and tsc looks at it. (Importing the JSON
instead would widen every word to `string` and find nothing.) What is left open are the fields of an annotation that
belong to the Prometheus data source, since the schema knows none of a plugin.
"""

import json
import shutil
import subprocess
import sys
from pathlib import Path

from grafana.dashboards_of import rendered

PACKAGES = {"@grafana/schema": "13.2.3", "typescript": "7.0.2"}
_HEAD = """import type { AnnotationQuery, Dashboard } from "@grafana/schema";
type Json<T> =
  T extends (infer U)[] ? Json<U>[] :
  T extends string ? (string extends T ? string : `${T}`) :
  T extends number ? (number extends T ? number : (`${T}` extends `${infer N extends number}` ? N : never)) :
  T extends object ? { [K in keyof T]?: Json<T[K]> } : T;
type OfPrometheus = { expr: string; step: string; titleFormat: string; textFormat: string; tagKeys: string };
type Board = Omit<Json<Dashboard>, "annotations"> & { annotations: { list: (Json<AnnotationQuery> & OfPrometheus)[] } };
export const board: Board = """
_SETTINGS = {
    "compilerOptions": {"strict": True, "noEmit": True, "module": "nodenext", "skipLibCheck": True, "types": []},
    "include": ["*.ts"],
}


def main(place: Path = Path("build/grafana-types")) -> int:
    """Check all dashboards. Returns the exit code of tsc."""
    if shutil.which("npm") is None:
        print("npm is missing: the types of dashboards cannot be checked; install Node.js", file=sys.stderr)
        return 2
    place.mkdir(parents=True, exist_ok=True)
    (place / "package.json").write_text(json.dumps({"private": True, "devDependencies": PACKAGES}))
    (place / "tsconfig.json").write_text(json.dumps(_SETTINGS))
    for path in place.glob("*.ts"):
        path.unlink()
    for name, text in rendered().items():
        (place / name.replace("-", "_").replace(".json", ".ts")).write_text(f"{_HEAD}{text};\n", encoding="utf-8")
    install = ["npm", "install", "--no-package-lock", "--no-audit", "--no-fund", "--loglevel=error"]
    if not (place / "node_modules" / "typescript").is_dir():
        subprocess.run(install, cwd=place, check=True, timeout=300)
    done = subprocess.run(["npx", "--no-install", "tsc", "--project", "."], cwd=place, timeout=300)
    if done.returncode == 0:
        print(f"{len(rendered())} dashboards have the types of @grafana/schema {PACKAGES['@grafana/schema']}")
    return done.returncode


if __name__ == "__main__":
    sys.exit(main())
