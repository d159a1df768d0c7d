"""The benchmarks run: on little data, for what they print, not for how fast it is."""

from __future__ import annotations

import pytest

from benchmarks import core, gpu, scale, wire
from benchmarks.report import Report, alternate


def test_the_core_makes_every_token_and_is_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(core, "_DOCUMENTS", 300)
    report = core.measure(1)
    assert report.ratios.keys() == {"core.vs_gigatoken", "core.vs_tokenizers_core"}
    assert report.median("tokenfeed", "documents/s") > 0


def test_every_setting_that_grows_has_a_cost(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scale, "_GROWING", {"documents": (40, 80), "vocabulary": (512, 0), "rows": (1, 3)})
    monkeypatch.setattr(scale, "_DOCUMENTS", 60)
    monkeypatch.setattr(scale, "_TRAINING", 20)
    report = scale.measure(1)
    assert report.ratios.keys() == {"scale.documents", "scale.vocabulary", "scale.rows"}
    assert all(found["loader CPU us/16k tokens"][0] > 0 for found in report.figures.values())


def test_every_form_of_a_message_is_read_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wire, "_DOCUMENTS", 300)
    report = wire.measure(1)
    assert 0.5 < report.ratios["wire.planes_bytes"] < 0.6


def test_a_model_trains_from_the_feed_as_from_a_file(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu, "_ON_CPU", gpu._Size(rows=1, length=64, hidden=8, layers=1, steps=6, documents=300))
    report = gpu.measure(1)
    assert report.ratios.keys() == {"gpu.vs_on_device", "gpu.vs_memmap"}
    for found in report.figures.values():
        assert 0 < found["busy %"][0] <= 100
        assert 0 <= found["waiting %"][0] <= 100


def test_contenders_alternate_and_are_compared_round_by_round() -> None:
    order: list[str] = []
    speeds = {"ours": [10.0, 30.0, 20.0], "theirs": [5.0, 10.0, 40.0]}

    def run(name: str) -> dict[str, float]:
        order.append(name)
        return {"speed": speeds[name][order.count(name) - 1]}

    report = Report("test")
    alternate(report, 3, {"ours": lambda: run("ours"), "theirs": lambda: run("theirs")})
    assert order == ["ours", "theirs", "theirs", "ours", "ours", "theirs"]
    report.compare("ratio", "ours", "theirs", "speed")
    assert report.ratios["ratio"] == 2.0
