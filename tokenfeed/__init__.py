"""Tokenfeed keeps GPUs fed from a live text stream: the library that trainers, ingest and workers share.

Importing it imports neither Faust nor torch nor transformers.
"""

import logging

# As a library should: without a handler, Python would print what librdkafka logs about each attempt to connect.
logging.getLogger(__name__).addHandler(logging.NullHandler())

__version__ = "0.1.0"
