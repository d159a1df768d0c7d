"""Every error that Tokenfeed raises on purpose.

    TokenfeedError
    ├── SettingsError       a setting is missing, malformed or contradicts another    retry: after a change
    ├── TokenizerError      the tokenizer cannot be loaded, or an engine disagrees    retry: after a change
    ├── RecordError         one raw record or document cannot be used (dead letter)   retry: never
    ├── WireError           bytes of the batches, ledger or plan topic are not ours   retry: never
    ├── PlanMismatch        a feed was made under another plan than the one expected  retry: after a change
    ├── TopicError          a topic is missing or has another shape than the plan     retry: after a change
    ├── LedgerError         ledger and topics contradict each other                   retry: never, look first
    ├── BrokerUnreachable   no broker answered in time                                retry: yes
    ├── DeliveryError       a broker did not acknowledge what was sent                retry: yes, by restart
    ├── FeedGapError        a batch number that should be in a slot never came        retry: never, audit first
    ├── FeedStalledError    a slot stayed empty longer than the slot timeout          retry: yes
    └── CursorError         a loader state does not fit the feed or the loader        retry: never

Messages name the setting, topic, partition or offset, the value found and the way out. They never contain
a payload, a key or a secret.
"""

from __future__ import annotations


class TokenfeedError(Exception):
    """Base of all errors raised by Tokenfeed."""


class SettingsError(TokenfeedError):
    """A setting is missing, malformed, or contradicts another one."""


class TokenizerError(TokenfeedError):
    """A tokenizer cannot be loaded, or an engine does not agree with the reference."""


class RecordError(TokenfeedError):
    """A raw record, or one document of it, cannot be used; it belongs in the dead letters.

    Attributes:
        reason: a short word from a closed set, fit for a metric label.
    """

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason = reason


class WireError(TokenfeedError):
    """Bytes read from a Tokenfeed topic are not what the wire format says."""


class PlanMismatch(TokenfeedError):
    """A feed was made under another plan than the one that was asked for."""


class TopicError(TokenfeedError):
    """A topic is missing, or its partition count contradicts the plan."""


class LedgerError(TokenfeedError):
    """The ledger and the topics it describes contradict each other."""


class BrokerUnreachable(TokenfeedError):
    """No broker answered within the time allowed."""


class DeliveryError(TokenfeedError):
    """A message that was sent has not been acknowledged."""


class FeedGapError(TokenfeedError):
    """A batch number that must stand in a slot is not there."""


class FeedStalledError(TokenfeedError):
    """A slot has given no batch for longer than the slot timeout."""


class CursorError(TokenfeedError):
    """A loader state does not belong to this feed or this loader."""
