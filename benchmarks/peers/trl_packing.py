"""TRL's packing of a dataset in memory. Arguments: LENGTHS.npy LENGTH STRATEGY. Prints seconds, rows and tokens kept."""

from __future__ import annotations

import json
import sys
import time

import datasets
import numpy as np
import pyarrow as pa
from trl.data_utils import pack_dataset


def main(path: str, length: str, strategy: str) -> None:
    datasets.disable_progress_bars()
    datasets.disable_caching()
    lengths = np.load(path)
    offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)
    ids = pa.ListArray.from_arrays(pa.array(offsets), pa.array(np.arange(offsets[-1], dtype=np.int32)))
    documents = datasets.Dataset(pa.table({"input_ids": ids}))
    started = time.perf_counter()
    packed = pack_dataset(documents, int(length), strategy, map_kwargs={"batch_size": len(lengths)})
    seconds = time.perf_counter() - started
    kept = sum(len(row) for row in packed.data.column("input_ids").to_pylist())
    print(json.dumps({"seconds": seconds, "rows": len(packed), "tokens": kept}))


main(*sys.argv[1:])
