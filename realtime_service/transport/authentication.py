"""The identity of a caller: the subject of a verified token, else the name that the caller claims, else its address."""

import functools
import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Protocol

import grpc.aio

from realtime_service.errors import Unauthenticated
from realtime_service.identity import Identity, Role, known_lanes, known_roles, peer_key
from realtime_service.settings import ServiceSettings
from realtime_service.transport.token_keys import TokenKey, TokenKeys
from shared_model.clock import Clock

#: Metadata with the name that a caller claims, and with the token that proves its name.
CALLER_ID = "x-caller-id"
AUTHORIZATION = "authorization"
#: Characters of a name, at most: it travels in heartbeats.
MAX_NAME = 256
#: Seconds by which the clock of the token's issuer may differ from ours.
SKEW_SECONDS = 60.0

#: Verified tokens that are remembered.
_REMEMBERED = 10_000
_NOT_VALID = "the bearer token is not valid"


@dataclass(frozen=True)
class TokenRules:
    """The demands on a call. `required`: it needs a valid token; `local`: only this host can call; `audience`,
    `issuer`: those that a token must name, empty for any; `max_seconds`: longest lifetime of a token."""

    required: bool = False
    local: bool = True
    audience: str = ""
    issuer: str = ""
    max_seconds: float = 24 * 3600.0

    @staticmethod
    def of(settings: ServiceSettings) -> "TokenRules":
        return TokenRules(
            settings.token_required,
            settings.local,
            settings.token_audience,
            settings.token_issuer,
            settings.token_max_hours * 3600,
        )

    @property
    def open(self) -> bool:
        """Whether every caller may see what operators see: a person at this host, without tokens."""
        return self.local and not self.required


class Called(Protocol):
    """The part of a call's context that tells who calls."""

    def invocation_metadata(self) -> Iterable[tuple[str, str | bytes]] | None: ...

    def peer(self) -> str: ...


class Callers:
    """`keys`: verify tokens; without keys, tokens are ignored."""

    def __init__(self, keys: TokenKeys, rules: TokenRules, clock: Clock) -> None:
        self._keys = keys
        self._rules = rules
        self._clock = clock
        # By token: who it names, and until when (UTC). They hold for `_verified_by`, these keys.
        self._verified: dict[str, tuple[Identity, float]] = {}
        self._verified_by: tuple[TokenKey, ...] = ()

    async def identify(self, context: Called) -> Identity:
        """As `of`, but looks for a key that is not known yet."""
        try:
            return self.of(context)
        except Unauthenticated as error:
            if not (error.unknown_key and await self._keys.find(error.unknown_key)):
                raise
            return self.of(context)

    def of(self, context: Called) -> Identity:
        """Raises: Unauthenticated for a token that is not valid, and for a call without one where one is required."""
        claimed = ""
        for name, value in context.invocation_metadata() or ():
            if name == CALLER_ID:
                claimed = claimed or str(value)[:MAX_NAME]
            elif name == AUTHORIZATION and self._keys.current:
                scheme, _, token = str(value).partition(" ")
                if scheme.lower() == "bearer":
                    return self._of_token(token.strip())
        if self._rules.required:
            raise Unauthenticated("a call needs a bearer token: metadata `authorization: Bearer TOKEN`")
        return _unverified(claimed, context.peer(), self._rules.open)

    def of_earlier_replica(self, context: "grpc.aio.ServicerContext[Any, Any]") -> Identity:
        """The caller of a call that a replica of an earlier version has forwarded: it verified a token, if there was
        one, and tells only the claimed name. Raises: Unauthenticated where a valid token is required."""
        if self._rules.required:
            raise Unauthenticated("the replica that forwarded this call does not tell who calls; upgrade it first")
        claimed = dict(context.invocation_metadata() or ()).get(CALLER_ID, "")
        return _unverified(str(claimed)[:MAX_NAME], context.peer(), self._rules.open)

    def _of_token(self, token: str) -> Identity:
        now = self._clock.wall()
        if self._verified_by is not self._keys.current:
            self._verified, self._verified_by = {}, self._keys.current
        identity, end = self._verified.get(token) or self._verify(token, now)
        if now >= end:
            self._verified.pop(token, None)
            raise Unauthenticated("the bearer token has expired")
        return identity

    def _verify(self, token: str, now: float) -> tuple[Identity, float]:
        claims = self._claims(token)
        found = _identity(claims, self._rules.open), _end(claims, now, self._rules.max_seconds)
        if len(self._verified) >= _REMEMBERED:
            del self._verified[next(iter(self._verified))]
        self._verified[token] = found
        return found

    def _claims(self, token: str) -> dict[str, Any]:
        """The claims of a token that one of our keys has signed, for us."""
        import jwt

        try:
            named = jwt.get_unverified_header(token).get("kid")
        except (jwt.InvalidTokenError, ValueError) as error:
            raise Unauthenticated(_NOT_VALID) from error
        for key in self._keys.current:
            if named and key.id and named != key.id:
                continue
            try:
                return self._decode(token, key)
            except (jwt.InvalidAudienceError, jwt.InvalidIssuerError) as error:
                raise Unauthenticated("the bearer token is for another audience, or of another issuer") from error
            except jwt.MissingRequiredClaimError as error:
                raise Unauthenticated(f"the bearer token has no claim {error.claim!r}") from error
            except jwt.PyJWTError:
                continue
        if named and all(key.id != named for key in self._keys.current):
            raise Unauthenticated(_NOT_VALID, unknown_key=str(named))
        raise Unauthenticated(_NOT_VALID)

    def _decode(self, token: str, key: TokenKey) -> dict[str, Any]:
        import jwt

        rules = self._rules
        # Times are compared with our own clock, in `_end`.
        options: Any = {
            "require": ["sub", "exp", *["aud"] * bool(rules.audience), *["iss"] * bool(rules.issuer)],
            "verify_exp": False,
            "verify_nbf": False,
            "verify_iat": False,
            "verify_aud": bool(rules.audience),
        }
        audience, issuer = rules.audience or None, rules.issuer or None
        return jwt.decode(
            token, key.key, algorithms=list(key.algorithms), options=options, audience=audience, issuer=issuer
        )


@functools.lru_cache(maxsize=4096)
def _unverified(claimed: str, peer: str, local: bool) -> Identity:
    quota_key = peer_key(peer)
    key = f"claimed:{claimed}" if claimed else quota_key
    return Identity(key, quota_key, sees_internals=local, sees_precomputed=local)


def _identity(claims: dict[str, Any], local: bool) -> Identity:
    """Raises: Unauthenticated for claims that are no names."""
    subject = claims["sub"]
    # It is a name in heartbeats, keys of Redis and log lines. A cut or replaced one could be that of another caller.
    if not (0 < len(subject) <= MAX_NAME and subject.isprintable()):
        raise Unauthenticated(f"the bearer token names no caller: `sub` must have 1 to {MAX_NAME} printable characters")
    roles, lanes, models = (_names(claims, claim) for claim in ("roles", "lanes", "models"))
    held = frozenset({Role.CALLER}) if roles is None else known_roles(roles)
    operator = Role.OPERATOR in held
    return Identity(
        key=f"token:{subject}",
        quota_key=f"token:{subject}",
        verified=True,
        roles=held,
        lanes=None if lanes is None else known_lanes(lanes),
        models=None if models is None else frozenset(models),
        sees_internals=local or operator,
        sees_precomputed=local or operator or Role.NIGHT in held or claims.get("sees_precomputed") is True,
    )


def _names(claims: dict[str, Any], claim: str) -> list[str] | None:
    """The names that a claim lists; None where it is absent. Raises: Unauthenticated."""
    names = claims.get(claim)
    if names is None:
        return None
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise Unauthenticated(f"the bearer token is not valid: its claim {claim!r} must be a list of names")
    return names


def _end(claims: dict[str, Any], now: float, max_seconds: float) -> float:
    """When a token expires for us. Raises: Unauthenticated for one that is not valid yet, or for too long."""
    end, issued = _time(claims, "exp"), _time(claims, "iat")
    not_before = _time(claims, "nbf")
    if max(issued or -math.inf, not_before or -math.inf) > now + SKEW_SECONDS:
        raise Unauthenticated("the bearer token is not valid yet")
    if end is None or end - (now if issued is None else issued) > max_seconds:
        raise Unauthenticated(f"the bearer token is valid for longer than {max_seconds / 3600:g} hours")
    return end + SKEW_SECONDS


def _time(claims: dict[str, Any], claim: str) -> float | None:
    """Seconds since the epoch; None where the claim is absent. Raises: Unauthenticated for anything but a time."""
    value = claims.get(claim)
    if value is None:
        return None
    try:
        if isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value):
            return float(value)
    except OverflowError:
        pass
    raise Unauthenticated(f"the bearer token is not valid: its claim {claim!r} is not a time")
