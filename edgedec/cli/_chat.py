"""A conversation at the terminal: its messages, and the slash commands. A method `do_x` is the command /x."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from edgedec.cli._app import complain
from edgedec.cli._flags import with_seed
from edgedec.cli._history import keep_latest, latest_that_fit, turns
from edgedec.cli._stream import Generation, stats_line
from edgedec.decoding.config import OPTIONS, GenerationConfig
from edgedec.errors import ContextFull, EdgedecError, UsageError
from edgedec.session import Session
from edgedec.storage.files import replacing

FORMAT = "edgedec-chat"
# /set takes the short flags too.
_NAMES = {"temp": "temperature", "typical": "typical_p", "repeat_penalty": "repetition_penalty"}
_SETTINGS = {name: option for name, option in OPTIONS.items() if option.kind in ("integer", "number", "boolean")}


class Chat:
    """Messages and settings; `take` is one line of input."""

    def __init__(
        self, session: Session, config: GenerationConfig, show_stats: bool = False, slide: bool = False
    ) -> None:
        self.session, self.config, self.show_stats, self.slide = session, config, show_stats, slide
        self.messages: list[dict[str, str]] = []
        self.last: Generation | None = None
        self.failed = False

    def take(self, line: str) -> bool:
        """Process a command or a user turn; False at the end. An error is printed, and the chat continues."""
        try:
            if line.startswith("/"):
                return self._command(line[1:])
            if line.strip():
                self._ask(line)
        except EdgedecError as error:
            complain("edgedec", str(error))
            self.failed = True
        return True

    def system(self, text: str) -> None:
        """Set or replace the system message."""
        self.messages = [m for m in self.messages if m["role"] != "system"]
        self.messages.insert(0, {"role": "system", "content": text})

    def _command(self, line: str) -> bool:
        name, _, rest = line.partition(" ")
        action = getattr(self, f"do_{name}", None) if name.isidentifier() else None
        if action is None:
            raise UsageError(f"no command /{name}; /help lists them")
        return action(rest.strip()) is not False

    def _ask(self, text: str) -> None:
        self.messages.append({"role": "user", "content": text})
        try:
            self._answer()
        except EdgedecError:
            self.messages.pop()  # a turn that cannot be read would fail every turn after it
            raise

    def _answer(self) -> None:
        """Stream the answer to the messages; Ctrl-C ends it, and the text so far stays."""
        ids = self._prompt()
        pieces: list[str] = []
        try:
            self._stream(ids, pieces)
        except KeyboardInterrupt:
            print()
        except EdgedecError as error:
            if not pieces:
                raise
            print()
            why = _full(self.session.capacity) if isinstance(error, ContextFull) else error
            complain("edgedec", f"the answer ends here: {why}")
            self.failed = True
        self.messages.append({"role": "assistant", "content": "".join(pieces)})
        if self.show_stats:
            self.do_stats("")

    def _stream(self, ids: list[int], pieces: list[str]) -> None:
        """Print the answer and add it to `pieces`; a full context does not end it where turns can be dropped."""
        config, answered = with_seed(self.config), list[int]()
        while True:
            capped, room = config, self.session.capacity - len(ids)
            left = None if config.max_tokens is None else config.max_tokens - len(answered)
            droppable = self.slide and config.constraint is None and len(turns(self.messages)[1]) > 1
            if left is not None or droppable:
                capped = config.override(
                    {"max_tokens": room if left is None else min(left, room) if droppable else left}
                )
            self.last = Generation(self.session, capped)
            for piece in self.last.pieces(ids):
                pieces.append(piece)
                print(piece, end="", flush=True)
            answered += [token.token for token in self.last.tokens]
            if not (droppable and self.session.finish_reason == "length" and len(self.last.tokens) == room):
                break
            ids = self._drop_turns(self.session.capacity // 2, len(answered)) + answered
        print(flush=True)
        if self.session.finish_reason == "context":
            complain("edgedec", f"the answer ends here: {_full(self.session.capacity)}")

    def _prompt(self) -> list[int]:
        """The messages as tokens, which leave room for an answer; ContextFull if there is none."""
        capacity = self.session.capacity
        ids = self.session.model.chat_ids(self.messages)
        if len(ids) >= capacity and self.slide:
            ids = self._drop_turns(capacity // 2, 0)
        if len(ids) >= capacity and not self.slide:
            raise ContextFull(f"{len(ids)} tokens: {_full(capacity)}")
        return ids

    def _drop_turns(self, most: int, answered: int) -> list[int]:
        """Drop the oldest whole turns until the rest has at most `most` tokens, with a message; returns the rest as
        tokens, which the next call reads again. The turn in progress stays."""
        model, before = self.session.model, len(turns(self.messages)[1])
        n = latest_that_fit(self.messages, lambda m: len(model.chat_ids(m)) + answered, most)
        n = min(n, before - 1) if answered and before > 1 else n
        self.messages = keep_latest(self.messages, n)
        if before > n:
            dropped = f"{before - n} oldest turn{'s' * (before - n > 1)}"
            print(f"\n(the context of {self.session.capacity} tokens is full: the {dropped} dropped)", file=sys.stderr)
        return model.chat_ids(self.messages)

    def do_help(self, _: str) -> None:
        """/help                 this list"""
        for name in sorted(vars(Chat)):
            if name.startswith("do_"):
                print(getattr(self, name).__doc__)

    def do_exit(self, _: str) -> bool:
        """/exit                 leave"""
        return False

    def do_reset(self, _: str) -> None:
        """/reset                forget all turns, keep the system message"""
        self.messages = [m for m in self.messages if m["role"] == "system"]

    def do_compact(self, count: str) -> None:
        """/compact [N]          drop the oldest turns: keep the last N, or what fits half of the context"""
        if count and not count.isdecimal():
            raise UsageError(f"/compact {count}: must be a number of turns")
        before, model = len(turns(self.messages)[1]), self.session.model
        room = self.session.capacity // 2
        n = int(count) if count else latest_that_fit(self.messages, lambda m: len(model.chat_ids(m)), room)
        self.messages = keep_latest(self.messages, n)
        kept = min(n, before)
        print(f"{kept} of {before} turns kept", file=sys.stderr)

    def do_system(self, text: str) -> None:
        """/system TEXT          set the system message and start over; without TEXT, drop it"""
        self.messages = []
        if text:
            self.system(text)

    def do_regen(self, _: str) -> None:
        """/regen                answer the last turn again"""
        if not self.messages or self.messages[-1]["role"] != "assistant":
            raise UsageError("/regen: there is no answer yet")
        old = self.messages.pop()
        try:
            self._answer()
        except EdgedecError:
            self.messages.append(old)
            raise

    def do_stats(self, _: str) -> None:
        """/stats                counts and speed of the last answer"""
        if self.last is None:
            raise UsageError("/stats: there is no answer yet")
        print(stats_line(self.last.stats()), file=sys.stderr)

    def do_set(self, setting: str) -> None:
        """/set temp=0.7         change a setting: the sampling flags, seed, max-tokens; alone, show them"""
        if not setting:
            values = {**vars(self.config), **vars(self.config.sampling)}
            for name in OPTIONS:
                print(f"{name} = {values[name]}")
            return
        name, value = _setting(setting)
        self.config = self.config.override({name: value})

    def do_save(self, file: str) -> None:
        """/save FILE            write the conversation as JSON"""
        if not file:
            raise UsageError("/save: needs a file name")
        content = {"format": FORMAT, "messages": self.messages}
        try:
            with replacing(Path(file)) as target:
                target.write(json.dumps(content, ensure_ascii=False, indent=2).encode() + b"\n")
        except OSError as error:
            raise UsageError(f"/save {file}: {error.strerror or error}") from None

    def do_load(self, file: str) -> None:
        """/load FILE            continue a saved conversation"""
        if not file:
            raise UsageError("/load: needs a file name")
        try:
            self.messages = _messages(json.loads(Path(file).read_text("utf-8")))
        except OSError as error:
            raise UsageError(f"/load {file}: {error.strerror or error}") from None
        except (ValueError, RecursionError):
            raise UsageError(f"/load {file}: not a saved conversation") from None


def _full(capacity: int) -> str:
    return (
        f"the context of {capacity} tokens is full; /compact drops the oldest turns, /reset all, "
        "and --on-full slide does so by itself"
    )


def _setting(text: str) -> tuple[str, Any]:
    """ "top-k=40" -> ("top_k", 40)."""
    flag, _, value = text.partition("=")
    name = flag.strip().lstrip("-").replace("-", "_")
    name = _NAMES.get(name, name)
    if name not in _SETTINGS:
        raise UsageError(f"/set {flag.strip()}: no such setting; there are: {', '.join(sorted(_SETTINGS))}")
    if (name, value.strip()) == ("max_tokens", "-1"):
        return name, None
    try:
        return name, _SETTINGS[name].parse(value.strip())
    except UsageError:
        kind = "true or false" if _SETTINGS[name].kind == "boolean" else "a number"
        raise UsageError(f"/set {flag.strip()}: {value.strip()!r} is not {kind}") from None


def _messages(content: Any) -> list[dict[str, str]]:
    """The messages of a saved conversation; ValueError if it is none."""
    if not isinstance(content, dict) or content.get("format") != FORMAT:
        raise ValueError("format")
    messages: list[dict[str, str]] = content.get("messages", [])
    if not isinstance(messages, list):
        raise ValueError("messages")
    for message in messages:
        plain = isinstance(message, dict) and all(isinstance(value, str) for value in message.values())
        if not plain or set(message) != {"role", "content"}:
            raise ValueError("message")
    return messages
