"""Putting documents into the raw topics."""

from tokenfeed.ingest.files import Item, Refused, Source, expand, read_source
from tokenfeed.ingest.pipeline import IngestReport, ingest_documents

__all__ = ["IngestReport", "Item", "Refused", "Source", "expand", "ingest_documents", "read_source"]
