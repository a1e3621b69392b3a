"""What can go wrong with a storage, and how that is worded."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from chop.actions.options import ConfigError, without_password

NOT_ALONE = "another program adds trials to this study as well; stop one of the two"


class StorageError(OSError):
    """A storage that cannot be reached or written; the search stops and can be resumed."""


class StudyInUse(ConfigError):
    """Another process is searching in this study."""

    def __init__(self, url: str, study: str) -> None:
        super().__init__(
            f"another process is running the study {study!r} in {without_password(url)}; wait for "
            f"it, name a new study with --study, or run one search on many machines with "
            f"--engine ray"
        )


@contextlib.contextmanager
def storage_errors(url: str) -> Iterator[None]:
    """Translate the errors of a storage into one sentence."""
    from optuna.exceptions import StorageInternalError
    from sqlalchemy.exc import SQLAlchemyError

    try:
        yield
    except StorageError:
        raise
    except (OSError, SQLAlchemyError, StorageInternalError) as error:
        raise StorageError(
            f"the study in {without_password(url)} cannot be read or written: {reason(error)}; "
            f"its finished trials are kept, and --resume continues with them"
        ) from error


def reason(error: Exception) -> str:
    """The first line of an error, without passwords."""
    lines = str(getattr(error, "orig", None) or error).strip().splitlines()
    return without_password(lines[0]) if lines else type(error).__name__
