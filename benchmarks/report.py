"""What a benchmark found, as a table and as JSON: every contender's runs, and how ours compare in the same run."""

from __future__ import annotations

import os
import platform
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from importlib.metadata import PackageNotFoundError, version
from typing import Any, TypeAlias

from rich.console import Console
from rich.progress import Progress
from rich.table import Table

Contenders: TypeAlias = Mapping[str, Callable[[], Mapping[str, float]]]


@dataclass
class Report:
    """The runs of one benchmark.

    Attributes:
        name: which benchmark.
        figures: contender -> figure -> its value in each run.
        ratios: target key -> what was measured for it.
        notes: what a reader must know to judge the figures.
    """

    name: str
    figures: dict[str, dict[str, list[float]]] = field(default_factory=dict)
    ratios: dict[str, float] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)

    def add(self, contender: str, **figures: float) -> None:
        """Add one run of a contender."""
        for figure, value in figures.items():
            self.figures.setdefault(contender, {}).setdefault(figure, []).append(float(value))

    def median(self, contender: str, figure: str) -> float:
        """Median over the runs."""
        return statistics.median(self.figures[contender][figure])

    def best(self, contenders: Sequence[str], figure: str) -> str:
        """The contender whose median is the highest."""
        return max(contenders, key=lambda contender: self.median(contender, figure))

    def compare(self, key: str, ours: str, theirs: str, figure: str) -> None:
        """Note the ratio of two contenders: the median of the ratios of each round, in which they ran one after another."""
        rounds = zip(self.figures[ours][figure], self.figures[theirs][figure], strict=True)
        self.ratios[key] = statistics.median(our / their for our, their in rounds)

    def as_json(self) -> dict[str, Any]:
        """JSON-safe."""
        return asdict(self)


def alternate(report: Report, runs: int, contenders: Contenders) -> None:
    """Measure the contenders one after another, `runs` times, each round beginning with another one."""
    names = list(contenders)
    with Progress(console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task(report.name, total=runs * len(names))
        for run in range(runs):
            for name in names[run % len(names) :] + names[: run % len(names)]:
                progress.update(task, description=f"{report.name}: {name}")
                report.add(name, **contenders[name]())
                progress.advance(task)


def show(report: Report, console: Console) -> None:
    """Print a report: median (least to most) of each figure, then ratios and notes."""
    columns = list(dict.fromkeys(figure for found in report.figures.values() for figure in found))
    runs = max((len(values) for found in report.figures.values() for values in found.values()), default=0)
    table = Table("", *columns, title=f"{report.name}: median (least to most) of {runs} runs; {machine()['machine']}")
    for contender, found in report.figures.items():
        table.add_row(contender, *(_spread(found.get(figure)) for figure in columns))
    console.print(table)
    for key, value in report.ratios.items():
        console.print(f"  {key} = {value:.4g}")
    for note in report.notes:
        console.print(f"  {note}")


def _spread(values: list[float] | None) -> str:
    if not values:
        return ""
    middle = statistics.median(values)
    if len(values) == 1:
        return _figure(middle)
    return f"{_figure(middle)} ({_figure(min(values))} to {_figure(max(values))})"


def _figure(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.4g}"


def machine() -> dict[str, Any]:
    """The machine and the versions that the figures belong to."""
    packages = (
        "faust-streaming",
        "aiokafka",
        "confluent-kafka",
        "gigatoken",
        "tokenizers",
        "transformers",
        "torch",
        "numpy",
    )
    return {
        "machine": f"{platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}",
        "versions": {name: _version(name) for name in packages},
    }


def _version(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return "not installed"
