"""An expert's script: confluent-kafka's consumer and producer, as many records a turn as have come."""

from __future__ import annotations

import sys

from common import Blocks, Encoder, texts_of
from confluent_kafka import Consumer, Producer


def main(bootstrap: str, raw: str, out: str, engine: str) -> None:
    encoder, blocks = Encoder(engine), Blocks()
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": out,
            "auto.offset.reset": "earliest",
            "fetch.queue.backoff.ms": 5,
        }
    )
    producer = Producer({"bootstrap.servers": bootstrap, "linger.ms": 5, "queue.buffering.max.kbytes": 2**20})
    consumer.subscribe([raw])
    most = 1024 if engine == "gigatoken" else 64
    while True:
        first = consumer.poll(0.1)
        if first is None:
            producer.poll(0)
            continue
        values = [message.value() for message in (first, *consumer.consume(most - 1, 0)) if not message.error()]
        for block in blocks.add(encoder.encode(texts_of(values))):
            while True:
                try:
                    producer.produce(out, block)
                    break
                except BufferError:
                    producer.poll(0.01)
        producer.poll(0)


main(*sys.argv[1:])
