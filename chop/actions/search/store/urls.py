"""The URL of a storage: which kind it is, and which file it names."""

from __future__ import annotations

import re
from collections.abc import Collection
from pathlib import Path

from chop.actions.options import ConfigError
from chop.actions.search.store.errors import reason
from chop.system.redaction import redacted, without_marks

KINDS = ("journal", "sqlite", "postgresql")
STORAGES = "the path of a journal file, sqlite:///study.db, or postgresql://user@host/name"
IN_MEMORY = re.compile(r":memory:|[?&]mode=memory\b")


def parse_url(url: str) -> tuple[str, Path | None]:
    """Return the kind of storage, and its file if it is kept in one."""
    scheme, separator, rest = url.partition("://")
    is_path = not separator and url.partition(":")[0] not in KINDS
    if is_path and redacted(url) == url:  # a password must not become the name of a file
        return "journal", Path(url)
    scheme = scheme.partition("+")[0]  # without the driver
    if scheme not in KINDS or not separator:
        raise ConfigError(f"--storage {redacted(url)} is not a supported storage; use {STORAGES}")
    if scheme == "journal":
        return scheme, Path(rest)
    file = rest.removeprefix("/").partition("?")[0]
    if scheme == "sqlite" and (not file or IN_MEMORY.search(rest)):
        raise ConfigError(
            f"--storage {redacted(url)} is a database in memory, and the study would be lost with "
            f"it; name a file: sqlite:///study.db"
        )
    return scheme, Path(file) if scheme == "sqlite" else None


def check_url(url: str, inside: Collection[Path] = ()) -> None:
    """Refuse a URL that cannot hold a study, without opening it.

    If `inside` names folders, a file has to be in one of them.
    """
    kind, path = parse_url(url)
    folders = [folder.resolve() for folder in inside]
    if path and folders and not any(path.resolve().is_relative_to(f) for f in folders):
        raise ConfigError(
            f"storage: {str(path)!r} is outside the current folder and the project; give it on "
            f"the command line as --storage"
        )
    if kind == "postgresql":
        url_for_sqlalchemy(url)
    if path is None:
        return
    if path.is_dir():
        raise ConfigError(f"--storage {redacted(url)} is a directory; name a file in it")
    if path.exists() and not path.is_file():
        raise ConfigError(f"--storage {redacted(url)} is a device or a pipe; name a file")
    if kind == "sqlite" and not path.absolute().parent.is_dir():
        raise ConfigError(
            f"--storage {redacted(url)}: the directory {path.parent} does not exist; create it"
        )


def absolute_url(url: str) -> str:
    """Return the URL with the absolute path of its file, for processes in other directories."""
    kind, path = parse_url(url)
    if path is None:
        return url
    if kind == "journal":
        return str(path.absolute())
    head, _, rest = url.partition(":///")
    _, mark, options = rest.partition("?")
    return f"{head}:///{path.absolute()}{mark}{options}"


def url_for_sqlalchemy(url: str) -> str:
    """Return the URL with our driver, which looks elsewhere for a password that was left out."""
    from sqlalchemy.engine import make_url
    from sqlalchemy.exc import ArgumentError

    url = without_marks(url)
    try:
        host = make_url(url).host or ""
    except (ArgumentError, ValueError) as error:
        raise ConfigError(
            f"--storage {redacted(url)} is not a valid URL ({reason(error, url)}); use {STORAGES}"
        ) from None  # its text may hold the password
    if "@" in host:
        raise ConfigError(f"--storage {redacted(url)}: write an @ in the password as %40")
    if url.startswith("postgresql://"):
        url = url.replace("postgresql://", "postgresql+psycopg://", 1)
    return url.replace("{", "{{").replace("}", "}}")  # Optuna takes it for a template
