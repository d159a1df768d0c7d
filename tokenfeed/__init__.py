"""Tokenfeed keeps GPUs fed from a live text stream: the library that trainers, ingest and workers share.

Importing it imports neither Faust nor torch nor transformers.
"""

__version__ = "0.1.0"
