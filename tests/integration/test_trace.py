"""`tokenfeed trace`: from a step to its documents and back."""

from __future__ import annotations

import json
from collections import defaultdict
from pathlib import Path
from typing import Any

import orjson
import pytest
from typer.testing import CliRunner

from tests.integration.test_service import MakeService
from tests.service import Service
from tokenfeed.cli import app
from tokenfeed.documents import JSON
from tokenfeed.loader import Feed, FeedReader


def trace(feed: Service, *options: str, code: int = 0) -> list[dict[str, Any]]:
    """What the command prints."""
    done = CliRunner().invoke(app, ["trace", "--json", *options], env=feed.environment())
    assert done.exit_code == code, done.output
    pieces: list[dict[str, Any]] = orjson.loads(done.stdout)["pieces"]
    return pieces


LONG = 50  # number of a document that, with its window, stands in many batches of every slot


def text_of(number: int) -> str:
    return f"document {number} " * (2000 if number == LONG else 1 + number % 23)


@pytest.fixture
def fed(service: MakeService) -> Service:
    """A sealed feed of documents with ids, long and short ones."""
    feed = service(window_documents=15, sequence_length=64)
    values = [{"text": text_of(number), "id": f"d{number}"} for number in range(120)]
    feed.produce([(number % 3, orjson.dumps(value)) for number, value in enumerate(values)], JSON)
    feed.start_worker()
    feed.seal()
    feed.wait_sealed()
    return feed


def test_steps_batches_rows_and_documents_lead_to_each_other(fed: Service, tmp_path: Path) -> None:
    with FeedReader(Feed.of(fed.settings)) as reader:
        state = None
        delivered = []
        for one in reader:
            delivered.append(one)
            if one.number == 4:
                state = reader.cursor.to_state()
    saved = tmp_path / "state.json"
    saved.write_text(json.dumps(state))

    step = trace(fed, "--step", "3", "--world", "2", "--text")
    assert {piece["number"] for piece in step} == {6, 7}
    for number in (6, 7):
        batch = delivered[number].batch
        assert batch is not None
        found = [piece for piece in step if piece["number"] == number]
        assert [[p["offset"], p["index"], p["first"], 0] for p in found] == batch.origins.tolist()
        assert [piece["length"] for piece in found] == batch.piece_lens.tolist()
    assert all(piece["step"] == 3 for piece in step)
    assert trace(fed, "--step", "3", "--world", "2", "--state", str(saved), "--text") == step
    one_rank = trace(fed, "--step", "3", "--world", "2", "--rank", "1", "--text")
    assert one_rank == [piece for piece in step if piece["number"] == 7]

    piece = step[0]
    same = trace(fed, "--batch", f"{piece['stream']}/{piece['batch']}", "--row", "2", "--world", "2", "--text")
    assert same == [other for other in step if other["number"] == 6 and other["row"] == 2]

    by_id = trace(fed, "--id", piece["id"], "--world", "2", "--text")
    source = f"{piece['topic']}/{piece['stream']}/{piece['offset']}"
    assert trace(fed, "--source", source, "--world", "2", "--text") == by_id
    assert piece in by_id
    assert "".join(part["text"] for part in by_id) == text_of(int(piece["id"][1:])) + "<|end|>"


def test_every_document_is_found_where_the_loader_gives_it(fed: Service) -> None:
    expected: dict[tuple[int, int], list[tuple[int, int]]] = defaultdict(list)
    with FeedReader(Feed.of(fed.settings)) as reader:
        for one in reader:
            for offset, _, first, _ in one.batch.origins.tolist() if one.batch else ():
                assert one.batch is not None
                expected[one.batch.stream, offset].append((one.number, first))
    for stream, offset in ((0, 0), (1, 14), (2, 39), (LONG % 3, LONG // 3), (LONG % 3, LONG // 3 + 1)):
        pieces = trace(fed, "--source", f"{fed.settings.raw_topics[0]}/{stream}/{offset}")
        assert sorted((piece["number"], piece["first"]) for piece in pieces) == sorted(expected[stream, offset])
    assert trace(fed, "--id", "nobody", code=1) == []
