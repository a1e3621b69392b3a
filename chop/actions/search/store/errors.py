"""The errors of a storage, each in one sentence."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from chop.actions.options import ConfigError
from chop.system.redaction import redacted, redacted_text

NOT_ALONE = "another program adds trials to this study as well; stop one of the two"
# what Optuna and we raise at lines and rows that this version would not have written
DAMAGED = (ValueError, LookupError, TypeError, AttributeError, AssertionError, RuntimeError)


class StorageError(OSError):
    """A storage cannot be reached or written; the search stops and can be resumed."""


class StudyInUse(ConfigError):
    """Another process is searching in this study."""

    def __init__(self, url: str, study: str) -> None:
        super().__init__(
            f"another process is running the study {study!r} in {redacted(url)}; wait for it, name "
            f"a new study with --study, or run one search on many machines with --engine ray"
        )


class MissingStudy(ConfigError):
    """The storage does not have the study that was named."""

    def __init__(self, url: str, study: str) -> None:
        super().__init__(
            f"there is no study {study!r} in {redacted(url)}; correct --storage and --study, or "
            f"search first, without --resume"
        )


@contextlib.contextmanager
def storage_errors(url: str) -> Iterator[None]:
    """Translate the errors of a storage, such as a full disk or a lost connection."""
    from optuna.exceptions import StorageInternalError
    from sqlalchemy.exc import SQLAlchemyError

    try:
        yield
    except StorageError:
        raise
    except (OSError, SQLAlchemyError, StorageInternalError) as error:
        cause = reason(error, url)
        raise StorageError(
            f"the study in {redacted(url)} cannot be read or written: {cause}; {_advice(cause)}"
        ) from error


@contextlib.contextmanager
def reading_errors(url: str) -> Iterator[None]:
    """Translate the errors of a storage, and those of contents that a search did not write."""
    try:
        with storage_errors(url):
            yield
    except ConfigError:
        raise
    except DAMAGED as error:
        raise StorageError(
            f"the study in {redacted(url)} is damaged, or was written by another version of MASE "
            f"or Optuna ({type(error).__name__}: {reason(error, url)}); restore a copy of it, or "
            f"name another with --storage"
        ) from error


def reason(error: Exception, url: str) -> str:
    """Return the first line of an error, without the password of a URL."""
    lines = str(getattr(error, "orig", None) or error).strip().splitlines()
    return redacted_text(lines[0], url) if lines else type(error).__name__


def _advice(cause: str) -> str:
    if "no password supplied" in cause or "password authentication failed" in cause:
        return "give the password in --storage, in PGPASSWORD or in ~/.pgpass"
    return "its finished trials are kept, and --resume continues with them"
