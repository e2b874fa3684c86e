"""`--device`: the device, of any engine that supports it."""

from __future__ import annotations

from typing import Annotated

import typer

DeviceWord = Annotated[
    str,
    typer.Option(
        "--device",
        metavar="NAME",
        show_default=False,
        help="What computes: cpu (default), auto (the quickest that is here, measured once; one may prefill and "
        "another decode), cuda, opencl, webgpu, dml, coreml, openvino, qnn:SOC; picks the engine too.",
    ),
]
