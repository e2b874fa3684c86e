"""The sections of the troubleshooting page: each kind of error, and what to do."""

from __future__ import annotations

HEAD = """# Troubleshooting

Every message that edgedec gives on purpose, by kind; `…` stands for what differs. Made from the sources by
`docs/site/troubleshooting.py`. In Python all are `edgedec.EdgedecError`; on the command line each is one line on stderr, and the
exit code is 1 (2 for flags that are misused, 130 after Ctrl-C). The [server's answers](#apierror), the [C library's](#c),
[JavaScript's](#javascript) and [Kotlin's](#kotlin) have sections of their own; a message with a colon in it may end with one of the
[reasons](#reasons), with the system's own word for a file (`PATH: No such file or directory`), or with what another program said.

**Where to look first:** `edgedec doctor` says what this machine has and what is missing; `edgedec verify BUNDLE` whether a bundle is whole;
`edgedec run --verbose` where the time goes; `edgedec cache` what is kept on disk.

| symptom | |
| --- | --- |
| slow, and `doctor` says that `auto` is ort | the CPU engine was not compiled: [installing](install.md) |
| the first text of a model begins after a pause | the weights are read from disk for the first time; `--verbose` shows it |
| a chat ends in the middle of a sentence | the context is full: `/compact`, `/reset`, or `--on-full slide` |
| text is noise | a base model without its chat template, or formats that are too small: [choosing formats](choosing-formats.md) |
| JSON that is cut off | `--max-tokens` ended it; give more |
"""
# What the errors of a kind have in common.
KINDS = {
    "BundleNotFound": "There is no bundle at that place. `edgedec export CHECKPOINT -o BUNDLE` makes one; `nano` is always there.",
    "BundleVersion": "The bundle was made by another version of edgedec: export it again, or update edgedec.",
    "BundleCorrupt": "A file is missing, cut short or changed. `edgedec verify` names it; export or download the bundle again.",
    "BundleUnsafe": "The bundle names files outside its folder, or its signature is not right. Do not use it.",
    "BundleError": "The bundle cannot be written: a full disk, or a folder without permission.",
    "CheckpointError": "The checkpoint cannot be exported as it is.",
    "UnknownArchitecture": "No file in `models/` knows this `model_type`: [adding one](extending.md#add-an-architecture).",
    "BadTensor": "A tensor of the checkpoint is missing, too many, of another shape, or not finite: download it again, or it was "
    "saved wrongly.",
    "RuntimeUnavailable": "A package or an engine is missing here, or the engine cannot run what was asked.",
    "ContextFull": "The text has no room: a shorter prompt, fewer tokens, a larger `-c`, or `--on-full slide`.",
    "SessionError": "A saved session is of another bundle, cache format or engine, or damaged: start a new one.",
    "TextError": "The tokenizer or the chat template cannot do what was asked.",
    "LimitExceeded": "A schema, grammar, chat template or tokenizer needs more than [what strangers write may have](constraints.md#limits): "
    "make it smaller; `EDGEDEC_SANDBOX=off` sets no limits, for what you trust.",
    "UsageError": "An argument is out of range, or contradicts another.",
    "BadParameter": "A flag is misused: `edgedec COMMAND --help`.",
    "EdgedecError": "Something else failed, often while measuring; files of arrays (adapters, saved sessions) that are damaged.",
    "APIError": "What the server answers a request, with the HTTP status. 400: mend the request; 401: the key; 404: `GET /v1/models` names what "
    "is there; 408, 429, 503: try again, after `Retry-After` seconds where it is given; 5xx: see the server's log.",
    "print": "Notes on stderr: the command goes on, unless they say otherwise.",
    "MachineMissing": "A check of [generated sources](gpu-engines.md#kernel-sources) needs a driver or a package.",
}
# Errors of other kinds, whose text stands in a message above, after its colon or in its brackets.
REASONS = {
    "BuildFailed": "compiling the engine or the library",
    "CodeError": "a compressed cache",
    "CudaBuildFailed": "compiling for a GPU, or its emulation",
    "DeviceError": "a GPU or its driver",
    "EOFError": "a worker process",
    "Failed": "building the Android app",
    "ImportError": "loading the engine",
    "MemoryError": "memory",
    "OSError": "files and processors",
    "ReplicaGone": "a replica of the server",
    "RuntimeError": "processes beside this one",
    "SecurityError": "a chat template",
    "TemplateError": "a chat template",
    "ValueError": "a value, a file or a guest's reply",
}
# Never shown as an error of edgedec.
INTERNAL = {
    "Abort": "Ctrl-C at a question",
    "AssertionError": "a defect of ours, or a finding of the conformance suite, which prints it",
    "AttributeError": "Python's protocol of attributes",
    "BrokenPipeError": "the reader of the output is gone",
    "Exit": "an exit code, after the message",
    "IndexError": "Python's protocol of items; bounds of arrays inside",
    "KeyError": "Python's protocol of items",
    "KeyboardInterrupt": "Ctrl-C",
    "MaskPending": "a signal between the parts of the decoding loop",
    "NotImplementedError": "an interface's method",
    "StopIteration": "Python's protocol of iteration",
    "SystemExit": "an exit code, after the message",
    "TimeoutError": "becomes a LimitExceeded",
    "TypeError": "a verb of the command line that is declared wrongly",
    "Undecided": "a signal between the parts of the decoding loop",
}
# Of other languages: the advice of their sections.
LANGUAGES = {
    "C": "`edgedec_last_error()` after a status other than `EDGEDEC_OK`, [in C and C++](c-library.md); Java, Swift and JavaScript pass them on.",
    "JavaScript": "`EdgedecError` with a `code`, [in browsers and node](web.md), and what the chat page says.",
    "Kotlin": "Exceptions of [the Kotlin library](android.md), each an `EdgedecException`.",
}
