"""Hang a real job and show what ncclwatch says: `make demo`.

Four ranks train with a multi-scale bucket sampler whose buckets hold different numbers of batches
per rank. At the end of an epoch one of them has run out of data before the others.
"""

import json
import subprocess
import sys
from pathlib import Path

PROGRAM = Path(__file__).parent / "programs" / "z00_bucket_sampler.py"
REPORT = Path("ncclwatch-report.json")
ABORTED = 70  # exit code of `ncclwatch run` after it has ended a hanging job


def main() -> int:
    """Run the demo and return 0 if the hang was explained."""
    launch = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "4", str(PROGRAM)]
    watch = [sys.executable, "-m", "ncclwatch", "run", "--on-hang", "abort", "--report", str(REPORT), "--"]
    print(f"A real job with 4 ranks: {PROGRAM.relative_to(Path.cwd())}. It will hang within seconds.\n", flush=True)
    code = subprocess.run([*watch, *launch], check=False).returncode
    incidents = json.loads(REPORT.read_text())["incidents"] if REPORT.exists() else []
    critical = [incident for incident in incidents if incident["severity"] == "critical"]
    if code != ABORTED or not critical:
        print(f"\nThe demo failed: exit code {code}, {len(critical)} verdicts. See {REPORT.resolve()}", flush=True)
        return 1
    print(f"\nThe job was ended {critical[0]['onset_to_open_s']:.1f} s after it began to hang. What held it up:")
    print(f"  {critical[0]['summary']}")
    print(f"The whole report: {REPORT.resolve()}", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
