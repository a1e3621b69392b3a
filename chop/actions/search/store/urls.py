"""The URL of a storage: which kind it is, and which file it names."""

from __future__ import annotations

from pathlib import Path

from chop.actions.options import ConfigError, without_password

KINDS = ("journal", "sqlite", "postgresql")
STORAGES = "the path of a journal file, sqlite:///study.db, or postgresql://user@host/name"


def parse_url(url: str) -> tuple[str, Path | None]:
    """Return the kind of storage, and its file if it is kept in one."""
    scheme, separator, rest = url.partition("://")
    if not separator and url.partition(":")[0] not in KINDS:
        return "journal", Path(url)
    scheme = scheme.partition("+")[0]  # without the driver
    if scheme not in KINDS or not separator:
        raise ConfigError(
            f"--storage {without_password(url)} is not a supported storage; use {STORAGES}"
        )
    if scheme == "journal":
        return scheme, Path(rest)
    file = rest.removeprefix("/").partition("?")[0]
    return scheme, Path(file) if scheme == "sqlite" and file not in ("", ":memory:") else None


def check_url(url: str) -> None:
    """Refuse a URL that cannot hold a study, without opening it."""
    kind, path = parse_url(url)
    if path is not None and path.is_dir():
        raise ConfigError(f"--storage {url} is a directory; name a file in it")
    if kind == "sqlite" and path is not None and not path.absolute().parent.is_dir():
        raise ConfigError(f"--storage {url}: the directory {path.parent} does not exist")
