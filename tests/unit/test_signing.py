"""Signed manifests: pinned keys, signatures of minisign's format, and what is refused."""

from __future__ import annotations

import base64
import hashlib
import json
import os
import shutil
import stat
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

from edgedec.bundle import MANIFEST, Bundle
from edgedec.bundle.locate import NANO, find
from edgedec.cli._app import app
from edgedec.errors import BundleCorrupt, BundleUnsafe, EdgedecError, UsageError
from edgedec.export.amend import add_files
from edgedec.runtime.trust import check_code, trusting
from edgedec.signing import SIGNATURE, ed25519, keys_folder, pin, pinned, read_public, signed_by, unpin
from edgedec.signing.keys import PublicKey, Signature, public_text, read_signature, signature_text
from edgedec.signing.makers import SecretKey, is_locked, new_key, read_key, scrypt_sizes, sign, write_key

ed = pytest.importorskip("cryptography.hazmat.primitives.asymmetric.ed25519")
CODE = "tvm-x86-64-v3.so"


@pytest.fixture(autouse=True)
def keys(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("EDGEDEC_KEYS", str(tmp_path / "keys"))
    return tmp_path / "keys"


@pytest.fixture(scope="module")
def maker() -> SecretKey:
    return new_key()


@pytest.fixture
def bundle(tmp_path: Path) -> Bundle:
    """nano with a file of code."""
    folder = tmp_path / "nano"
    shutil.copytree(find(NANO), folder)
    return add_files(Bundle.open(folder), {CODE: b"\x7fELF" + bytes(range(100))}, lambda manifest: manifest)


# ---- Ed25519 -----------------------------------------------------------------------------------------

# RFC 8032, 7.1: secret, public, message, signature.
RFC = [
    (
        "9d61b19deffd5a60ba844af492ec2cc44449c5697b326919703bac031cae7f60",
        "d75a980182b10ab7d54bfed3c964073a0ee172f3daa62325af021a68f707511a",
        "",
        "e5564300c360ac729086e2cc806e828a84877f1eb8e5d974d873e065224901555fb8821590a33bacc61e39701cf9b46bd25bf5f0595bbe2465"
        "5141438e7a100b",
    ),
    (
        "4ccd089b28ff96da9db6c346ec114e0f5b8a319f35aba624da8cf6ed4fb8a6fb",
        "3d4017c3e843895a92b70aa74d1b7ebc9c982ccf2ec4968cc0cd55f12af4660c",
        "72",
        "92a009a9f0d4cab8720e820b5f642540a2b27b5416503f8fb3762223ebdb69da085ac1e43e15996e458f3613d0f11d8c387b2eaeb4302aeeb0"
        "0d291612bb0c00",
    ),
]


@pytest.mark.parametrize(("secret", "public", "message", "signature"), RFC)
def test_the_rfcs_signatures_are_right(secret: str, public: str, message: str, signature: str) -> None:
    del secret
    key, said, raw = bytes.fromhex(public), bytes.fromhex(message), bytes.fromhex(signature)
    assert ed25519.verify(key, said, raw)
    assert not ed25519.verify(key, said + b"x", raw)


@settings(max_examples=25, deadline=None)
@given(st.binary(min_size=32, max_size=32), st.binary(max_size=200), st.integers(0, 64 * 8 - 1))
def test_it_agrees_with_another_library(seed: bytes, message: bytes, bit: int) -> None:
    signer = ed.Ed25519PrivateKey.from_private_bytes(seed)
    public, signature = signer.public_key().public_bytes_raw(), bytearray(signer.sign(message))
    assert ed25519.verify(public, message, bytes(signature))
    signature[bit // 8] ^= 1 << bit % 8
    assert not ed25519.verify(public, message, bytes(signature))


def test_what_is_written_in_two_ways_is_refused() -> None:
    _, public, message, signature = (bytes.fromhex(part) for part in RFC[1])
    order = 2**252 + 27742317777372353535851937790883648493
    again = (int.from_bytes(signature[32:], "little") + order).to_bytes(32, "little")
    assert not ed25519.verify(public, message, signature[:32] + again)
    for weak in (bytes(32), (1).to_bytes(32, "little"), (2**255 - 20).to_bytes(32, "little")):
        assert not ed25519.verify(weak, message, weak + bytes(32))
        with pytest.raises(UsageError, match="anybody could sign"):
            read_public(base64.b64encode(b"Ed" + bytes(8) + weak).decode(), "key")


# ---- files -------------------------------------------------------------------------------------------

# The documentation of minisign: the public key of its maker.
JEDISCT = "RWQf6LRCGA9i53mlYecO4IzT51TGPpvWucNSCh1CBM0QTaLn73Y7GFO3"


def test_minisigns_files_are_read() -> None:
    key = read_public(JEDISCT, "key")
    assert key.id == "E7620F1842B4E81F"
    assert read_public(public_text(key), "key") == key
    assert str(key) == JEDISCT


def test_a_signature_made_by_minisign_is_right() -> None:
    """Of the file `test` that minisign's own documentation signs with that key."""
    text = (
        "untrusted comment: signature from minisign secret key\n"
        "RUQf6LRCGA9i559r3g7V1qNyJDApGip8MfqcadIgT9CuhV3EMhHoN1mGTkUidF/z7SrlQgXdy8ofjb7bNJJylDOocrCo8KLzZwo=\n"
        "trusted comment: timestamp:1556193335\tfile:test\n"
        "y/rUw2y8/hOUYjZU71eHp/Wo1KZ40fGy2VJEDl34XMJM+TX48Ss/17u3IvIfbVR1FkZZSNCisQbuQY+bHwhEBg==\n"
    )
    assert read_signature(text, "test.minisig").fits(read_public(JEDISCT, "key"), b"test")


@pytest.mark.parametrize("password", ["", "correct horse"])
def test_secret_keys_are_written_and_read(tmp_path: Path, maker: SecretKey, password: str) -> None:
    path = tmp_path / "maker.key"
    public = write_key(maker, path, password)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert is_locked(path) is bool(password)
    assert read_key(path, password) == maker
    assert read_public(public.read_text(), "key") == maker.public
    if password:
        with pytest.raises(UsageError, match="wrong password"):
            read_key(path, "battery staple")
    with pytest.raises(UsageError, match="exists already"):
        write_key(maker, path, "")


def test_scrypts_sizes_are_libsodiums() -> None:
    assert scrypt_sizes(33554432, 1073741824) == (1 << 20, 1)  # "sensitive"
    assert scrypt_sizes(524288, 16777216) == (1 << 14, 1)  # "interactive"
    assert scrypt_sizes(0, 1 << 20)[0] <= 1 << 14


def complaint(run: Callable[[], object]) -> str:
    """What an error says; empty if there is none."""
    try:
        run()
    except EdgedecError as error:
        return str(error)
    return ""


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_damaged_files_are_errors_of_one_line(data: st.DataObject) -> None:
    key = PINNED
    texts = {
        read_public: public_text(key.public),
        read_signature: signature_text(Signature(key.id, bytes(64), "x", bytes(64))),
    }
    read = data.draw(st.sampled_from(list(texts)))
    raw = list(texts[read])
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, len(raw) - 1))
        raw[at : at + data.draw(st.integers(0, 3))] = data.draw(st.text(max_size=3))
    said = complaint(lambda: read("".join(raw), "file"))
    assert not said or said.startswith("file: ")
    assert "\n" not in said


PINNED = SecretKey("00112233445566FF", bytes(32), read_public(JEDISCT, "key"))


# ---- bundles -----------------------------------------------------------------------------------------


def test_a_pinned_makers_code_is_run(bundle: Bundle, maker: SecretKey) -> None:
    with pytest.raises(BundleUnsafe, match="is machine code; if you trust"):
        check_code(bundle, CODE)
    sign(bundle, maker, "a test")
    with pytest.raises(BundleUnsafe, match=f"signed by key {maker.id}, which you have not trusted: edgedec trust"):
        check_code(bundle, CODE)
    with trusting(True):
        check_code(bundle, CODE)
    pin(maker.public, "maker")
    check_code(bundle, CODE)
    signed = signed_by(bundle)
    assert signed is not None
    assert (signed.signer, signed.comment) == ("maker", "a test")
    unpin("maker")
    with pytest.raises(BundleUnsafe, match="have not trusted"):
        check_code(bundle, CODE)


def test_tampering_with_any_file_is_found(bundle: Bundle, maker: SecretKey) -> None:
    sign(bundle, maker, "")
    pin(maker.public, "maker")
    assert len(bundle.manifest.files) > 3
    for name in bundle.manifest.files:
        path = bundle.path / name
        raw = path.read_bytes()
        path.write_bytes(raw[:-1] + bytes([raw[-1] ^ 1]))
        with pytest.raises(BundleCorrupt, match=name):
            check_code(Bundle.open(bundle.path), name)
        path.write_bytes(raw)
    check_code(Bundle.open(bundle.path), CODE)


def test_a_changed_manifest_is_refused_by_name(bundle: Bundle, maker: SecretKey) -> None:
    """Other code, with the hash that it has: what a hash alone does not find."""
    sign(bundle, maker, "")
    pin(maker.public, "maker")
    path, code = bundle.path / MANIFEST, bundle.path / CODE
    manifest = json.loads(path.read_text())
    code.write_bytes(b"\x7fELF" + bytes(100))
    manifest["files"][CODE]["sha256"] = hashlib.sha256(code.read_bytes()).hexdigest()
    path.write_text(json.dumps(manifest))
    changed = Bundle.open(bundle.path, verify=True)
    for trusted in (False, True):
        with (
            trusting(trusted),
            pytest.raises(BundleUnsafe, match=r"not a signature of this manifest by maker"),
        ):
            check_code(changed, CODE)


@pytest.mark.parametrize("line", [1, 2, 3])
def test_a_changed_signature_is_refused(bundle: Bundle, maker: SecretKey, line: int) -> None:
    path = sign(bundle, maker, "comment")
    pin(maker.public, "maker")
    lines = path.read_text().splitlines()
    raw = lines[line]
    at = len(raw) // 2
    lines[line] = raw[:at] + ("A" if raw[at] != "A" else "B") + raw[at + 1 :]
    path.write_text("\n".join(lines) + "\n")
    with pytest.raises(BundleUnsafe, match=SIGNATURE):
        check_code(bundle, CODE)


def test_a_signature_of_another_bundle_or_key_is_refused(bundle: Bundle, maker: SecretKey) -> None:
    pin(maker.public, "maker")
    other = new_key()
    sign(bundle, SecretKey(maker.id, other.seed, other.public), "")  # says that it is the maker
    with pytest.raises(BundleUnsafe, match="not a signature of this manifest by maker"):
        check_code(bundle, CODE)
    (bundle.path / SIGNATURE).write_text(signature_text(maker.signed(b"another manifest", "")))
    with pytest.raises(BundleUnsafe, match="not a signature of this manifest by maker"):
        check_code(bundle, CODE)


def test_keys_of_one_id_are_told_apart_by_what_they_sign(bundle: Bundle, maker: SecretKey) -> None:
    """An id is what its maker says it is: two pinned keys may share it."""
    other = new_key()
    for name, key in {"a-first": other.public, "maker": maker.public}.items():
        pin(PublicKey(maker.id, key.key), name)
    sign(bundle, maker, "")
    check_code(bundle, CODE)
    signed = signed_by(bundle)
    assert signed is not None
    assert signed.signer == "maker"
    sign(bundle, SecretKey(maker.id, *_parts(new_key())), "")
    with pytest.raises(BundleUnsafe, match="not a signature of this manifest by a-first or maker"):
        check_code(bundle, CODE)


def _parts(key: SecretKey) -> tuple[bytes, PublicKey]:
    return key.seed, key.public


@pytest.mark.parametrize("end", [0x2028, 0x2029, 0x85, 0x0B, 0x0C, 0x1C])
def test_a_comment_may_hold_what_ends_no_line_of_the_file(bundle: Bundle, maker: SecretKey, end: int) -> None:
    comment = f"a{chr(end)}b{chr(end)}"
    sign(bundle, maker, comment)
    pin(maker.public, "maker")
    signed = signed_by(bundle)
    assert signed is not None
    assert (signed.signer, signed.comment) == ("maker", comment)


@pytest.mark.parametrize("comment", ["a\nb", "a\rb", "a" * 8001, "é" * 4001, "a\udc80"])
def test_a_comment_that_could_not_be_read_again_is_refused(maker: SecretKey, comment: str) -> None:
    with pytest.raises(UsageError, match="--comment: must be"):
        maker.signed(b"content", comment)


def test_lines_may_end_as_in_windows(maker: SecretKey) -> None:
    signature = maker.signed(b"content", "x")
    text = signature_text(signature).replace("\n", "\r\n")
    assert read_signature(text, "file") == signature
    assert read_public(public_text(maker.public).replace("\n", "\r\n"), "file") == maker.public


def test_a_damaged_bundle_is_not_signed(bundle: Bundle, maker: SecretKey) -> None:
    path = bundle.path / CODE
    path.write_bytes(bytes(path.stat().st_size))
    with pytest.raises(BundleCorrupt, match=CODE):
        sign(bundle, maker, "")
    assert not (bundle.path / SIGNATURE).exists()
    assert not [name for name in os.listdir(bundle.path) if "partial" in name]


def test_what_changes_a_bundle_takes_its_signature_away(bundle: Bundle, maker: SecretKey) -> None:
    sign(bundle, maker, "")
    again = add_files(bundle, {"more.bin": b"more"}, lambda manifest: manifest)
    assert signed_by(again) is None


# ---- keys --------------------------------------------------------------------------------------------


def test_keys_are_pinned_once(maker: SecretKey) -> None:
    pin(maker.public, "maker")
    assert pinned() == {"maker": maker.public}
    with pytest.raises(UsageError, match="trusted already, as maker"):
        pin(maker.public, "again")
    with pytest.raises(UsageError, match="stands for key"):
        pin(new_key().public, "maker")
    for name in ("../maker", "", "a/b", ".hidden"):
        with pytest.raises(UsageError, match="--name"):
            pin(new_key().public, name)
    assert unpin(maker.id.lower()).stem == "maker"
    with pytest.raises(UsageError, match="there are: none"):
        unpin("maker")


def test_a_damaged_pinned_key_is_named(keys: Path, maker: SecretKey) -> None:
    pin(maker.public, "maker")
    (keys / "broken.pub").write_text("RWQ")
    with pytest.raises(UsageError, match=r"broken\.pub: not a public key"):
        pinned()


def test_a_new_key_takes_nothing_away(tmp_path: Path, maker: SecretKey, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UsageError, match=r"--new-key \.: names no file"):
        write_key(maker, Path("."), "")
    link = tmp_path / "link.key"
    link.symlink_to(tmp_path / "nowhere")
    with pytest.raises(UsageError, match=r"link\.key: exists already"):
        write_key(maker, link, "")
    assert link.is_symlink()
    (tmp_path / "file").write_text("x")
    with pytest.raises(UsageError, match="file/k: cannot be written: "):
        write_key(maker, tmp_path / "file" / "k", "")
    late = tmp_path / "late.key"
    late.write_text("of somebody else")
    with monkeypatch.context() as patch:
        patch.setattr(os.path, "lexists", lambda _: False)  # it appears after the look
        with pytest.raises(UsageError, match=r"late\.key: cannot be written: "):
            write_key(maker, late, "")
    assert late.read_text() == "of somebody else"


def test_a_key_without_its_public_half_does_not_stay(
    tmp_path: Path, maker: SecretKey, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(path: Path) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("edgedec.signing.makers.replacing", full)
    with pytest.raises(UsageError, match="No space left"):
        write_key(maker, tmp_path / "maker.key", "")
    assert not list(tmp_path.glob("maker*"))


# ---- commands ----------------------------------------------------------------------------------------


def call(*words: object, code: int = 0) -> str:
    done = CliRunner().invoke(app, [str(word) for word in words])
    assert done.exit_code == code, done.output
    return done.output.strip()


def test_commands(bundle: Bundle, tmp_path: Path) -> None:
    key = tmp_path / "maker.key"
    assert "for those who trust it" in call("sign", "--new-key", key)
    assert "signed by key" in call("sign", bundle.path, "--key", key)
    assert "is not trusted here" in call("verify", bundle.path)
    assert "no key is trusted" in call("trust")
    assert "maker: key" in call("trust", tmp_path / "maker.pub")
    said = json.loads(call("verify", bundle.path, "--json"))
    assert said["signer"] == "maker"
    listed = json.loads(call("trust", "--json"))
    assert [entry["name"] for entry in listed["keys"]] == ["maker"]
    assert listed["folder"] == str(keys_folder())
    (bundle.path / SIGNATURE).write_text("x")
    assert call("verify", bundle.path, code=1).startswith("edgedec: ")
    assert "trusted no longer" in call("trust", "--remove", "maker")
    assert "no such file" in call("trust", tmp_path / "none.pub", code=1)
    assert "not a public key" in call("trust", "hello", code=1)


# ---- minisign's own program --------------------------------------------------------------------------


@pytest.mark.skipif(shutil.which("minisign") is None, reason="minisign is not installed (Debian: minisign)")
def test_minisign_reads_what_is_written_and_writes_what_is_read(
    bundle: Bundle, maker: SecretKey, tmp_path: Path
) -> None:
    def minisign(*words: str, password: str = "") -> None:
        done = subprocess.run(
            ["minisign", *words], input=f"{password}\n", cwd=bundle.path, capture_output=True, text=True
        )
        assert done.returncode == 0, done.stdout + done.stderr

    write_key(maker, tmp_path / "ours.key", "correct horse")
    sign(bundle, maker, "by us")
    minisign("-Vm", MANIFEST, "-p", str(tmp_path / "ours.pub"))
    (bundle.path / SIGNATURE).unlink()
    minisign("-Sm", MANIFEST, "-s", str(tmp_path / "ours.key"), "-t", "by minisign", password="correct horse")
    pin(maker.public, "ours")
    signed = signed_by(bundle)
    assert signed is not None
    assert (signed.signer, signed.comment) == ("ours", "by minisign")
    minisign("-G", "-W", "-p", str(tmp_path / "theirs.pub"), "-s", str(tmp_path / "theirs.key"))
    theirs = read_key(tmp_path / "theirs.key")
    assert read_public((tmp_path / "theirs.pub").read_text(), "theirs") == theirs.public
    sign(bundle, theirs, "")
    minisign("-Vm", MANIFEST, "-p", str(tmp_path / "theirs.pub"))


@pytest.mark.skipif(shutil.which("minisign") is None, reason="minisign is not installed (Debian: minisign)")
@pytest.mark.skipif("EDGEDEC_SLOW_TESTS" not in os.environ, reason="1 GiB and half a minute; set EDGEDEC_SLOW_TESTS")
def test_a_key_that_minisign_locked_signs(bundle: Bundle, tmp_path: Path) -> None:
    """By minisign's own limits: N = 2^20, 1 GiB."""
    secret, public = tmp_path / "theirs.key", tmp_path / "theirs.pub"
    words = ["minisign", "-G", "-p", str(public), "-s", str(secret)]
    done = subprocess.run(words, input="correct horse\ncorrect horse\n", capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    raw = base64.b64decode(secret.read_text().splitlines()[1])
    assert [int.from_bytes(raw[at : at + 8], "little") for at in (38, 46)] == [1 << 25, 1 << 30]
    key = read_key(secret, "correct horse")
    assert key.public == read_public(public.read_text(), "theirs")
    with pytest.raises(UsageError, match="wrong password"):
        read_key(secret, "battery staple")
    sign(bundle, key, "")
    words = ["minisign", "-Vm", str(bundle.path / MANIFEST), "-p", str(public)]
    assert subprocess.run(words, capture_output=True).returncode == 0
