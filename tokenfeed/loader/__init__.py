"""Reading a feed: the same global stream for any number of ranks, resumable at every batch.

`FeedReader` gives batches as numpy arrays; `tokenfeed.loader.torch.FeedDataset` gives them to PyTorch.
"""

from tokenfeed.loader.cursor import Cursor, merge
from tokenfeed.loader.feed import Feed
from tokenfeed.loader.reader import Delivered, FeedReader
from tokenfeed.loader.samples import sample
from tokenfeed.loader.span import Span, between, of_offsets, since

__all__ = ["Cursor", "Delivered", "Feed", "FeedReader", "Span", "between", "merge", "of_offsets", "sample", "since"]
