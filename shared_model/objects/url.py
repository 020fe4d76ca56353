"""Objects behind a URL, by obstore, the engine that deltalake has too.

Both take credentials and endpoint from the environment (AWS_…, GOOGLE_…, AZURE_…), so none is in a setting, a record or
a command line. Errors are OSErrors of one line, made from the service's code and message alone: the rest of its answer
may hold a key or a signature.
"""

import errno
import io
import os
import re
import time
from collections.abc import Callable, Iterator
from datetime import timedelta
from functools import lru_cache, partial
from typing import TYPE_CHECKING, Any, BinaryIO, TypeVar, cast

import obstore
from obstore.exceptions import AlreadyExistsError, BaseError
from obstore.store import ObjectStore, from_url

from shared_model.objects.contract import REPEATED, ObjectInfo, refusal
from shared_model.storage import one_line

if TYPE_CHECKING:
    from obstore.store import RetryConfig

T = TypeVar("T")

#: Requests that meet a busy service or a lost connection are sent again.
RETRIES: "RetryConfig" = {
    "max_retries": 8,
    "backoff": {"init_backoff": timedelta(milliseconds=100), "max_backoff": timedelta(seconds=5), "base": 2},
    "retry_timeout": timedelta(seconds=60),
}
#: Requests that may not be sent twice blindly, and seconds between them, the first time.
_ATTEMPTS, _PAUSE = 4, 0.2
#: Bytes above which an object is sent in parts, and bytes of one read.
_ONE_PUT, _ONE_READ = 16 << 20, 4 << 20

#: Answers to HEAD have no code that tells why.
_EXPIRED = re.compile(
    r"ExpiredToken|TokenRefreshRequired|RequestExpired|InvalidAuthenticationInfo|status code: 40[013](?!.*<Code>)", re.S
)
_PERFORMED = re.compile(
    r".*Error performing \w+ (?P<url>\S+) in \S+?(?:, after (?P<retries>\d+) retries.*?)?\s+- ", re.S
)
_CODE, _MESSAGE = re.compile(r"<Code>([\w.]+)</Code>"), re.compile(r"<Message>(.*?)[<\n]")
#: S3's tag of an object that was put as a whole: the MD5 of its content, or where KMS encrypts it a value of its own. A
#: tag of parts depends on their sizes, and other services' tags on the time.
_CONTENT_TAG = re.compile(r'"?([0-9a-f]{32})"?')
#: A URL's query and the body of an answer, either of which may hold a signature.
_UNSHOWN = re.compile(r"(?<=\S)\?\S*|(?<=status code: \d\d\d)[^:]*:.*", re.S)


class UrlObjects:
    """A folder of a bucket."""

    def __init__(self, url: str) -> None:
        scheme, _, rest = url.partition("://")
        self.root = url
        bucket, _, prefix = rest.partition("/")
        if problem := refusal(url):
            raise ValueError(problem)
        self._bucket, self._prefix = f"{scheme}://{bucket}", prefix.strip("/")
        self._asked("", lambda _: None)

    def get(self, path: str) -> bytes:
        return self._asked(path, lambda store: bytes(obstore.get(store, self._key(path)).bytes()))

    def open(self, path: str) -> BinaryIO:
        if (found := self.find(path)) is None:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), f"{self.root}/{path}")
        return cast("BinaryIO", io.BufferedReader(_Ranges(partial(self.range, path), found.size), _ONE_READ))

    def find(self, path: str) -> ObjectInfo | None:
        try:
            return self._info(self._asked(path, lambda store: obstore.head(store, self._key(path))))
        except FileNotFoundError:
            return None

    def folders(self, folder: str = "") -> list[str]:
        prefix = self._key(folder)
        found = self._asked(folder, lambda store: obstore.list_with_delimiter(store, prefix or None))
        return [path.rstrip("/").rpartition("/")[2] for path in found["common_prefixes"]]

    def list(self, folder: str = "", deep: bool = True) -> Iterator[ObjectInfo]:
        prefix = self._key(folder) or None

        def ask(store: ObjectStore) -> Any:
            return (
                obstore.list(store, prefix).collect() if deep else obstore.list_with_delimiter(store, prefix)["objects"]
            )

        yield from map(self._info, self._asked(folder, ask))

    def put(self, path: str, data: bytes) -> None:
        self._asked(path, lambda store: obstore.put(store, self._key(path), data, chunk_size=_ONE_PUT))

    def create(self, path: str, data: bytes) -> bool:
        def ask(store: ObjectStore) -> bool:
            try:
                obstore.put(store, self._key(path), data, mode="create", use_multipart=False)
            except AlreadyExistsError:
                return False
            return True

        for attempt in range(_ATTEMPTS):
            try:
                # A put may have succeeded and its answer be lost: the bytes tell.
                return self._asked(path, ask) or self.get(path) == data
            except FileNotFoundError:
                raise
            except OSError:
                if attempt + 1 == _ATTEMPTS:
                    raise
                time.sleep(_PAUSE * 2**attempt)
        raise AssertionError("unreachable")

    def delete(self, *paths: str) -> None:
        if not paths:
            return
        keys = [*map(self._key, paths)]
        try:
            # S3 and Azure delete hundreds by one request.
            self._asked(paths[0], lambda store: obstore.delete(store, keys if len(keys) > 1 else keys[0]))
        except FileNotFoundError:
            # One of them was not there, and others may be yet.
            for path in paths if len(paths) > 1 else ():
                self.delete(path)

    def range(self, path: str, start: int, end: int) -> bytes:
        return self._asked(path, lambda store: bytes(obstore.get_range(store, self._key(path), start=start, end=end)))

    def _asked(self, path: str, ask: Callable[[ObjectStore], T], again: bool = True) -> T:
        """The answer of the service. Once credentials have expired, they are read again, and it is asked again."""
        try:
            return ask(_connect(self._bucket))
        except (BaseError, OSError) as error:
            if not (again and _EXPIRED.search(str(error))):
                raise self._os_error(path, error) from None
        _connect.cache_clear()
        return self._asked(path, ask, again=False)

    def _os_error(self, path: str, error: Exception) -> OSError:
        """Without its chain: a traceback would show the whole answer."""
        where = f"{self.root}/{path}".rstrip("/")
        if isinstance(error, FileNotFoundError):
            return FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), where)
        return OSError(errno.EIO, cause(str(error)) or type(error).__name__, where)

    def _key(self, path: str) -> str:
        return "/".join(part for part in (self._prefix, path) if part)

    def _info(self, meta: Any) -> ObjectInfo:
        path = meta["path"].removeprefix(self._prefix).lstrip("/")
        tag = _CONTENT_TAG.fullmatch(meta["e_tag"] or "") if self._bucket.startswith("s3") else None
        return ObjectInfo(path, meta["size"], meta["last_modified"], tag[1] if tag else "")


def cause(text: str) -> str:
    """The error of obstore or deltalake in one line that holds no credentials: the service's code and message, and how
    often it was asked."""
    text = text.partition("\n\nDebug source")[0]
    performed, code, message = _PERFORMED.match(text), _CODE.search(text), _MESSAGE.search(text)
    again = REPEATED.format(performed["retries"]) if performed and performed["retries"] else ""
    if code:
        said = f"{code[1]}: {message[1]}" if message and message[1] else code[1]
    else:
        said = _UNSHOWN.sub("", text[performed.end() :] if performed else text)
    return one_line(Exception(f"{said}{again}"))


@lru_cache(maxsize=16)
def _connect(bucket: str) -> ObjectStore:
    """A client, which keeps connections and credentials."""
    return from_url(bucket, retry_config=RETRIES)


class _Ranges(io.RawIOBase):
    """An object as a file."""

    def __init__(self, read: Callable[[int, int], bytes], size: int) -> None:
        self._read, self._size, self._at = read, size, 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        self._at = offset + {os.SEEK_SET: 0, os.SEEK_CUR: self._at, os.SEEK_END: self._size}[whence]
        return self._at

    def tell(self) -> int:
        return self._at

    def readall(self) -> bytes:
        # The inherited one reads a few KB at a time.
        data = self._read(self._at, self._size) if self._at < self._size else b""
        self._at = self._size
        return data

    def readinto(self, buffer: Any) -> int:
        end = min(self._at + len(buffer), self._size)
        if end <= self._at:
            return 0
        data = self._read(self._at, end)
        buffer[: len(data)] = data
        self._at = end
        return len(data)
