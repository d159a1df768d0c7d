"""How many batches a stream has, as its ledger tells."""

from __future__ import annotations

from tokenfeed.ledger import Cut, Entry, Ledger, fold_tail


class StreamEnd:
    """Learns from a stream's ledger, read from anywhere near its end, whether and where the stream has ended.

    A cut that ends the stream holds only if no other cut of its window came before it. So the log is read again from the
    cut that it names as the one before: from there on the rule of the ledger applies.

    Args:
        stream: the stream.
        plan: plan id that every entry must carry.
    """

    def __init__(self, stream: int, plan: str) -> None:
        self._stream = stream
        self._plan = plan
        self._start: int | None = None
        self._ledger: Ledger | None = None

    def offer(self, offset: int, entry: Entry) -> int | None:
        """Take the next entry that was read; an offset is where to read on instead. Entries on the way are passed over.

        Raises:
            LedgerError: entries contradict each other.
        """
        if self._ledger is not None:
            self._ledger = self._ledger.apply(offset, entry)
        elif self._start is None:
            if isinstance(entry, Cut) and entry.is_final:
                self._start = max(0, entry.previous)
                return self._start
        elif offset == self._start:
            self._ledger = fold_tail(self._stream, self._plan, [(offset, entry)], self._start)
        return None

    @property
    def batches(self) -> int | None:
        """How many batches the stream has in all; None while it has not ended, or that is not certain."""
        return self._ledger.next_number if self._ledger is not None and self._ledger.is_sealed else None
