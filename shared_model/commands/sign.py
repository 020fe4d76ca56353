"""keygen, sign: make a signing key, and sign a release with it."""

import argparse
import os
from pathlib import Path
from typing import Any

from shared_model.commands import common
from shared_model.errors import BadInput
from shared_model.evaluation import judged
from shared_model.releases import signature, verdict_signature
from shared_model.settings import StateSettings
from shared_model.trust import ed25519


def add_to(commands: "argparse._SubParsersAction[Any]") -> None:
    keygen = common.add_command(
        commands,
        "keygen",
        _keygen,
        help="make a key to sign releases with; keep it offline",
        more="The file that TANDEM_TRUSTED_KEYS names holds the public keys, one a line.",
        example="--out release.key",
    )
    keygen.add_argument("--out", type=Path, required=True, help="the private key; the public one goes to OUT.pub")

    sign = common.add_command(
        commands,
        "sign",
        _sign,
        help="sign a release, every file of which is as built, and its gate's verdict",
        more="The signatures lie beside the release's files; those who signed before stay.",
        example="my-model --key release.key",
    )
    sign.add_argument("--key", type=Path, required=True, help="private key that keygen wrote")
    common.add_release(sign, optional=True)


def _keygen(args: argparse.Namespace, state: StateSettings) -> None:
    private, public = ed25519.generate("release")
    public_file = args.out.with_name(f"{args.out.name}.pub")
    for path in (args.out, public_file):
        if path.exists():
            raise BadInput(str(path), "exists; a key is never written over another")
    _write_new(args.out, private, 0o600)
    _write_new(public_file, public, 0o644)
    print(f"private key in {args.out}: keep it offline; add {public_file} to the file that TANDEM_TRUSTED_KEYS names")


def _sign(args: argparse.Namespace, state: StateSettings) -> None:
    release = common.open_release(state, args.release)
    release.verify()
    if report := release.read_note(verdict_signature.REPORT):
        # Raises for a verdict that was changed after an operator signed it: it must not be signed again.
        verdict_signature.counts(release, report)
    found, private = judged.read(release), args.key.read_bytes()
    signer, note = signature.sign(release.manifest, release.read_note(signature.NOTE), private, source=str(args.key))
    release.write_note(signature.NOTE, note)
    print(f"release {release.id} is signed by {signer}")
    if found:
        verdict_signature.sign(release, private, source=str(args.key))
        print(f"the verdict of its gate, too: {'passed' if found.passed else 'REFUSED'}")
    else:
        print("it was not judged: sign it again after its gate")


def _write_new(path: Path, data: bytes, mode: int) -> None:
    with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), "wb") as file:
        os.fchmod(file.fileno(), mode)
        file.write(data)
