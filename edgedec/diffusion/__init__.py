"""Decoding of diffusion language models: masked positions of a block are filled in any order, several in a call.

A text grows block by block. Each call runs the block that is being filled, as a group of rows that see each other, and
its logits say what each masked position may hold; a schedule chooses the positions that are filled. One loop
(`edgedec.diffusion.loop`) yields these calls, so sessions, batches and the server run it as they run any other.

What differs between methods is a plug-in, one file each: schedules (what is filled), blocks (where a block ends),
keeping (what is run again and what the cache keeps), ends (what an end token does) and verify (which states of a block
a call tries).
"""

from edgedec.diffusion.canvas import Canvas
from edgedec.diffusion.host import DiffusionHost, MethodFacts
from edgedec.diffusion.seams import Blocks, EndRule, FillSchedule, Keeping, PassPlan
from edgedec.diffusion.seen import SeenBlock
from edgedec.diffusion.tracing import FillTrace
from edgedec.diffusion.words import OFF, Chosen, Methods, parse_diffusion

__all__ = [
    "OFF",
    "Blocks",
    "Canvas",
    "Chosen",
    "DiffusionHost",
    "EndRule",
    "FillSchedule",
    "FillTrace",
    "Keeping",
    "MethodFacts",
    "Methods",
    "PassPlan",
    "SeenBlock",
    "parse_diffusion",
]
