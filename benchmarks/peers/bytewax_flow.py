"""Bytewax: its Kafka source and sink, with a flat map over what one poll has brought."""

from __future__ import annotations

import sys
from collections.abc import Iterable

import bytewax.operators as op
from bytewax.connectors.kafka import KafkaSink, KafkaSinkMessage, KafkaSource
from bytewax.dataflow import Dataflow
from bytewax.testing import cluster_main
from common import Blocks, Encoder, texts_of
from confluent_kafka import OFFSET_BEGINNING


def main(bootstrap: str, raw: str, out: str, engine: str) -> None:
    encoder, blocks = Encoder(engine), Blocks()

    def preprocess(messages: list) -> Iterable[KafkaSinkMessage]:
        texts = texts_of([message.value for message in messages])
        return [KafkaSinkMessage(None, block) for block in blocks.add(encoder.encode(texts))]

    flow = Dataflow("peer")
    source = KafkaSource(
        [bootstrap],
        [raw],
        starting_offset=OFFSET_BEGINNING,
        tail=True,
        batch_size=1024,
        add_config={"fetch.queue.backoff.ms": "5"},
    )
    records = op.input("in", flow, source)
    made = op.flat_map_batch("tokenize", records, preprocess)
    op.output("out", made, KafkaSink([bootstrap], out, add_config={"linger.ms": "5"}))
    cluster_main(flow, [], 0)


main(*sys.argv[1:])
