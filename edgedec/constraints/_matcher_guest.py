"""Compiles grammars and follows texts along them, in a worker process: llguidance and the standard library only.

The matcher is an Earley parser over a lazily built lexer (llguidance, after Guidance's token masks). One process holds
the matchers of one grammar, by number: that of the text it was compiled for, and forks of it.
"""

from __future__ import annotations

from typing import Any

# An unusual character may cost a lexer more than the library's default limit (a step of 14 ms); a slow step is better
# than an error.
LIMITS = {"initial_lexer_fuel": 20_000_000, "step_lexer_fuel": 10_000_000}


class Matchers:
    """The matchers of one process, for one vocabulary."""

    def __init__(self, tokenizer: Any, limits: dict[str, int]) -> None:
        self._tokenizer, self._limits = tokenizer, limits
        self._made: dict[int, Any] = {}

    def handle(self, message: dict[str, Any]) -> tuple[dict[str, Any], bytes]:
        """Handle one request: {"do": compile, step, check, validate, shortest, fork or drop, "id": a matcher}. A
        step with "bare" computes no mask."""
        do, number = message["do"], message["id"]
        if do == "drop":
            self._made.pop(number, None)
            return {}, b""
        if do == "fork":
            self._made[message["new"]] = self._made[number].deep_copy()
            return {}, b""
        if do == "compile":
            self._made[number] = self._compiled(message["kind"], message["text"], message["options"])
        matcher, taken = self._made[number], 0
        if message.get("reset"):
            matcher.reset()
        if message.get("back"):
            matcher.rollback(message["back"])
        if do == "check":
            allowed = _allowed(matcher, message["tokens"], message["parents"])
            values, mask = self._state(matcher, 0)
            return {**values, "allowed": allowed}, mask
        if do == "validate":
            state, _ = self._state(matcher, 0, bare=True)
            # Where a text is forced, masks hold its own spelling only.
            forced = state["forced"][:1]
            valid = [
                token in (forced or [token]) and matcher.validate_tokens([token]) > 0 for token in message["tokens"]
            ]
            return {**state, "valid": valid}, b""
        if do == "shortest":
            needs = _shortest(matcher.deep_copy(), self._tokenizer, message)
            values, mask = self._state(matcher, 0)
            return {**values, "needs": needs}, mask
        if message.get("tokens"):
            taken = matcher.try_consume_tokens(message["tokens"])
        return self._state(matcher, taken, message.get("bare", False))

    def _compiled(self, kind: str, text: str, options: dict[str, Any]) -> Any:
        import llguidance

        limits = llguidance.LLParserLimits(**self._limits)
        return llguidance.LLMatcher(self._tokenizer, _notation(kind, text, options), log_level=0, limits=limits)

    def _state(self, matcher: Any, taken: int, bare: bool = False) -> tuple[dict[str, Any], bytes]:
        """A matcher's state, and the mask of the next tokens: one bit per token; none if `bare`."""
        accepting = matcher.is_accepting()
        mask = b"" if bare or matcher.is_error() else matcher.compute_bitmask()
        wrong = matcher.get_error()[:4000] if matcher.is_error() else ""
        stopped = matcher.is_stopped()
        forced = [] if wrong or stopped else matcher.compute_ff_tokens()
        found = {"taken": taken, "stopped": stopped, "accepting": accepting, "wrong": wrong, "forced": forced}
        return {**found, "bare": bare}, mask


def _allowed(matcher: Any, tokens: list[int], parents: list[int]) -> list[bool]:
    """Whether each node of a tree, parents first, is allowed after its path; the matcher's state is restored."""
    below: dict[int, list[int]] = {}
    for node, parent in enumerate(parents):
        below.setdefault(parent, []).append(node)
    found = [False] * len(tokens)

    def visit(parent: int) -> None:
        for node in below.get(parent, ()):
            inner = node in below
            taken = matcher.try_consume_tokens([tokens[node]]) if inner else matcher.validate_tokens([tokens[node]])
            found[node] = taken > 0
            if inner and taken:
                visit(node)
                matcher.rollback(1)

    visit(-1)
    return found


def _shortest(matcher: Any, tokenizer: Any, message: dict[str, Any]) -> int:
    """The tokens of a short completion of a text in JSON, at most `most`. signs: tokens to try in this order, of which
    `quote` is the one that ends a string; quoted: the text stands in a string."""
    count, quoted, escaped = 0, message["quoted"], False
    while count < message["most"] and not matcher.is_stopped() and not matcher.is_accepting():
        tokens = matcher.compute_ff_tokens()
        if not tokens:
            signs = message["quote"] if quoted else message["signs"]
            tokens = next(([token] for token in signs if matcher.validate_tokens([token])), None) or _any(matcher)
        if not tokens or matcher.try_consume_tokens(tokens) < len(tokens):
            return int(message["most"])
        count += len(tokens)
        for sign in tokenizer.decode_bytes(tokens):
            if quoted:
                quoted = escaped or sign != 0x22
                escaped = not escaped and sign == 0x5C
            else:
                quoted = sign == 0x22
    return count


def _any(matcher: Any) -> list[int]:
    """The first token that is allowed."""
    bits = matcher.compute_bitmask()
    at = next((i for i, byte in enumerate(bits) if byte), None)
    return [] if at is None else [8 * at + (bits[at] & -bits[at]).bit_length() - 1]


def _notation(kind: str, text: str, options: dict[str, Any]) -> str:
    """The grammar in llguidance's notation; ValueError if the text is not of the kind."""
    from llguidance import LLMatcher
    from llguidance.gbnf_to_lark import GbnfToLarkError, any_to_lark

    if kind == "json schema":
        return str(LLMatcher.grammar_from_json_schema(text, overrides=options))
    if kind == "regex":
        return str(LLMatcher.grammar_from_regex(text))
    try:
        return str(LLMatcher.grammar_from_lark(text if kind == "choices" else any_to_lark(text)))
    except GbnfToLarkError as error:
        raise ValueError(str(error)) from None


def tokenizer_of(content: str, eos: list[int]) -> Any:
    """The vocabulary in llguidance's form; ValueError if llguidance does not support it."""
    import llguidance

    return llguidance.LLTokenizer(content, None, eos)


def make(message: dict[str, Any]) -> Matchers:
    return Matchers(tokenizer_of(message["tokenizer"], message["eos"]), message.get("limits") or LIMITS)


def setup(message: dict[str, Any]) -> None:
    """The tokenizer is read once; workers are forked with it."""
    import llguidance.gbnf_to_lark  # noqa: F401

    global _matchers
    _matchers = make(message)


def handle(message: dict[str, Any], blob: bytes) -> tuple[dict[str, Any], bytes]:
    return _matchers.handle(message)


_matchers: Matchers
