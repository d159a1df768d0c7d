"""Run benchmarks: limits, ours and peers in the same run on the same corpus.

Examples:
  python -m benchmarks core                 one benchmark
  python -m benchmarks worker loader --runs 3
  python -m benchmarks all --json           everything; the last line is one object with all ratios
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from importlib import import_module
from typing import Any, Final

import orjson
from rich.console import Console

from benchmarks.report import machine, show

NAMES: Final = ("core", "worker", "loader", "endtoend", "latency", "packing", "wire", "scale", "footprint", "gpu")


def main() -> None:
    """Measure what is asked for, and print it."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("names", nargs="+", choices=[*NAMES, "all"], metavar="NAME", help=f"{', '.join(NAMES)}, or all")
    parser.add_argument("--runs", type=int, default=5, help="times that each contender runs (default 5)")
    parser.add_argument("--json", action="store_true", help="print one JSON object; the tables go to standard error")
    options = parser.parse_args()
    if options.runs < 1:
        parser.error("--runs must be at least 1")
    names = NAMES if "all" in options.names else options.names
    if len(names) == 1:
        report = import_module(f"benchmarks.{names[0]}").measure(options.runs)
        show(report, Console(stderr=options.json))
        found = {**machine(), "reports": [report.as_json()], "ratios": report.ratios}
    else:
        found = {**machine(), "reports": [], "ratios": {}, "failed": []}
        for name in names:
            one = _measured(name, options.runs)
            found["reports"] += one["reports"]
            found["ratios"] |= one["ratios"]
            found["failed"] += one.get("failed", [])
    if options.json:
        print(orjson.dumps(found).decode())
    if failed := found.get("failed"):
        sys.exit(f"failed: {', '.join(failed)}; see above")


def _measured(name: str, runs: int) -> dict[str, Any]:
    """What a benchmark finds in a process of its own: what one has loaded must not change another's figures."""
    command = [sys.executable, "-m", "benchmarks", name, "--runs", str(runs), "--json"]
    done = subprocess.run(command, stdout=subprocess.PIPE, check=False)
    if done.returncode:
        return {"reports": [], "ratios": {}, "failed": [name]}
    found: dict[str, Any] = orjson.loads(done.stdout.splitlines()[-1])
    return found


if __name__ == "__main__":
    main()
