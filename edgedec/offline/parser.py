"""Rows of a batch as requests: the options of the generation, and the output row with the result."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from edgedec.constraints import given
from edgedec.constraints.given import GivenConstraint
from edgedec.decoding.config import OPTIONS, parse_options
from edgedec.diffusion.decoding import DiffusionDecoding
from edgedec.errors import EdgedecError, UsageError
from edgedec.fusion import COMMANDS, check_fusion
from edgedec.offline import openai
from edgedec.offline.row import Defaults, Out, RowRequest, RowResult, messages
from edgedec.options import read_json
from edgedec.processors import check_processors
from edgedec.search.choices import CHOICES
from edgedec.search.making import needs_operator

if TYPE_CHECKING:
    from edgedec.constraints import Constraint
    from edgedec.model import Model

# The columns of logits processors and fusions, in words or as JSON, and of how a diffusion model decodes.
PROCESSORS, FUSE, DIFFUSION = "processors", "fuse", "diffusion"
RESULTS = ("row", "text", "texts", "finish_reason", "prompt_tokens", "generated_tokens", "seed", "error")
_KEPT = 16
# Between the seeds of the texts of a row that names none: more than there are rows, so that no two texts draw alike.
_STRIDE = 1 << 20


class RequestParser:
    """Reads the rows of a batch for one model."""

    def __init__(self, model: Model, defaults: Defaults, created: int = 0, job: str = "") -> None:
        """created, job: the time and the name of the job, which OpenAI's format contains."""
        self.model, self.defaults, self.created, self.job = model, defaults, created, job
        self._compiled: OrderedDict[tuple[str, str], Constraint] = OrderedDict()

    def parse(self, number: int, data: Mapping[str, Any], error: str = "") -> RowRequest:
        """The request of a row; anything wrong with it is its `error`."""
        if not error and openai.is_line(data):
            return self._openai(number, data)
        write = _writer(number, data, self.defaults.column)
        if error:
            return RowRequest(write, error=error)
        try:
            request = self.request(number, write, self._ids(data), data, _constraint(data))
            request.choices.check(request.config)
            return request
        except EdgedecError as wrong:
            return RowRequest(write, error=str(wrong))

    def _openai(self, number: int, data: Mapping[str, Any]) -> RowRequest:
        """The request of a line of OpenAI's batch files."""
        write = openai.writer(number, data, self.model.bundle.manifest.name, self.created, self.job)
        try:
            chat, body = openai.body_of(data)
            options = openai.options(body, chat)
            ids = self.model.chat_ids(messages(body.get("messages"))) if chat else self.prompt(body.get("prompt"))
            return self.request(number, write, ids, options, openai.constraint(body))
        except EdgedecError as wrong:
            return RowRequest(write, error=str(wrong))

    def request(
        self,
        number: int,
        write: Callable[[RowResult], Out],
        ids: Sequence[int],
        data: Mapping[str, Any],
        constraint: GivenConstraint | None = None,
    ) -> RowRequest:
        """A request with the defaults, replaced by the options in `data` and the constraint. Raises an error if they
        are invalid."""
        options = parse_options(data)
        if runs := options.get("search") and needs_operator(options["search"]):
            raise UsageError(f"search: {runs} runs a program or opens a file: name it by --search, not in a row")
        config = self.defaults.config.override(options)
        if own := "seed" not in options and config.sampling.temperature > 0:
            config = config.override({"seed": (self.defaults.seed + number) % 2**32})
        processors = data.get(PROCESSORS, self.defaults.processors)
        if PROCESSORS in data:
            check_processors(processors)
        fuse = data.get(FUSE, self.defaults.fuse)
        if FUSE in data:
            check_fusion(fuse, COMMANDS, "in a row; give it with --fuse instead")
        form, choices = constraint[:2] if constraint else self.defaults.constraint, self.defaults.choices.given(data)
        stride = _STRIDE if own else 1
        return RowRequest(write, ids, config, form, processors, fuse, self._diffusion(data), choices, stride)

    def _diffusion(self, data: Mapping[str, Any]) -> str | None:
        """How the row's text is decoded; UsageError for what the model cannot be decoded with."""
        words = data.get(DIFFUSION)
        if words is None:
            return None
        if not isinstance(words, str):
            raise UsageError(f"{DIFFUSION}: must be text, as of --diffusion")
        DiffusionDecoding.of(self.model, words)
        return words

    def constraint(self, kind: str, text: str) -> Constraint:
        """A constraint for one text; compiled once for many."""
        if (kind, text) not in self._compiled:
            self._compiled[kind, text] = given.compiled(self.model, kind, text)
            if len(self._compiled) > _KEPT:
                self._compiled.popitem(last=False)
        self._compiled.move_to_end((kind, text))
        return self._compiled[kind, text].fork()

    def _ids(self, data: Mapping[str, Any]) -> Sequence[int]:
        column = self.defaults.column
        if "messages" in data:
            if column in data:
                raise UsageError(f"{column} and messages: give one of them")
            return self.model.chat_ids(messages(read_json("messages", data["messages"])))
        if column not in data:
            raise UsageError(f"no prompt: needs a column {column!r} or 'messages'")
        return self.prompt(data[column])

    def prompt(self, prompt: object) -> Sequence[int]:
        """The tokens of a prompt that is given as text or as tokens."""
        if isinstance(prompt, str):
            return self.model.tokenizer.encode(prompt)
        if isinstance(prompt, list) and all(type(token) is int for token in prompt):
            return prompt
        raise UsageError("prompt: must be text or a list of tokens")


def _writer(number: int, data: Mapping[str, Any], column: str) -> Callable[[RowResult], Out]:
    """A function that writes the row's number, its columns that are not options, and the result."""
    known = {*OPTIONS, *given.text_options(), PROCESSORS, FUSE, DIFFUSION, *CHOICES, column, "messages"}
    kept: Out = {}
    for name, value in data.items():
        if name not in known:
            while name in RESULTS or name in kept:
                name = f"input_{name}"
            kept[name] = value

    def write(result: RowResult) -> Out:
        if result.error:
            return {"row": number, **kept, "error": result.error}
        if not result.others:
            return {"row": number, **kept, **_text(result, prompt_tokens=result.prompt)}
        return {"row": number, **kept, "texts": [_text(one) for one in result.texts], "prompt_tokens": result.prompt}

    return write


def _text(result: RowResult, **more: int) -> Out:
    """One text of a row."""
    out = {"text": result.text, "finish_reason": result.finish, **more, "generated_tokens": result.generated}
    return out if result.seed is None else {**out, "seed": result.seed}


def _constraint(data: Mapping[str, Any]) -> GivenConstraint | None:
    """The constraint of a row's columns."""
    kinds = [kind for kind in given.text_options() if kind in data]
    return given.joined([GivenConstraint(kind, given.text_of(kind, data[kind]), kind) for kind in kinds])
