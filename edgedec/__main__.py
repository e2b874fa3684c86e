"""`python -m edgedec` is `edgedec`."""

from __future__ import annotations

import sys

from edgedec.cli import main

sys.exit(main())
