"""Programs that a user could write instead, each for one tool. They import nothing of Tokenfeed.

Every one reads a raw topic from its beginning, tokenizes with the DeepSeek tokenizer, ends each document with EOS, cuts
the tokens into rows of 2048 and sends 8 rows at a time, as int32, to an output topic. They are started by path with
`BOOTSTRAP RAW OUT ENGINE` as arguments, by an interpreter that has benchmarks/peers/requirements.txt, and run until
they are stopped.
"""
