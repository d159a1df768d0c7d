"""The main job on one machine: raw text through Kafka, two workers and the loader into a transformer that learns."""

from typing import Final

POSITIONS: Final = 32  # tokens of a batch that the loss is taken on
