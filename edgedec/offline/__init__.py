"""Offline batches: a file of prompts in, a file of texts out, through continuous batching; resumable.

reading   JSONL, CSV, Parquet -> rows, one by one
asking    a row -> what to generate, and how its result is written (also OpenAI's batch lines: openai)
making    what to generate -> texts, many at a time
journal   results as they come, beside the output; what a killed run leaves
writing   a finished journal -> JSONL or Parquet, in input order
job       all of it
worker    making on another machine
cluster   all of it by many workers, through Ray Data
"""

from edgedec.offline.asking import Asking
from edgedec.offline.job import Job, Progress

__all__ = ["Asking", "Job", "Progress"]
