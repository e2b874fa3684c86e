"""Programs over prompts, on the public API: several texts at a time, plans, cheatsheets, pools of prompts, rounds.

A session's own verbs are `fork`, `extend`, `gen`, `select` and `score` (`edgedec.verbs`). What is here is made of them,
or of a function from a prompt to a text, so that any model, or a stand-in, can be behind it.
"""

from edgedec.prompting.asking import Ask, asker
from edgedec.prompting.cheatsheet import Cheatsheet
from edgedec.prompting.plans import Planned, planned
from edgedec.prompting.pool import PromptPool
from edgedec.prompting.rounds import Attempt, improved
from edgedec.prompting.together import WrittenText, gen_each, several

__all__ = [
    "Ask",
    "Attempt",
    "Cheatsheet",
    "Planned",
    "PromptPool",
    "WrittenText",
    "asker",
    "gen_each",
    "improved",
    "planned",
    "several",
]
