"""The seed of many such pipelines: kafka-python, and token ids as JSON. Arguments: BOOTSTRAP TOPIC TOKENS."""

from __future__ import annotations

import json
import sys

import torch
from kafka import KafkaConsumer
from reading import timed, until
from torch.utils.data import DataLoader, IterableDataset


class Messages(IterableDataset):
    def __init__(self, bootstrap: str, topic: str) -> None:
        self._bootstrap, self._topic = bootstrap, topic

    def __iter__(self):
        consumer = KafkaConsumer(
            self._topic,
            bootstrap_servers=self._bootstrap,
            auto_offset_reset="earliest",
            consumer_timeout_ms=3000,
            max_partition_fetch_bytes=10 * 2**20,
            value_deserializer=lambda value: json.loads(value),
        )
        for message in consumer:
            yield torch.tensor(message.value["input_ids"])


def main(bootstrap: str, topic: str, expected: str) -> None:
    timed(until(DataLoader(Messages(bootstrap, topic), batch_size=None), int(expected)), int(expected))


main(*sys.argv[1:])
