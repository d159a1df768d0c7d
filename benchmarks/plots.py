"""Draw what `python -m benchmarks all --json` found. Needs matplotlib, which `make peers` installs.

Examples:
  .cache/peers/bin/python -m benchmarks.plots .cache/bench.json docs/plots
"""

from __future__ import annotations

import json
import statistics
import sys
from pathlib import Path
from typing import Any, Final

import matplotlib

matplotlib.use("agg")
from matplotlib import pyplot as plt

_RATES: Final = {"core": "documents/s", "worker": "documents/s", "loader": "documents/s", "endtoend": "documents/s"}
_OURS, _THEIRS = "tab:blue", "tab:gray"


def _median(found: dict[str, list[float]], figure: str) -> float:
    return statistics.median(found[figure])


def bars(report: dict[str, Any], figure: str, path: Path) -> None:
    """One bar a contender, with its least and most."""
    found = {name: runs[figure] for name, runs in report["figures"].items() if figure in runs}
    names = list(found)[::-1]
    middles = [statistics.median(found[name]) for name in names]
    errors = [
        [middle - min(found[name]) for name, middle in zip(names, middles, strict=True)],
        [max(found[name]) - middle for name, middle in zip(names, middles, strict=True)],
    ]
    figure_, axes = plt.subplots(figsize=(8, 0.4 * len(names) + 1.2))
    colors = [_OURS if "tokenfeed" in name else _THEIRS for name in names]
    axes.barh(names, middles, xerr=errors, color=colors)
    axes.set_xscale("log")
    axes.set_xlabel(f"{figure}, logarithmic")
    axes.set_title(report["name"])
    figure_.tight_layout()
    figure_.savefig(path, dpi=100)
    plt.close(figure_)


def curves(report: dict[str, Any], figure: str, path: Path) -> None:
    """One line a growing setting."""
    figure_, axes = plt.subplots(figsize=(8, 4.5))
    axis_of: dict[str, list[str]] = {}
    for point in report["figures"]:
        axis_of.setdefault(point.partition(":")[0], []).append(point)
    for name, points in axis_of.items():
        labels = [point.partition(": ")[2] for point in points]
        costs = [_median(report["figures"][point], figure) for point in points]
        axes.plot(range(len(costs)), costs, marker="o", label=f"{name}: {', '.join(labels)}")
    axes.set_ylim(bottom=0)
    axes.set_xticks([])
    axes.set_xlabel("from the smallest to the largest value of each setting")
    axes.set_ylabel(figure)
    axes.set_title(report["name"])
    axes.legend(fontsize=7)
    figure_.tight_layout()
    figure_.savefig(path, dpi=100)
    plt.close(figure_)


def latencies(report: dict[str, Any], path: Path) -> None:
    """Percentiles by rate."""
    figure_, axes = plt.subplots(figsize=(8, 3.5))
    for figure in ("p50 ms", "p99 ms", "p99.9 ms"):
        axes.plot(
            list(report["figures"]),
            [_median(found, figure) for found in report["figures"].values()],
            marker="o",
            label=figure,
        )
    axes.set_yscale("log")
    axes.set_ylabel("ms from production to the trainer")
    axes.set_title(report["name"])
    axes.legend()
    figure_.tight_layout()
    figure_.savefig(path, dpi=100)
    plt.close(figure_)


def main() -> None:
    """Draw all that is in the file."""
    if len(sys.argv) != 3:
        sys.exit(f"usage: python -m benchmarks.plots FOUND.json FOLDER\n{__doc__}")
    found = json.loads(Path(sys.argv[1]).read_text().splitlines()[-1])
    folder = Path(sys.argv[2])
    folder.mkdir(parents=True, exist_ok=True)
    for report in found["reports"]:
        name = report["name"]
        if name in _RATES:
            bars(report, _RATES[name], folder / f"{name}.png")
        elif name == "scale":
            curves(report, "CPU us/document", folder / "scale.png")
            curves(report, "loader CPU us/16k tokens", folder / "scale-loader.png")
        elif name == "latency":
            latencies(report, folder / "latency.png")


if __name__ == "__main__":
    main()
