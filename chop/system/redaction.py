"""Replace passwords in URLs by `***` in everything that is shown or written."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import partial
from typing import Any
from urllib.parse import unquote, unquote_plus

MARK = "***"
Hide = Callable[[str], str]

URL = re.compile(r"(?P<scheme>[A-Za-z][\w+.-]+)?:/+|\A//")
# their path begins at the first slash; nothing after it is a password
WEB = {"http", "https", "ftp", "ftps", "s3", "gs", "hf", "tcp", "ray", "grpc"}
IN_FILES = {"sqlite", "journal", "file"}
SECRET_KEY = re.compile(r"passw|passphrase|pwd|secret|scram_\w+_key|odbc_connect", re.I)
PARAMETER = re.compile(r"(?P<key>[?&][^=&?]*=)(?P<value>[^&]*)(?P<rest>(?:&[^=&]*(?=&|\Z))*)")
HOST = r"(?:\[[^\]/]*\]|[^/:?,\[\]]*)(?::\d*)?"
HOSTS = re.compile(rf"(?:[^/:?@]*@)?{HOST}(?:,{HOST})*(?:[/?].*)?", re.S)
# the syntax of libpq, and of a Python dict
CONNINFO = re.compile(
    r"""(?P<key>(?:password|passwd|passphrase|pwd)(?:['"]\s*:|\s*=)\s*)"""
    r"""(?P<value>'(?:\\.|[^'\\])*'|"(?:\\.|[^"\\])*"|\S+)""",
    re.I,
)
PUNCTUATION = "'\"`.,;:!?)]}>"
SHORT = 4  # letters; shorter passwords would match parts of ordinary words


def redacted(value: Any) -> Any:
    """Return a value that may be a URL, or a table of URLs, without passwords."""
    if isinstance(value, str):
        return _rewritten(value, lambda _: MARK)
    if isinstance(value, dict):
        return {key: redacted(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(redacted(inner) for inner in value)
    return value


def redacted_text(text: str, *urls: str) -> str:
    """Return a message without passwords of URLs; those of `urls` are removed everywhere."""
    secrets = {secret for url in urls for secret in _passwords(url)}
    for secret in sorted(secrets, key=len, reverse=True):
        alone = rf"(?<!\w){re.escape(secret)}(?!\w)"
        text = re.sub(alone if len(secret) < SHORT else re.escape(secret), MARK, text)
    text = re.sub(r"\S+", lambda word: _redacted_word(word[0]), text)
    return CONNINFO.sub(partial(_hidden_setting, lambda _: MARK), text)


def without_marks(url: str) -> str:
    """Return the URL without `***`, so that drivers use PGPASSWORD or ~/.pgpass."""
    base, question, query = url.replace(f":{MARK}@", "@", 1).partition("?")
    parameters = [parameter for parameter in query.split("&") if not parameter.endswith(f"={MARK}")]
    return base + question * bool(parameters) + "&".join(parameters)


def _redacted_word(word: str) -> str:
    if _url_in(word) is None:
        return word
    bare = word.rstrip(PUNCTUATION)
    return _rewritten(bare, lambda _: MARK) + word[len(bare) :]


def _passwords(url: str) -> set[str]:
    """Return the passwords of a URL, as written and decoded; a driver may take parts of them."""
    secrets: list[str] = []

    def hide(secret: str) -> str:
        secrets.append(secret)
        return MARK

    _rewritten(url, hide)
    parts = [part for secret in secrets for part in (secret, *re.split("[@/:?&#]", secret))]
    return {form for part in parts for form in (part, unquote(part), unquote_plus(part)) if form}


def _rewritten(text: str, hide: Hide) -> str:
    """Replace each password in a text by `hide(password)`."""
    url = _url_in(text)
    start = url.end() if url else 0
    # parameters first, as a password among them may contain an @
    rest = PARAMETER.sub(partial(_hidden_parameter, hide), text[start:])
    if url is None:
        rest = _hidden_login(rest, hide)
    else:
        slashes = len(url[0]) - len(url[0].rstrip("/"))
        rest = _hidden_authority((url["scheme"] or "").lower(), slashes, rest, hide)
    return text[:start] + CONNINFO.sub(partial(_hidden_setting, hide), rest)


def _url_in(text: str) -> re.Match[str] | None:
    """Find the start of the first URL; long texts without one are skipped quickly."""
    return URL.search(text) if "//" in text or ":/" in text else None


def _hidden_login(text: str, hide: Hide) -> str:
    """Hide the password of `user:password@host` without a scheme; a path has a slash before it."""
    login = re.match(r"([^/:]*:)(.+)(?=@)", text, re.S)
    return text if login is None else login[1] + hide(login[2]) + text[login.end() :]


def _hidden_authority(scheme: str, slashes: int, rest: str, hide: Hide) -> str:
    """Hide the password before the host in what follows the slashes.

    Database drivers end the password at the first @; a password that was not percent-encoded may
    contain more of them, so everything before the last one is hidden.
    """
    kind = scheme.partition("+")[0]
    if kind in WEB:
        end = re.search(r"[/?#]|\Z", rest)
        assert end is not None
        return _hidden_login(rest[: end.start()], hide) + rest[end.start() :]
    if kind in IN_FILES and slashes != 2:
        return rest
    hidden = _hidden_login(rest, hide)
    if hidden != rest or "@" in rest.partition(":")[2] or HOSTS.fullmatch(rest):
        return hidden
    user, colon, port = rest.partition(":")
    # something other than a port may be a password without a host
    return rest if "/" in user or not colon else user + colon + hide(port)


def _hidden_parameter(hide: Hide, parameter: re.Match[str]) -> str:
    key, value = parameter["key"], unquote_plus(parameter["value"])
    secret = SECRET_KEY.search(unquote_plus(key)) or redacted_text(value) != value
    return key + hide(parameter["value"]) if secret and value else parameter[0]


def _hidden_setting(hide: Hide, setting: re.Match[str]) -> str:
    value = setting["value"]
    bare = value[1:-1] if value[0] in "'\"" and value[0] == value[-1] else value
    known = bare == MARK or bare.startswith(f"{MARK}&")
    return setting["key"] + (value if known else hide(bare))
