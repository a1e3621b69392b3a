"""What is shown and what is written to files holds no password."""

import string
from urllib.parse import quote, urlencode

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from chop.system.redaction import redacted, redacted_text, without_marks

SCHEMES = st.sampled_from(
    ["postgresql", "postgresql+psycopg", "postgres", "mysql+pymysql", "oracle", "mssql+pyodbc"]
)
LETTERS = string.ascii_letters + string.digits
HOSTS = st.one_of(
    st.text(LETTERS + "-.", min_size=1, max_size=12), st.sampled_from(["[::1]", "10.0.0.7", ""])
)
PORTS = st.one_of(st.just(""), st.integers(1, 65535).map(lambda port: f":{port}"))
NAMES = st.text(min_size=1, max_size=12)
KEYS = ["sslmode", "application_name", "options", "connect_timeout", "host", "sslkey", "passfile"]
PARAMETERS = st.dictionaries(st.sampled_from(KEYS), st.text(max_size=8), max_size=3)
SLASHES = st.sampled_from(["://", ":/", ":///"])


@st.composite
def places(draw):
    """Host, port, database and parameters: the end of a URL, in which nothing is secret."""
    place = draw(HOSTS) + draw(PORTS) + "/" + quote(draw(NAMES))
    parameters = draw(PARAMETERS)
    return place + (f"?{urlencode(parameters)}" if parameters else "")


@st.composite
def users(draw):
    """A user as it is written in a URL: encoded, or with the @ of a cloud's names."""
    user = quote(draw(st.text(max_size=8)), safe="")
    return draw(st.sampled_from([user, f"{user}@corp"]))


@given(SCHEMES, SLASHES, users(), NAMES, places(), st.booleans())
def test_a_password_before_the_host_never_appears(scheme, slashes, user, password, place, encoded):
    written = quote(password, safe="") if encoded else password
    shown = redacted(f"{scheme}{slashes}{user}:{written}@{place}")
    assert shown == f"{scheme}{slashes}{user}:***@{place}"


@given(
    SCHEMES,
    st.sampled_from(["password", "sslpassword", "PASSWORD", "p%61ssword", "passwd"]),
    NAMES,
    places(),
    st.booleans(),
)
def test_a_password_among_the_parameters_never_appears(scheme, key, password, place, encoded):
    written = quote(password, safe="") if encoded else password.replace("&", "")
    assume(written)
    joint = "&" if "?" in place else "?"
    shown = redacted(f"{scheme}://me@{place}{joint}{key}={written}&sslmode=require")
    assert shown == f"{scheme}://me@{place}{joint}{key}=***&sslmode=require"


@given(SCHEMES, st.text(LETTERS + "_-.", max_size=8), places())
def test_a_url_without_a_password_is_unchanged(scheme, user, place):
    for url in (f"{scheme}://{user}@{place}", f"{scheme}://{place}", f"{scheme}://{user}:@{place}"):
        assert redacted(url) == url
        assert redacted_text(url) == url
        assert without_marks(url) == url


@given(SCHEMES, users(), NAMES, places())
def test_what_is_redacted_stays_as_it_is(scheme, user, password, place):
    shown = redacted(f"{scheme}://{user}:{password}@{place}")
    assert redacted(shown) == shown
    assert without_marks(shown) != shown


@given(SCHEMES, st.text(string.printable.strip(), min_size=4, max_size=12), places())
def test_an_error_that_quotes_parts_of_a_url_shows_no_password(scheme, password, place):
    encoded = quote(password, safe="")
    url = f"{scheme}://me:{encoded}@{place}"
    said = redacted_text(f'cannot read "{password}", host {encoded} of {url} is unknown', url)
    assume(password not in f'cannot read "***", host *** of {scheme}://me:***@{place} is unknown')
    assert password not in said
    assert encoded not in said


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("postgresql://me:PW@host:5432/db", "postgresql://me:***@host:5432/db"),
        ("postgresql://user@corp:PW@host/db", "postgresql://user@corp:***@host/db"),
        ("postgresql://me:P/W@x@host:5432/db", "postgresql://me:***@host:5432/db"),
        ("postgresql+psycopg://:P%40W@/db", "postgresql+psycopg://:***@/db"),
        ("postgresql:/me:PW@host", "postgresql:/me:***@host"),
        ("postgresql:me:PW@host", "postgresql:***@host"),
        ("postgresql://me:PW/db", "postgresql://me:***"),
        ("//me:PW@host/db", "//me:***@host/db"),
        ("me:PW@host/db", "me:***@host/db"),
        ("delphi://me:PW@there/db", "delphi://me:***@there/db"),
        ("postgresql:///db?user=me&password=PW", "postgresql:///db?user=me&password=***"),
        ("postgresql://h/db?password=P&W&sslmode=no", "postgresql://h/db?password=***&sslmode=no"),
        ("postgresql://me@h:1/db?password=P@W", "postgresql://me@h:1/db?password=***"),
        ("sqlite:///a.db?password=PW", "sqlite:///a.db?password=***"),
        ("postgresql:///?dbname=postgresql%3A//me%3APW%40h/db", "postgresql:///?dbname=***"),
        ("mssql://?odbc_connect=UID%3Dme%3BPWD%3DPW", "mssql://?odbc_connect=***"),
        ("host=h user=me password=PW", "host=h user=me password=***"),
        ("https://me:PW@host/a@b", "https://me:***@host/a@b"),
        ("/here/postgresql:/me:PW@host/db", "/here/postgresql:/me:***@host/db"),
        ("--storage=postgresql://me:PW@host/db", "--storage=postgresql://me:***@host/db"),
    ],
)
def test_passwords_are_found_wherever_they_are_written(url, shown):
    assert redacted(url) == shown
    assert redacted([{"storage": url}]) == [{"storage": shown}]


@pytest.mark.parametrize(
    "value",
    [
        "/a/b:c@d",
        "/data/user@corp/run:3@x.journal",
        "sqlite:////a/b:c@d.db",
        "journal:///a/b:c@d",
        "postgresql://me@host/db",
        "postgresql://one:5432,two:5433/db",
        "postgresql://me@[::1]:5432/db",
        "http://host:8000/a@b",
        "search",
        "",
        None,
        3,
        ("a", 1.5),
    ],
)
def test_what_holds_no_password_is_unchanged(value):
    assert redacted(value) == value


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("no host in 'postgresql://me:PW@h/db'.", "no host in 'postgresql://me:***@h/db'."),
        ("see postgresql://me@h:5432, or ask", "see postgresql://me@h:5432, or ask"),
        ("bad conninfo: host=h password=PW dbname=d", "bad conninfo: host=h password=*** dbname=d"),
        ("password='P\\' W' dbname=d", "password=*** dbname=d"),
        ("{'password': 'PW', 'host': 'h'}", "{'password': ***, 'host': 'h'}"),
        ("at 12:30 me@x wrote", "at 12:30 me@x wrote"),
        ("password authentication failed", "password authentication failed"),
    ],
)
def test_messages_keep_all_but_the_password(text, shown):
    assert redacted_text(text) == shown


@pytest.mark.parametrize(
    ("url", "usable"),
    [
        ("postgresql://me:***@host/db", "postgresql://me@host/db"),
        ("postgresql://host/db?password=***", "postgresql://host/db"),
        ("postgresql://host/db?password=***&sslmode=no", "postgresql://host/db?sslmode=no"),
        ("postgresql://me:PW@host/db", "postgresql://me:PW@host/db"),
        ("postgresql://host/db?", "postgresql://host/db?"),
    ],
)
def test_a_redacted_url_is_usable_where_the_password_comes_from_elsewhere(url, usable):
    assert without_marks(url) == usable
