"""Putting documents into the raw topics."""

from tokenfeed.ingest.files import Source, expand, read_source
from tokenfeed.ingest.producer import Ingestor, IngestReport
from tokenfeed.ingest.records import RecordMaker

__all__ = ["IngestReport", "Ingestor", "RecordMaker", "Source", "expand", "read_source"]
