"""Tokens to text and back, stop strings, chat templates."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Generator, Iterator
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from made_tokenizers import NAMES, raw_tokenizer, tokenizer

from edgedec.decoding.messages import Stats, Token
from edgedec.decoding.pieces import pieces
from edgedec.errors import TextError, UsageError
from edgedec.text.stops import StopStrings
from edgedec.text.template import render_chat
from edgedec.text.tokenizer import Detokenizer, Tokenizer

# --- Tokenizer ---


def test_encode_adds_and_reads_special_tokens_unless_told_not_to() -> None:
    from tokenizers.processors import TemplateProcessing

    raw = raw_tokenizer("bytes")
    end = raw.token_to_id("<|end|>")
    raw.post_processor = TemplateProcessing(single="<|end|> $A", special_tokens=[("<|end|>", end)])
    t = Tokenizer(raw)
    assert t.encode("a<|end|>") == [end, *t.encode("a", special=False), end]
    assert end not in t.encode("a<|end|>", special=False)
    assert t.decode(t.encode("a<|end|>")) == "a"
    assert t.decode(t.encode("a<|end|>"), special=True) == "<|end|>a<|end|>"
    assert t.decode(t.encode("a<|end|>", special=False)) == "a<|end|>"


def test_tokens_by_name_and_number() -> None:
    t = tokenizer("bytes")
    assert t.token(t.id("<|end|>")) == "<|end|>"
    assert t.id("no such token") is None
    assert t.vocab_size == t.id("<|end|>") + 1
    for bad in (-1, 10**6, 1 << 40):
        with pytest.raises(TextError, match="no such token"):
            t.token(bad)
    with pytest.raises(TextError, match="no such token"):
        t.decode([1, -1])
    assert t.decode([10**6]) == ""


def test_training_time_truncation_and_padding_are_switched_off() -> None:
    raw = raw_tokenizer("bytes")
    raw.enable_truncation(3)
    raw.enable_padding(length=50)
    t = Tokenizer(raw)
    assert t.decode(t.encode("the cat sat on the mat")) == "the cat sat on the mat"


@pytest.mark.parametrize("content", ["", "{}", "[1]", '{"version": "1.0"}', "\x00\xff", '{"model": {"type": "BPE"}}'])
def test_a_bad_file_is_one_line(tmp_path: Path, content: str) -> None:
    path = tmp_path / "tokenizer.json"
    path.write_text(content)
    with pytest.raises(TextError) as e:
        Tokenizer.load(path)
    assert "not a tokenizer.json" in str(e.value)
    assert "\n" not in str(e.value)


def test_a_missing_file_and_text_that_is_no_text(tmp_path: Path) -> None:
    with pytest.raises(TextError, match="no tokenizer there"):
        Tokenizer.load(tmp_path / "tokenizer.json")
    with pytest.raises(TextError, match=r"character 3 is no Unicode \(U\+D83D: half an emoji, .*\); remove it"):
        tokenizer("bytes").encode("ab\ud83d c")


# --- Detokenizer ---

TEXT = st.text(
    st.one_of(
        st.sampled_from("  \n\tabé́ñ日本🙂👩‍👩‍👧🏽\ufffd\u200d▁Ġ'."),
        st.characters(exclude_categories=["Cs"]),
    ),
    max_size=30,
)


def _pieces(t: Tokenizer, ids: list[int], prompt: list[int], special: bool = False) -> str:
    d = Detokenizer(t, prompt_ids=prompt, special=special)
    return "".join([*map(d.push, ids), d.flush()])


@pytest.mark.parametrize("name", NAMES)
def test_pieces_join_to_the_text_for_any_text(name: str) -> None:
    t = tokenizer(name)

    @settings(max_examples=60, deadline=None)
    @given(text=TEXT, cut=st.integers(0, 60))
    def check(text: str, cut: int) -> None:
        ids = t.encode(text)
        assert _pieces(t, ids, []) == t.decode(ids)
        prompt, rest = ids[:cut], ids[cut:]
        if t.decode(ids).startswith(t.decode(prompt)):  # else the cut is inside a character
            assert t.decode(prompt) + _pieces(t, rest, prompt) == t.decode(ids)

    check()


@pytest.mark.parametrize("special", [False, True])
@pytest.mark.parametrize("name", NAMES)
def test_pieces_join_to_the_text_for_any_tokens(name: str, special: bool) -> None:
    """Random tokens, many of them unfinished characters, specials, or beyond the vocabulary."""
    t = tokenizer(name)
    ids = st.lists(st.one_of(st.sampled_from(_odd(t)), st.integers(0, t.vocab_size + 3)), max_size=24)

    @settings(max_examples=80, deadline=None)
    @given(ids=ids, prompt=ids)
    def check(ids: list[int], prompt: list[int]) -> None:
        assert _pieces(t, ids, [], special) == t.decode(ids, special)
        whole, known = t.decode(prompt + ids, special), t.decode(prompt, special)
        if whole.startswith(known):
            assert known + _pieces(t, ids, prompt, special) == whole

    check()


@pytest.mark.parametrize("name", ["bytes", "fallback"])
def test_the_marks_around_thoughts_are_shown_though_they_are_special(tmp_path: Path, name: str) -> None:
    raw = raw_tokenizer(name)
    raw.add_special_tokens(["<think>", "</think>", "<|other|>"])
    raw.save(str(tmp_path / "tokenizer.json"))
    t = Tokenizer.load(tmp_path / "tokenizer.json")
    ids = [t.id("<think>"), *t.encode("a"), t.id("</think>"), t.id("<|other|>"), *t.encode("b")]
    text = t.decode([i for i in ids if i is not None])
    assert text.startswith("<think>")
    assert text.replace(" ", "") == "<think>a</think>b"
    assert _pieces(t, [i for i in ids if i is not None], []) == text
    assert t.hidden & {t.id("<|other|>"), t.id("<think>")} == {t.id("<|other|>")}


def test_a_prompt_that_ends_in_half_a_surrogate_is_told_once() -> None:
    """ED A0 is held as unfinished, and reads as two bad bytes if nothing more comes."""
    t = tokenizer("bytes")
    prompt = [169, 94]
    assert t.decode(prompt) == "\ufffd\ufffd"
    assert _pieces(t, [], prompt) == ""


def _odd(t: Tokenizer) -> list[int]:
    """Tokens that are no text by themselves; byte tokens; specials; spaces."""
    spellings = range(t.vocab_size)
    odd = [i for i in spellings if "\ufffd" in t.decode([i]) or t.decode([i]).strip() == ""]
    return odd[:400] or [0]


def test_whatever_is_certain_is_told_at_once() -> None:
    t = tokenizer("bytes")
    d = Detokenizer(t)
    steps = [d.push(t.id(c)) for c in "ðŁĻĤa"]  # 🙂 is four bytes
    assert steps == ["", "", "", "🙂", "a"]
    assert [d.push(i) for i in t.encode("\ufffd")][-1] == "\ufffd"
    assert d.flush() == ""
    assert d.push(t.id("ð")) == ""
    assert d.flush() == "\ufffd"


def test_a_run_of_byte_tokens_is_told_at_its_end() -> None:
    """One bad byte spoils a whole run, so none of it is certain before."""
    t = tokenizer("fallback")
    cat, a, b = t.encode("the cat")[0], t.id("<0xC3>"), t.id("<0xA9>")
    d = Detokenizer(t)
    assert [d.push(i) for i in (a, b, cat)] == ["", "", "é" + t.decode([a, b, cat])[1:]]
    assert _pieces(t, [a, b, a], []) == "\ufffd" * 3


@pytest.mark.parametrize("name", ["fallback", "unigram", "metaspace"])
def test_the_space_before_a_continuation_is_kept(name: str) -> None:
    t = tokenizer(name)
    the, cat = t.encode("the", special=False), t.encode("cat", special=False)
    assert t.decode(cat) == "cat"
    assert _pieces(t, cat, the) == " cat"


def test_a_character_that_the_prompt_leaves_unfinished_is_told_whole() -> None:
    t = tokenizer("bytes")
    face = [t.id(c) for c in "ðŁĻĤ"]
    for cut in range(1, 4):
        assert _pieces(t, face[cut:], [t.id("a"), *face[:cut]]) == "🙂"
    t = tokenizer("fallback")
    e = [t.id("<0xC3>"), t.id("<0xA9>")]
    assert _pieces(t, e[1:], e[:1]) == "é"


def test_the_cost_of_a_push_does_not_grow() -> None:
    """Decoded ids are counted, not timed: the window stays a few tokens."""
    for name in ("fallback", "unigram", "words"):
        t = tokenizer(name)
        d = Detokenizer(t, prompt_ids=t.encode("the cat") * 500)
        sizes: list[int] = []
        d._decode = lambda ids, t=t, sizes=sizes: (sizes.append(len(ids)), t.decode(ids))[1]  # type: ignore
        for i in t.encode("the cat sat") * 300:
            d.push(i)
        assert 0 < max(sizes) <= 3


# --- StopStrings ---

SMALL = st.text("ab", max_size=14)


@settings(max_examples=300, deadline=None)
@given(
    stops=st.lists(st.text("ab", min_size=1, max_size=4), max_size=3),
    pieces=st.lists(SMALL, max_size=8),
)
def test_any_split_is_cut_where_find_says(stops: list[str], pieces: list[str]) -> None:
    text = "".join(pieces)
    found = [i for i in map(text.find, stops) if i >= 0]
    s = StopStrings(stops)
    out, hits = zip(*map(s.push, pieces)) if pieces else ((), ())
    rest, hit = s.flush()
    assert "".join(out) + rest == text[: min(found, default=len(text))]
    assert list(hits) == sorted(hits)
    assert hit == bool(found)
    assert hit or not any(hits)


def test_stop_examples() -> None:
    s = StopStrings(["</s>"])
    assert [s.push("a<"), s.push("b</s>c"), s.push("d")] == [("a", False), ("<b", True), ("", True)]
    assert s.flush() == ("", True)
    held = StopStrings(["stop", "top hat"])
    assert [held.push("a sto"), held.push("re"), held.push(" to")] == [
        ("a ", False),
        ("store", False),
        (" ", False),
    ]
    assert held.flush() == ("to", False)
    late = StopStrings(["abX", "b"])
    assert (late.push("ab"), late.flush()) == (("", False), ("a", True))
    earlier = StopStrings(["abX", "b"])  # "b" waits while "abX" may still complete, as it began before
    assert [earlier.push("ab"), earlier.push("c")] == [("", False), ("a", True)]


@pytest.mark.parametrize("bad", ["stop", [""], [3]])
def test_stop_strings_are_a_list_of_non_empty_strings(bad: object) -> None:
    with pytest.raises(UsageError, match="stop strings"):
        StopStrings(bad)  # type: ignore[arg-type]


# --- chat templates ---

CHATML = """{%- for message in messages %}
    {%- if loop.first and message['role'] != 'system' %}
        {{- '<|im_start|>system\\nYou are helpful.<|im_end|>\\n' }}
    {%- endif %}
    {{- '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>' + '\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\\n' }}
{%- endif %}
"""
LLAMA2 = """{% if messages[0]['role'] == 'system' %}{% set rest = messages[1:] %}\
{% set system = messages[0]['content'] %}\
{% else %}{% set rest = messages %}{% set system = false %}{% endif %}
{% for message in rest %}
{% if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}
{{ raise_exception('roles must alternate user/assistant') }}
{% endif %}
{% if loop.index0 == 0 and system != false %}
{% set content = '<<SYS>>\\n' + system + '\\n<</SYS>>\\n\\n' + message['content'] %}
{% else %}
{% set content = message['content'] %}
{% endif %}
{% if message['role'] == 'user' %}
{{ bos_token + '[INST] ' + content | trim + ' [/INST]' }}
{% elif message['role'] == 'assistant' %}
{% generation %}{{ ' ' + content | trim + ' ' + eos_token }}{% endgeneration %}
{% endif %}
{% endfor %}"""
LLAMA3 = """{{- bos_token }}
{%- if not date_string is defined %}{%- set date_string = strftime_now("%Y") %}{%- endif %}
{%- if tools is not none %}{{- tools | tojson(indent=4) }}{%- endif %}
{%- set ns = namespace(n=0) %}
{%- for message in messages %}
    {%- if message.role == 'note' %}{%- continue %}{%- endif %}
    {%- set ns.n = ns.n + 1 %}
    {{- '<|start_header_id|>' + message['role'] + '<|end_header_id|>\\n\\n' }}
    {{- message['content'] | trim + '<|eot_id|>' }}
{%- endfor %}
{{- date_string ~ ns.n ~ ({'é': [1, '<&>']} | tojson) }}
{%- if add_generation_prompt %}{{- '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}{%- endif %}"""
GEMMA = """{{ bos_token }}{% if messages[0]['role'] == 'system' %}\
{% set prefix = messages[0]['content'] + '\\n\\n' %}{% set loop_messages = messages[1:] %}\
{% else %}{% set prefix = '' %}{% set loop_messages = messages %}{% endif %}
{%- for message in loop_messages -%}
    {%- if (message['role'] == 'assistant') -%}{%- set role = "model" -%}
    {%- else -%}{%- set role = message['role'] -%}{%- endif -%}
    {{ '<start_of_turn>' + role + '\\n' + (prefix if loop.first else '') }}
    {%- if message['content'] is string -%}{{ message['content'] | trim }}
    {%- else -%}{% for item in message['content'] %}{{ item['text'] }}{% endfor %}{%- endif -%}
    {{ '<end_of_turn>\\n' }}
{%- endfor -%}
{%- if add_generation_prompt -%}{{ '<start_of_turn>model\\n' }}{%- endif -%}{{ '-' * 3 }}
"""
CHATS: list[list[dict[str, object]]] = [
    [{"role": "user", "content": " Hi! "}],
    [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "¿Qué? <b>🙂</b>"}],
    [
        {"role": "user", "content": "1"},
        {"role": "assistant", "content": "2\n"},
        {"role": "user", "content": "{{ 7 * 7 }}"},
    ],
]


@pytest.mark.parametrize("template", [CHATML, LLAMA2, LLAMA3, GEMMA], ids=["chatml", "llama2", "llama3", "gemma"])
@pytest.mark.parametrize("add", [False, True])
def test_chats_as_transformers_writes_them(template: str, add: bool) -> None:
    transformers = pytest.importorskip("transformers")
    fast = transformers.PreTrainedTokenizerFast(
        tokenizer_object=raw_tokenizer("bytes"), bos_token="<s>", eos_token="</s>"
    )
    for chat in CHATS:
        want = fast.apply_chat_template(chat, chat_template=template, tokenize=False, add_generation_prompt=add)
        got = render_chat(template, chat, add_generation_prompt=add, bos_token="<s>", eos_token="</s>")
        assert got == want
        assert got


def test_a_name_that_is_none_is_not_there() -> None:
    template = "{{ bos_token }}|{{ eos_token is defined }}"
    assert render_chat(template, [], bos_token=None, eos_token="e") == "|True"


@pytest.mark.parametrize(
    ("template", "says"),
    [
        ("{{ raise_exception('no\nsystem role') }}", "no system role"),
        ("a\n{% if %}", "line 2"),
        ("{{ messages[0].content.missing.further }}", "has no attribute"),
        ("{{ ''.__class__.__mro__[1].__subclasses__() }}", "unsafe"),
        ("{{ messages.__class__.__base__ }}", "unsafe"),
        ("{{ raise_exception.__globals__ }}", "unsafe"),
        ("{{ cycler.__init__.__globals__.os.popen('id').read() }}", "unsafe"),
        ("{{ ''|attr('__class__') }}", "unsafe"),
        ("{{ '{0.__class__}'.format(1) }}", "unsafe"),
        ("{{ messages.append(1) }}", "unsafe"),
        ("{% for i in range(10 ** 9) %}x{% endfor %}", "too big"),
        ("{% for i in range(99999) %}{{ 'x' * 99999 }}{% endfor %}", "more than"),
        ("{{ 'x' * 10 ** 10 }}", "too large"),
        ("{{ 10 ** 10 ** 10 }}", "too large"),
        ("{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}", "recursion"),
        ("{% include 'file' %}", "loader"),
    ],
)
def test_a_bad_or_hostile_template_is_refused_in_one_line(template: str, says: str) -> None:
    with pytest.raises(TextError) as e:
        render_chat(template, [{"role": "user", "content": "x"}])
    assert str(e.value).startswith("chat template")
    assert says.lower() in str(e.value).lower()
    assert "\n" not in str(e.value)


def test_a_template_sees_plain_data_only() -> None:
    with pytest.raises(TextError, match=r"^messages: \w+Path is no plain data"):
        render_chat("x", [{"content": Path("x")}])


def test_importing_text_pulls_neither_tokenizers_nor_jinja2() -> None:
    code = "import sys, edgedec.text.template; print(sorted({'tokenizers', 'jinja2'} & set(sys.modules)))"
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert out.stdout.strip() == "[]"


def test_encoding_from_threads_does_not_mix_the_modes() -> None:
    from concurrent.futures import ThreadPoolExecutor

    t = tokenizer("bytes")
    want = {flag: t.encode("a<|end|>b", special=flag) for flag in (False, True)}
    flags = [bool(i % 2) for i in range(400)]

    def jobs() -> Iterator[bool]:
        with ThreadPoolExecutor(4) as pool:
            yield from pool.map(lambda f: t.encode("a<|end|>b", special=f) == want[f], flags)

    assert want[True] != want[False]
    assert all(jobs())


# ── the text of a generation ──


class Told:
    """A text stream by hand: what each token completes, and the rest."""

    def __init__(self, pushed: list[tuple[str, bool]], rest: tuple[str, bool]) -> None:
        self.pushed, self.rest = pushed, rest

    def push(self, token: int) -> tuple[str, bool]:
        return self.pushed[token]

    def flush(self) -> tuple[str, bool]:
        return self.rest


@pytest.mark.parametrize(
    ("pushed", "rest", "texts", "stops"),
    [
        ([("a", False), ("", False), ("b", False)], ("c", False), ["a", "", "b", "c"], False),
        ([("a", False), ("b", False)], ("", False), ["a", "b"], False),
        ([("a", False), ("b", True), ("no", False)], ("no", False), ["a", "b"], True),
        ([("a", False)], ("b", True), ["a", "b"], True),
        ([("a", False)], ("", True), ["a"], True),
    ],
)
def test_a_stop_string_ends_the_pieces(
    pushed: list[tuple[str, bool]], rest: tuple[str, bool], texts: list[str], stops: bool
) -> None:
    closed = list[bool]()

    def tokens() -> Generator[Token]:
        try:
            yield from map(Token, range(len(pushed)))
        finally:
            closed.append(True)

    stats, stream = Stats(finish="length"), Told(pushed, rest)
    found = list(pieces(tokens(), stream, stats))  # type: ignore[arg-type]
    assert [piece.text for piece in found] == texts
    assert [piece.token for piece in found] == [i if i < len(pushed) else None for i in range(len(texts))]
    assert stats.finish == ("stop" if stops else "length")
    assert closed == [True]
