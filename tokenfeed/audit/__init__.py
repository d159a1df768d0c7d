"""Proving that every accepted document stands in exactly one place.

`Auditor` is the proof over any logs, `audit_feed` runs it over a feed's topics.
"""

from tokenfeed.audit.auditor import Auditor
from tokenfeed.audit.feed import audit_feed
from tokenfeed.audit.logs import Log, Logs
from tokenfeed.audit.report import Report, StreamReport
from tokenfeed.audit.window import Account, Contents, Origin, settle

__all__ = ["Account", "Auditor", "Contents", "Log", "Logs", "Origin", "Report", "StreamReport", "audit_feed", "settle"]
