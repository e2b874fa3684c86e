"""The types of the JavaScript library, by TypeScript's compiler: in its code, and in programs that use it."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path

import pytest
from weblibrary import NODE, WEB

MODULES = Path(__file__).parent / "node_modules"
COMPILER = MODULES / "typescript" / "bin" / "tsc"
pytestmark = pytest.mark.skipif(
    NODE is None or not COMPILER.is_file(), reason="no TypeScript: npm install --prefix tests/web"
)
OPTIONS = {
    "noEmit": True,
    "strict": True,
    "target": "es2022",
    "module": "nodenext",
    "lib": ["es2023", "dom", "dom.iterable", "dom.asynciterable"],
    "typeRoots": [str(MODULES / "@types")],
    "types": ["node"],
}
PROGRAM = """
import { open, together, EdgedecError, type Token } from "edgedec";
import { open as openInWorker } from "edgedec/worker";

const model = await open("nano.edb", { kv: "int8", threads: 4, onProgress: (done, total) => done / total });
const adapter = await model.adapter("tales.lora");
const session = model.session({ speculate: "copy+recycling", draft: 4, adapter });
const texts: string[] = [];
const options = { maxTokens: 3, seed: 7n, schema: { type: "object" } };
for await (const token of session.generate("Once", options)) texts.push(token.text);
const ids: number[] = session.fork().ids;
for await (const { index, token } of together([{ session, prompt: ids, options: { maxTokens: 3 } }]))
  console.log(index, (token satisfies Token).logprob);
const remote = await (await openInWorker(new URL("nano.edb", import.meta.url))).session();
const logits: Float32Array | null = await remote.logits();
console.log(texts.length, logits?.length, session.result?.calls, new EdgedecError("x", "usage").code);
model.close();
"""


def complaints(folder: Path, **more: object) -> list[str]:
    settings = {"compilerOptions": OPTIONS | more, "include": [f"{folder}/*.js", f"{folder}/*.ts"]}
    (folder / "tsconfig.json").write_text(json.dumps(settings), "utf-8")
    assert NODE is not None
    done = subprocess.run([NODE, COMPILER, "-p", folder], capture_output=True, text=True, check=False)
    return done.stdout.splitlines()


def test_the_librarys_code(tmp_path: Path) -> None:
    for path in [*WEB.glob("*.js"), *WEB.glob("*.d.ts"), WEB / "package.json"]:
        shutil.copy(path, tmp_path)
    assert complaints(tmp_path, allowJs=True, checkJs=True) == []
    assert len(list(tmp_path.glob("*.js"))) > 10


def test_a_program_that_uses_it(tmp_path: Path) -> None:
    package = tmp_path / "node_modules" / "edgedec"
    package.mkdir(parents=True)
    for path in [*WEB.glob("*.d.ts"), WEB / "package.json"]:
        shutil.copy(path, package)
    program = tmp_path / "program.mts"
    program.write_text(PROGRAM, "utf-8")
    (tmp_path / "package.json").write_text('{"type": "module"}', "utf-8")
    settings = {"compilerOptions": OPTIONS, "files": [str(program)]}
    for text, n in ((PROGRAM, 0), (PROGRAM.replace("options: { maxTokens: 3", "options: { maxToken: 3"), 1)):
        program.write_text(text, "utf-8")
        (tmp_path / "tsconfig.json").write_text(json.dumps(settings), "utf-8")
        done = subprocess.run([str(NODE), COMPILER, "-p", tmp_path], capture_output=True, text=True, check=False)
        assert (done.returncode != 0, "maxToken" in done.stdout) == (n > 0, n > 0), done.stdout
