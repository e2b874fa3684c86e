"""Offline batches: a file of prompts in, a file of texts out, through continuous batching; resumable.

reading   JSONL, CSV, Parquet -> rows, one by one
row       a row's request and its result
parser    a row -> its request, and how its result is written (OpenAI's batch lines: openai)
runner    requests -> texts, many at a time
journal   results as they come, beside the output; what a killed run leaves
writing   a finished journal -> JSONL or Parquet, in input order
job       all of it
worker    the runner on another machine
cluster   all of it by many workers, through Ray Data
"""

from edgedec.offline.job import BatchJob, Progress
from edgedec.offline.row import Defaults

__all__ = ["BatchJob", "Defaults", "Progress"]
