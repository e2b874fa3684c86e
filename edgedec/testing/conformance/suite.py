"""The checks by name, and their findings on a runtime."""

from __future__ import annotations

import tempfile
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, TypeVar

from edgedec.bundle import Bundle
from edgedec.errors import RuntimeUnavailable, UsageError
from edgedec.runtime import RUNTIMES, Capabilities, Runtime, RuntimeOptions
from edgedec.spec import ModelSpec
from edgedec.spec.newer import newer
from edgedec.testing.conformance.bundles import random_weights, write_bundle
from edgedec.testing.conformance.models import MODELS
from edgedec.testing.conformance.rounding import rounded

Open = Callable[[Bundle, RuntimeOptions], Runtime]
T = TypeVar("T")
State = Literal["passed", "failed", "not declared"]


class Subject:
    """The runtime under test, and the reference, on the models of the suite. `capabilities`: as it declares them."""

    def __init__(
        self, name: str, opened: Open, folder: Path, bundle: Bundle | None = None, expected: Bundle | None = None
    ) -> None:
        """bundle: the user's, instead of the suite's models; expected: the same model for the reference, which has to
        be given where that one cannot open the bundle."""
        self.name, self._open, self._folder, self._own = name, opened, folder, bundle
        self._expected = expected or bundle
        self._runtimes: dict[tuple[str, str, str, bool], Runtime] = {}
        self._bundles: dict[tuple[str, str], Bundle] = {}
        self.capabilities = self._declared()

    def _declared(self) -> Capabilities:
        """The runtime's declared capabilities, on the first model that it opens."""
        errors = list[RuntimeUnavailable]()
        for model in self.models():
            try:
                return self.runtime(model).capabilities
            except RuntimeUnavailable as error:
                errors.append(error)
        raise errors[0]

    def models(self) -> list[str]:
        """The models that the suite runs on; a bundle of the user's instead of them if one was given."""
        return ["bundle"] if self._own is not None else list(MODELS)

    def kinds(self, model: str) -> tuple[str, ...]:
        """The kinds of blocks of a model."""
        return self._own.spec.kinds if self._own is not None else MODELS[model].kinds

    def facts(self, model: str) -> tuple[str, ...]:
        """What a model has of `spec.newer`."""
        return newer(self._own.spec if self._own is not None else MODELS[model])

    @property
    def low_bits(self) -> bool:
        """Whether the runtime declares weights of int3 and int2."""
        return self.name in RUNTIMES and RUNTIMES.facts(self.name).low_bits

    def bundle(self, model: str, fmt: str = "f32") -> Bundle:
        if self._own is not None:
            return self._own
        if (model, fmt) not in self._bundles:
            folder = self._folder / f"{model.replace(' ', '-')}-{fmt}"
            spec = MODELS[model]
            weights = random_weights(spec)
            self._bundles[model, fmt] = write_bundle(folder, spec, weights, fmt, _with_files(self.name, spec))  # type: ignore[arg-type]
        return self._bundles[model, fmt]

    def runtime(self, model: str, kv: str | None = None, fmt: str = "f32") -> Runtime:
        """The runtime under test; `kv`: the bundle's own cache format by default."""
        return self._opened(model, kv, fmt, True)

    def reference(self, model: str, kv: str | None = None, fmt: str = "f32") -> Runtime:
        return self._opened(model, kv, fmt, False)

    def both(self, model: str) -> tuple[Runtime, Runtime]:
        """The runtime under test and the reference."""
        return self.runtime(model), self.reference(model)

    def _opened(self, model: str, kv: str | None, fmt: str, tested: bool) -> Runtime:
        key = (model, kv or "", fmt, tested)
        if key not in self._runtimes:
            from edgedec.runtimes import reference

            opened = self._open if tested else reference.open
            bundle = self.bundle(model, fmt) if tested or self._expected is None else self._expected
            self._runtimes[key] = opened(bundle, RuntimeOptions(threads=1, kv=kv))
        return self._runtimes[key]


def _with_files(name: str, spec: ModelSpec) -> tuple[str, ...]:
    """The artifacts that the runtime needs, or its device."""
    from edgedec.export.artifacts import files_for

    return files_for(name, spec)


@dataclass(frozen=True)
class Check:
    """`models`: those it is about (empty: all). needs: the capability without which a call of its kind is refused."""

    name: str
    run: Callable[[Subject, str], None]
    models: tuple[str, ...] = ()
    needs: str = ""


CHECKS: list[Check] = []
# By capability: a call that needs it, which a runtime without it refuses.
REFUSED: dict[str, Callable[[Runtime], object]] = {}


def refused_without(needs: str) -> Callable[[Callable[[Runtime], T]], Callable[[Runtime], T]]:
    """Register a call that a runtime without this capability must reject."""

    def register(function: Callable[[Runtime], T]) -> Callable[[Runtime], T]:
        REFUSED[needs] = function
        return function

    return register


def check(
    name: str, *models: str, needs: str = ""
) -> Callable[[Callable[[Subject, str], None]], Callable[[Subject, str], None]]:
    """Register a check: it raises AssertionError, or anything else, where the runtime is wrong."""

    def register(function: Callable[[Subject, str], None]) -> Callable[[Subject, str], None]:
        CHECKS.append(Check(name, function, models, needs))
        return function

    return register


@dataclass(frozen=True)
class Finding:
    """The result of one check on one model."""

    check: str
    model: str
    state: State
    message: str = ""


@dataclass
class Report:
    """All findings of a run."""

    runtime: str
    findings: list[Finding] = field(default_factory=list)

    @property
    def failed(self) -> list[Finding]:
        return [finding for finding in self.findings if finding.state == "failed"]

    def to_json(self) -> dict[str, object]:
        return {
            "runtime": self.runtime,
            "passed": not self.failed,
            "findings": [vars(finding) for finding in self.findings],
        }


def run_suite(
    name: str,
    opened: Open,
    bundle: Bundle | None = None,
    progress: Callable[[Finding], None] = lambda finding: None,
    expected: Bundle | None = None,
) -> Report:
    """Every check on every model it is about; each finding is given to `progress` too. expected: the model of `bundle`
    as the reference runs it."""
    report = Report(name)
    with _subject(name, opened, bundle, expected) as subject:
        for model in subject.models():
            for one in CHECKS:
                if not one.models or model in one.models or model == "bundle":
                    finding = _finding(one, subject, model)
                    report.findings.append(finding)
                    progress(finding)
    return report


@contextmanager
def _subject(name: str, opened: Open, bundle: Bundle | None, expected: Bundle | None) -> Iterator[Subject]:
    with tempfile.TemporaryDirectory(prefix="edgedec-", ignore_cleanup_errors=True) as folder:
        yield Subject(name, opened, Path(folder), bundle, expected)


def _finding(one: Check, subject: Subject, model: str) -> Finding:
    lacking = [kind for kind in subject.kinds(model) if kind not in subject.capabilities.kinds]
    lacking = lacking or [fact for fact in subject.facts(model) if fact not in subject.capabilities.facts]
    missing = one.needs and not getattr(subject.capabilities, one.needs)
    try:
        if lacking:
            _refuses_kinds(subject, model, lacking)
        elif missing:
            _refuses_call(REFUSED[one.needs], subject, model)
        else:
            with rounded(subject.capabilities.rounding):
                one.run(subject, model)
    except Exception as error:
        return Finding(one.name, model, "failed", _message(error))
    if lacking or missing:
        return Finding(one.name, model, "not declared", ", ".join(lacking) or one.needs)
    return Finding(one.name, model, "passed")


def _refuses_kinds(subject: Subject, model: str, lacking: Sequence[str]) -> None:
    """A runtime that lacks kinds of blocks, or facts of them, refuses the bundle and names them."""
    try:
        subject.runtime(model)
    except RuntimeUnavailable as error:
        if not all(kind in str(error) for kind in lacking):
            raise AssertionError(f"refuses the bundle but does not name {', '.join(lacking)}: {error}") from None
        return
    raise AssertionError(f"declares no {', '.join(lacking)} and opens a model that has them")


def _refuses_call(needing: Callable[[Runtime], object], subject: Subject, model: str) -> None:
    try:
        needing(subject.runtime(model))
    except UsageError:
        return
    raise AssertionError("does not declare it, and does not refuse the call (UsageError)")


def _message(error: Exception) -> str:
    """One line: what was wrong, and where in the suite."""
    text = " ".join(str(error).split()) or type(error).__name__
    frame = traceback.extract_tb(error.__traceback__)[-1]
    where = f"{Path(frame.filename).name}:{frame.lineno}"
    kind = "" if isinstance(error, AssertionError) else f"{type(error).__name__}: "
    return f"{kind}{text[:300]} ({where})"
