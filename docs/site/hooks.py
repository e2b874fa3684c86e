"""What the site's generator needs besides: the README as the first page, and links to files that are no pages as text."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File

ROOT = Path(__file__).parents[2]
REFERENCE = """# Python API

Made from the docstrings. `import edgedec` gives these names; what is below `edgedec.` and not here is for those who
extend edgedec.

::: edgedec.model.open
::: edgedec.model.Model
::: edgedec.session.Session
::: edgedec.session.TextPiece
::: edgedec.decoding.config.GenerationConfig
::: edgedec.sampling.settings.Sampling
::: edgedec.decoding.messages.Token
::: edgedec.decoding.messages.Stats
::: edgedec.decoding.scheduler.batch.Batch
::: edgedec.constraints.json_schema
::: edgedec.constraints.json_object
::: edgedec.constraints.regex
::: edgedec.constraints.grammar
::: edgedec.constraints.choices
::: edgedec.text.tokenizer.Tokenizer
::: edgedec.errors
"""


def on_files(files: Any, config: Any) -> Any:
    """The pages that are not files of docs/."""
    readme = (ROOT / "README.md").read_text("utf-8")
    index = re.sub(r"\]\(docs/", "](", readme)
    for name, text in (("index.md", index), ("reference.md", REFERENCE)):
        files.append(File.generated(config, name, content=text))
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, files: Any) -> str:
    """Fences with a name after their language lose it; a link out of docs/ becomes its text."""
    markdown = re.sub(r"^```python \w+$", "```python", markdown, flags=re.MULTILINE)
    outside = r"\[([^\]]+)\]\((?:\.\./|models/|edgedec/|kernels/|tests/)[^)]*\)"
    return re.sub(outside, r"\1", markdown)
