"""No secret comes through, whatever it is wrapped in; what is no secret stays readable."""

import io
import logging
import time
from typing import Any

import pytest

from sadih_dask.files.redaction import RedactingFilter, redact, redact_values

SECRET = "s3cr3tV4lue/+x"
JWT = "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0NTY3ODkwIn0.dozjgNryP4J3jVmNHl0w5N_XgL0n3I9P"
PEM = "-----BEGIN PRIVATE KEY-----\nMIIEvQIBADANs3cr3t\nAAAA\n-----END PRIVATE KEY-----"


@pytest.mark.parametrize(
    "text",
    [
        f"s3://user:{SECRET}@bucket/key",
        f"cannot open https://:{SECRET}@host:9000/x.zarr (403)",
        f"s3://AKIAABCDEFGHIJKLMNOP:{SECRET}@bucket/x",
        "https://s3cr3ttoken@host/x",
        f"https://host/x?sig={SECRET}&se=2026",
        f"https://host/a/b?X-Amz-Credential=abc&X-Amz-Signature={SECRET}",
        f"(see https://host/#access_token={SECRET})",
        f"https://host/x?a=b#access_token={SECRET}",
        f"abfs://c@account.dfs.core.windows.net/x?{SECRET}",
        f"{{'key': 'me', 'secret': '{SECRET}', 'anon': False}}",
        f'{{"aws_secret_access_key": "{SECRET}"}}',
        f'{{"password":"with \\" quote {SECRET}"}}',
        f"'password': b'{SECRET}'",
        f"AWS_SECRET_ACCESS_KEY={SECRET}",
        f"export AWS_SESSION_TOKEN='{SECRET}'",
        f"secret_key => {SECRET}",
        f"fs.s3a.secret.key={SECRET}",
        f"storage_options=dict(token={SECRET!r})",
        f"sadih run c.toml --set x.password={SECRET}",
        f"tool --api-key {SECRET} --verbose",
        f"tool --password={SECRET}",
        f"Authorization: Bearer {SECRET}",
        f"{{'Authorization': 'Basic {SECRET}'}}",
        f"authorization: AWS4-HMAC-SHA256 Credential=AKIA, Signature={SECRET}",
        f"sent 'Bearer {SECRET}{SECRET}' and was refused",
        f"DefaultEndpointsProtocol=https;AccountKey={SECRET};x=y",
        f"connection_string = 'Server=x;Pwd={SECRET}'",
        f"PASSWORD: {SECRET}",
        f"my_passwd={SECRET}",
        f'key_passphrase = "{SECRET}"',
        f"tcp://u:{SECRET}?/@host:8786",
        f"S3://USER:{SECRET}@BUCKET",
        f"Set-Cookie: session={SECRET}",
    ],
)
def test_a_secret_is_hidden(text: str) -> None:
    assert SECRET not in redact(text)
    assert "s3cr3t" not in redact(text).lower()
    assert "***" in redact(text)
    assert redact(redact(text)) == redact(text)


@pytest.mark.parametrize(
    "secret",
    [
        JWT,
        "AKIAIOSFODNN7EXAMPLE",
        "ASIAIOSFODNN7EXAMPLE",
        "ghp_16C7e42F292c6912E7710c838347Ae178B4a",
        "hf_abcdefghijklmnopqrstuvwxyz",
        "glpat-abcdefghij1234567890",
        PEM,
        PEM.replace("PRIVATE", "RSA PRIVATE"),
        PEM[:60],  # a message that was cut
    ],
)
def test_a_known_form_is_hidden_wherever_it_stands(secret: str) -> None:
    assert redact(f"what came back was {secret}").strip() == "what came back was ***"


@pytest.mark.parametrize(
    "text",
    [
        "the scan was not started: predicted peak 3.2 GiB a process, but 2 GiB are allowed",
        "array 'features', chunk 5 of s3://bucket/store.zarr: checksum 1a2b3c4d, expected 5e6f",
        "scheduler at tls://10.0.0.7:8786, dashboard http://127.0.0.1:8787/status",
        "nan at row 3333, column 7",
        "give --tls-key FILE or SADIH_TLS_KEY",
        "fingerprint sha256:9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08",
        "block_rows=8192 would fit; k=10, seed=0",
        "no key 'labels' in file.npz; there are x, y",
        "a basic question: which rows?",
        "",
    ],
)
def test_what_is_no_secret_stays(text: str) -> None:
    assert redact(text) == text


def test_what_is_left_says_where() -> None:
    assert redact("s3://u:p@bucket/x.zarr?versionId=3 is damaged") == (
        "s3://***@bucket/x.zarr?*** is damaged"
    )
    assert redact("{'secret': 'a', 'anon': True}") == "{'secret': ***, 'anon': True}"


@pytest.mark.parametrize(
    "text",
    [
        "a" * 300_000,
        "a://b:" * 50_000,
        "a://" * 75_000,
        "a.b-" * 75_000,
        "token" * 60_000,
        '"' * 300_000,
        "password='" + "\\" * 300_000,
        "-----BEGIN PRIVATE KEY-----" * 11_000,
        "basic " * 50_000,
    ],
    ids=lambda text: text[:12],
)
def test_long_nonsense_takes_no_longer_than_long_text(text: str) -> None:
    """Nothing is quadratic: ten times the text is no hundred times the work."""

    def seconds(sample: str) -> float:
        began = time.process_time()
        redact(sample)
        return time.process_time() - began

    short, long = max(seconds(text[:30_000]), 0.02), seconds(text)
    assert long < 40 * short


def test_settings_are_copied_without_secrets() -> None:
    options: dict[str, Any] = {
        "key": "me",
        "secret": "abc",
        "token": None,
        "anon": False,
        "client_kwargs": {"endpoint_url": "https://u:p@host", "aws_access_key_id": "x"},
        "urls": ["s3://a:b@c/d", 7],
        "n_bits": 64,
    }
    assert redact_values(options) == {
        "key": "***",
        "secret": "***",
        "token": None,
        "anon": False,
        "client_kwargs": {"endpoint_url": "https://***@host", "aws_access_key_id": "***"},
        "urls": ["s3://***@c/d", 7],
        "n_bits": 64,
    }
    assert options["secret"] == "abc"


def test_a_log_has_no_secrets_in_messages_arguments_or_tracebacks() -> None:
    stream = io.StringIO()
    handler = logging.StreamHandler(stream)
    handler.addFilter(RedactingFilter())
    logger = logging.Logger("test")
    logger.addHandler(handler)
    logger.warning("reading %s with %s", f"s3://u:{SECRET}@b/x", {"secret": SECRET})
    try:
        raise OSError(f"https://host/x?sig={SECRET}")
    except OSError:
        logger.exception("failed", stack_info=True)
    said = stream.getvalue()
    assert SECRET not in said
    assert "s3://***@b/x" in said
    assert "OSError: https://host/x?***" in said
    assert "Stack (most recent call last)" in said
