"""keys, audit: make the keys of cluster and operators; list operators' changes."""

import argparse
from typing import Any

import redis

from shared_model.commands import common
from shared_model.errors import ReleaseError, StoreUnavailable
from shared_model.settings import StateSettings
from shared_model.trust import audit, ed25519, keyring


def add_to(commands: "argparse._SubParsersAction[Any]") -> None:
    keys = common.add_command(
        commands,
        "keys",
        _keys,
        help="make the keys that Redis does not hold, where they are missing",
        more="Copy cluster.key and operators.pub to TANDEM_KEYS of replicas and routers, operators.pub to that "
        "of the nightly run. operator.key stays where operators promote. With --operator the pointer and the "
        "policy that are in force are signed.",
        example="--cluster --operator",
    )
    keys.add_argument("--cluster", action="store_true", help="cluster.key: heartbeats and calls between replicas")
    keys.add_argument("--operator", action="store_true", help="operator.key and operators.pub: pointer and policy")

    audited = common.add_command(
        commands,
        "audit",
        _audit,
        help="operators' changes of pointer, policy and dead letters, oldest first",
        more="Each with the key that signed it: a writer of Redis may add a record, but no signature.",
        example="--count 20",
    )
    audited.add_argument("--count", type=int, default=100, help="the newest so many (default: %(default)s)")


def _keys(args: argparse.Namespace, state: StateSettings) -> None:
    both = not (args.cluster or args.operator)
    for path in keyring.make(state.keys_dir, args.cluster or both, args.operator or both):
        print(f"made {path}")
    found = keyring.load(state)
    for key in found.operators:
        print(f"operator {ed25519.key_id(key)}")
    if found.unsettled and (signed := _signed_now(state)):
        print(signed)


def _signed_now(state: StateSettings) -> str:
    try:
        pointer = common.find_pointers(state).default
    except ReleaseError as error:
        return f"the pointer stays unsigned: {error}"
    return f"signed: release {pointer.active} is active (version {pointer.version})" if pointer else ""


def _audit(args: argparse.Namespace, state: StateSettings) -> None:
    common.check_count("--count", args.count)
    with common.redis_client(state) as client:
        try:
            found = list(audit.lines(client, keyring.load(state)))
        except redis.RedisError as error:
            raise StoreUnavailable(f"Redis did not answer: {error}") from error
    for line in found[-args.count :]:
        print(line)
