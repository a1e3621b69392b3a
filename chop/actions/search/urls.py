"""URLs of storages: what SQLAlchemy gets to see of them, and what is said if they do not work."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path

from chop.actions.options import ConfigError
from chop.redaction import redacted, redacted_text, without_marks

STORAGES = "the path of a journal file, sqlite:///study.db, or postgresql://user@host/name"


def check_inside(path: Path, folders: Collection[Path]) -> None:
    """Refuse a file that is in none of the folders, be it through a symbolic link."""
    if not any(path.resolve().is_relative_to(folder.resolve()) for folder in folders):
        raise ConfigError(
            f"storage: {str(path)!r} is outside the current folder and the project; give it on the "
            f"command line as --storage"
        )


def for_sqlalchemy(url: str) -> str:
    """The URL with our driver; for a password that was left out, the driver looks elsewhere."""
    from sqlalchemy.engine import make_url
    from sqlalchemy.exc import ArgumentError

    url = without_marks(url)
    try:
        host = make_url(url).host or ""
    except (ArgumentError, ValueError) as error:
        raise ConfigError(
            f"--storage {redacted(url)} is not a valid URL ({reason_of(error, url)}); "
            f"write {STORAGES}"
        ) from None  # whose text may hold the password
    if "@" in host:
        raise ConfigError(f"--storage {redacted(url)}: write an @ in the password as %40")
    if url.startswith("postgresql://"):
        url = url.replace("postgresql://", "postgresql+psycopg://", 1)
    return url.replace("{", "{{").replace("}", "}}")  # Optuna takes it for a template


def reason_of(error: Exception, url: str) -> str:
    """What a driver says went wrong, in one line without the password."""
    lines = str(getattr(error, "orig", None) or error).strip().splitlines()
    return redacted_text(lines[0], url) if lines else type(error).__name__


def advice_for(reason: str) -> str:
    """What to do about a storage that cannot be read or written."""
    if "no password supplied" in reason or "password authentication failed" in reason:
        return "give the password in --storage, in PGPASSWORD or in ~/.pgpass"
    return "what it has is kept, and --resume goes on with it"
