"""Run benchmarks: limits, ours and peers in the same run on the same corpus.

Examples:
  python -m benchmarks core                 one benchmark
  python -m benchmarks worker loader --runs 3
  python -m benchmarks all --json           everything; the last line is one object with all ratios
"""

from __future__ import annotations

import argparse
from importlib import import_module
from typing import Final

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
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of tables")
    options = parser.parse_args()
    names = NAMES if "all" in options.names else options.names
    console = Console(stderr=options.json)
    reports = []
    for name in names:
        reports.append(import_module(f"benchmarks.{name}").measure(options.runs))
        show(reports[-1], console)
    if options.json:
        ratios = {key: value for report in reports for key, value in report.ratios.items()}
        found = {**machine(), "reports": [report.as_json() for report in reports], "ratios": ratios}
        print(orjson.dumps(found).decode())


if __name__ == "__main__":
    main()
