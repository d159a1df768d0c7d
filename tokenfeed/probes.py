"""Strings on which tokenizers are compared.

They are part of every fingerprint: changing one changes every feed's plan id.
"""

from __future__ import annotations

from typing import Final

PROBES: Final[tuple[str, ...]] = (
    "",
    " ",
    "a",
    "Hello, world!",
    "hello  world   with    spaces",
    " leading and trailing ",
    "tabs\tand\t\ttabs",
    "line\nbreaks\n\n\nand\r\nCRLF\r",
    " " * 257,
    "a" * 300,
    "ab" * 200,
    "\n" * 64,
    "0123456789 1 12 123 1234 3.14159 -1e-9 0xFF 1,000,000",
    "I'm you're they'll WE'VE don't o'clock",
    "def f(x: int) -> str:\n    return f'{x!r}'  # comment\n",
    "for (int i = 0; i < n; ++i) { a[i] += b[i] * c[i]; }",
    '{"key": [1, 2.5, null, true], "nested": {"a": "b\\n"}}',
    "<html><body class='x'>&amp; &lt;tag&gt;</body></html>",
    "https://example.org/path?query=1&other=two#fragment user@example.org",
    "ALL CAPS and miXeD CaSe camelCaseWords snake_case_words",
    "naïve café Zürich Ærøskøbing İstanbul ß ﬁ ﬂ",
    "e\u0301 e\u0300\u0301\u0302 \u0301\u0301 a" + "\u0301" * 40,
    "Привет, мир! Ελληνικά, Հայերեն, ქართული",
    "你好，世界！这是一个测试。日本語のテキスト、カタカナ 한국어 문장",
    "שלום עולם مرحبا بالعالم \u202bמעורב mixed\u202c",
    "नमस्ते दुनिया สวัสดีชาวโลก မင်္ဂလာပါ",
    "😀 👩‍👩‍👧‍👦 👍🏽 🇩🇪 🏴󠁧󠁢󠁥󠁮󠁧󠁿 ❤️ ☺",
    "\u200b\u200c\u200d\u2060\ufeff zero width",
    "\ufeffbyte order mark",
    "nul\x00byte \x01\x02\x1b[31m control \x7f\x85",
    "\u00a0non\u2003breaking\u3000spaces\u2028separators\u2029",
    "math ∑∫√∞ ≤≥≠ αβγ ℝ 𝔸𝕓𝒞 ½ ² ₃",
    "\U0001f600\U0002a700\U000e0001\U0010ffff",
    "private \ue000\uf8ff and unassigned \u0378",
    "<s></s> <|endoftext|> <pad> [CLS] [SEP] [MASK] [UNK] <unk>",
    "<｜begin▁of▁sentence｜>x<｜end▁of▁sentence｜> ▁▁ Ġ Ċ ##ing",
    "mixed漢字とkanaと한글andРусский123",
    "supercalifragilisticexpialidocious" * 4,
    "!?!?...---___===***///\\\\\\((()))[[[]]]{{{}}}",
    "The quick brown fox jumps over the lazy dog. " * 5,
)
