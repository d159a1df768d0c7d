"""The Faust app that most would write: one document at a time, transformers, concatenate and split."""

from __future__ import annotations

import sys

import faust
import numpy as np
from common import Blocks, load

BOOTSTRAP, RAW, OUT, _ = sys.argv[1:]
app = faust.App(OUT, broker=f"kafka://{BOOTSTRAP}", store="memory://", web_enabled=False, topic_disable_leader=True)
raw = app.topic(RAW, value_serializer="raw")
out = app.topic(OUT, value_serializer="raw")
tokenizer = load()


@app.agent(raw)
async def preprocess(stream: faust.StreamT) -> None:
    blocks = Blocks()
    async for value in stream:
        ids = tokenizer(value.decode(), add_special_tokens=False)["input_ids"]
        ids.append(tokenizer.eos_token_id)
        for block in blocks.add(np.array(ids, dtype=np.int32).tobytes()):
            await out.send(value=block)


sys.argv = ["faust", "worker", "--without-web", "-l", "warn"]
app.main()
