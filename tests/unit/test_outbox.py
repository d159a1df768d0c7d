"""Messages that any window can be turned into are messages that the broker takes."""

from __future__ import annotations

import pytest

from app.stream import Outbox
from tests.feeds import ByteTokenizer, make_cut, make_plan
from tokenfeed.batches import encode
from tokenfeed.content import window_content
from tokenfeed.documents import RawRecord
from tokenfeed.errors import SettingsError
from tokenfeed.settings import Settings, load_settings


def test_a_dead_letter_is_cut_to_what_the_broker_takes_and_says_so() -> None:
    plan = make_plan()
    records = [RawRecord(0, 0, b"\xff" * 20_000), RawRecord(0, 1, b"\xff")]
    content = window_content(plan, ByteTokenizer(), make_cut(plan, records), records)
    cut, whole = Outbox(plan, "batches", "dead", 20_000).messages(make_cut(plan, records), content)
    assert len(cut.value or b"") == 20_000 - 4096
    assert dict(cut.headers)["tokenfeed-truncated"] == b"20000"
    assert whole.value == b"\xff"
    assert "tokenfeed-truncated" not in dict(whole.headers)


def test_the_settings_refuse_a_batch_that_could_be_too_large() -> None:
    with pytest.raises(SettingsError, match="TOKENFEED_MAX_MESSAGE_BYTES"):
        load_settings(sequence_length=32768, batch_size=16)


def test_a_batch_of_the_smallest_documents_fits_what_the_settings_assume() -> None:
    settings = Settings(sequence_length=64, batch_size=4, max_message_bytes=8192, window_bytes=1024, carry=0)
    plan = make_plan(sequence_length=64, batch_size=4, vocab_size=70_000, record_format="text")
    records = [RawRecord(0, offset, b"a") for offset in range(200)]
    content = window_content(plan, ByteTokenizer(), make_cut(plan, records), records)
    assert max(len(encode(batch)) for batch in content.batches) <= settings.max_message_bytes
