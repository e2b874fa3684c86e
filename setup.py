"""What pyproject.toml cannot say: compile the engine where a C++ compiler is, and install without it where none is.

EDGEDEC_NO_NATIVE=1 installs without it anywhere.
"""

from __future__ import annotations

import os
import runpy
from pathlib import Path
from typing import Any

from setuptools import Command, setup
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build import build

ROOT = Path(__file__).parent
KERNELS, CUBINS = Path("kernels", "cpu"), Path("kernels", "cuda", "cubins")
CUDA = runpy.run_path(str(ROOT / "kernels" / "cuda" / "sources.py"))
NATIVE = runpy.run_path(str(ROOT / KERNELS / "build.py"))


class BuildNative(Command):
    """Compile the engine into the package."""

    description = "compile the CPU engine"
    user_options: list[Any] = []  # noqa: RUF012 (as setuptools wants it)
    editable_mode = False  # setuptools sets it

    def initialize_options(self) -> None:
        self.build_lib: str | None = None

    def finalize_options(self) -> None:
        self.set_undefined_options("build_py", ("build_lib", "build_lib"))

    @property
    def out(self) -> Path:
        folder = KERNELS if self.editable_mode else Path(str(self.build_lib), "edgedec", "kernels", "cpu")
        return folder / NATIVE["LIBRARY"]

    def run(self) -> None:
        try:
            self.out.parent.mkdir(parents=True, exist_ok=True)
            self.out.unlink(missing_ok=True)  # an older build is worse than none
            if os.environ.get("EDGEDEC_NO_NATIVE", "0") not in ("", "0"):
                raise NATIVE["BuildFailed"]("EDGEDEC_NO_NATIVE is set")
            NATIVE["build"](self.out)
        except (NATIVE["BuildFailed"], OSError) as error:
            self.warn(f"edgedec is installed without its native engine: {error}")
        if CUDA["stale"](ROOT / CUBINS):
            again = "delete it, or python -m edgedec.kernels.cuda.build"
            self.warn(f"{CUBINS} has kernels of other sources, which no GPU will be given: {again}")

    def get_source_files(self) -> list[str]:
        """For the source distribution."""
        return [path.relative_to(ROOT.resolve()).as_posix() for path in NATIVE["source_files"]()]

    def get_outputs(self) -> list[str]:
        return [str(self.out)] if self.out.is_file() else []

    def get_output_mapping(self) -> dict[str, str]:
        return {}


class Build(build):
    sub_commands = [*build.sub_commands, ("build_native", None)]  # noqa: RUF012


class Wheel(bdist_wheel):
    """py3-none-<platform> with the engine, py3-none-any without: it has no Python in it."""

    def run(self) -> None:
        self.run_command("build")
        built = bool(self.get_finalized_command("build_native").get_outputs())
        self.root_is_pure = not built
        self.distribution.has_ext_modules = lambda: built  # so that install goes where the wheel's root is
        super().run()

    def get_tag(self) -> tuple[str, str, str]:
        *_, system = super().get_tag()
        machine = NATIVE["platform"].machine()
        return ("py3", "none", "any" if self.root_is_pure else system.replace("universal2", machine))


setup(cmdclass={"build": Build, "build_native": BuildNative, "bdist_wheel": Wheel})
