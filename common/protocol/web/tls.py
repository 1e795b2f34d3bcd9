"""TLS of services and of callers: contexts made from PEM files, and each fault in one line.

A service has a certificate, and may know its callers by certificates of an authority. Callers check the service's
certificate, and may have one of their own. The module imports nothing heavy: `distrust health` needs it, too.
"""

import os
import socket
import ssl
from functools import cache
from pathlib import Path
from typing import NoReturn

from distrust.common.errors import BadParameter
from distrust.common.inputs import read_file

CALLER_FILES = {
    "DISTRUST_CA": "file with the authorities that sign the services' certificates; unset: the system's",
    "DISTRUST_CLIENT_CERT": "file with this caller's certificate, for services that ask for one",
    "DISTRUST_CLIENT_KEY": "file with the key of this caller's certificate, readable by its owner only",
}
"""Variables that every caller of a service at https:// reads, and what they name. An empty one counts as unset."""

MOST_PEM = 2**20
"""Bytes of the longest file of certificates. That of a system with all public authorities has 0.3 MB."""

PROBE_SECONDS = 2.0
"""Seconds in which a service that speaks TLS answers the beginning of a handshake."""

SPEAKS_TLS = "TLS: the service there speaks TLS: its address begins with https://"

_OTHERS = 0o077  # permissions of users other than the owner
_UNKNOWN = {18, 19, 20, 21}  # X509_V_ERR_… for a certificate that no trusted authority has signed
_CALLERS = ("UNKNOWN_CA", "BAD_CERTIFICATE", "CERTIFICATE_EXPIRED", "CERTIFICATE_REVOKED", "CERTIFICATE_UNKNOWN")


class _AlertingObject(ssl.SSLObject):
    """The service's side of a connection. When it refuses a handshake, its caller is told why.

    Event loops close a connection whose handshake fails without sending the alert that OpenSSL wrote. Told that the
    handshake wants more bytes, they send it. What comes next, or the end of their time for handshakes, then ends it.
    """

    _refused = False

    def do_handshake(self) -> None:
        try:
            super().do_handshake()
        except (ssl.SSLWantReadError, ssl.SSLEOFError):
            raise
        except ssl.SSLError as error:
            if self._refused or error.reason == "HTTP_REQUEST":  # OpenSSL answers a plain request with no alert
                raise
            self._refused = True
            raise ssl.SSLWantReadError(ssl.SSL_ERROR_WANT_READ, "the alert is to be sent") from error


def service_context(cert: Path, key: Path, client_ca: Path | None) -> ssl.SSLContext:
    """Return the context of a service: TLS 1.2 or newer.

    client_ca  file with authorities: only callers with a certificate of theirs are served.
    Raises     BadParameter, naming the setting, for a file that cannot be used.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.sslobject_class = _AlertingObject
    _load_pair(context, ("tls_cert", cert), ("tls_key", key))
    if client_ca is not None:
        _load_authorities(context, "client_ca", client_ca)
        context.verify_mode = ssl.CERT_REQUIRED
    return context


@cache
def caller_context() -> ssl.SSLContext:
    """Return the context of all calls of this process to https:// addresses, from the variables of `CALLER_FILES`.

    It is made at the first such call: to read the system's authorities takes 30 to 60 ms. Raises BadParameter.
    """
    authority, cert, key = (os.environ.get(name) for name in CALLER_FILES)
    if authority:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        _load_authorities(context, "DISTRUST_CA", Path(authority))
    else:
        context = ssl.create_default_context()
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.set_alpn_protocols(["http/1.1"])
    if cert and key:
        _load_pair(context, ("DISTRUST_CLIENT_CERT", Path(cert)), ("DISTRUST_CLIENT_KEY", Path(key)))
    elif cert or key:
        check_pair("DISTRUST_CLIENT_CERT", cert, "DISTRUST_CLIENT_KEY", key)
    return context


def check_pair(cert_field: str, cert: Path | str | None, key_field: str, key: Path | str | None) -> None:
    """Raise BadParameter for a certificate without its key, or the other way round."""
    for one, given, other, missing in ((cert_field, cert, key_field, key), (key_field, key, cert_field, cert)):
        if given and not missing:
            raise BadParameter(one, str(given), f"needs {_variable(other)} beside it")


def _variable(field: str) -> str:
    return field if field.isupper() else f"DISTRUST_{field.upper()}"


def _read(field: str, path: Path) -> tuple[str, int]:
    """Return the text and the mode of a file."""
    try:
        raw, facts = read_file(path, MOST_PEM)
        return raw.decode("ascii"), facts.st_mode
    except OSError as error:
        raise BadParameter(field, str(path), f"{error.strerror}") from error
    except UnicodeDecodeError as error:
        raise BadParameter(field, str(path), "must be a PEM file") from error


def _load_authorities(context: ssl.SSLContext, field: str, path: Path) -> None:
    text, _ = _read(field, path)
    try:
        context.load_verify_locations(cadata=text)
    except (ssl.SSLError, ValueError) as error:
        raise BadParameter(field, str(path), "must be a PEM file with certificates") from error


def _load_pair(context: ssl.SSLContext, cert: tuple[str, Path], key: tuple[str, Path]) -> None:
    """Load a certificate and its key. Raises BadParameter, which names the file at fault."""
    _load_authorities(ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT), *cert)  # sees whether it holds certificates
    field, path = key
    text, mode = _read(field, path)
    if mode & _OTHERS:
        raise BadParameter(field, str(path), f"has mode {mode & 0o777:o}: must be readable by its owner only")
    if "PRIVATE KEY-----" not in text:
        raise BadParameter(field, str(path), "must be a PEM file with a private key")

    def no_password() -> NoReturn:
        raise BadParameter(field, str(path), "must be a key without a password: a service cannot type it")

    try:
        context.load_cert_chain(cert[1], path, no_password)
    except ssl.SSLError as error:
        unfit = error.reason in {"KEY_VALUES_MISMATCH", "KEY_TYPE_MISMATCH"}
        allowed = f"does not fit the certificate of {_variable(cert[0])}" if unfit else "must be a private key in PEM"
        raise BadParameter(field, str(path), allowed) from error
    except OSError as error:  # it went away meanwhile
        raise BadParameter(field, str(path), f"{error.strerror}") from error


def tls_fault(error: BaseException) -> str | None:
    """Return in a line why TLS failed, if trying again does not mend it; None for any other error."""
    cause = error
    while cause.__cause__ is not None:  # aiohttp's errors are of ssl's classes, and lack their attributes
        cause = cause.__cause__
    if not isinstance(cause, ssl.SSLError) or isinstance(cause, ssl.SSLEOFError | ssl.SSLZeroReturnError):
        return None  # a service that stops closes its connections
    if isinstance(cause, ssl.SSLCertVerificationError):
        hint = "; DISTRUST_CA names the authority to trust" if cause.verify_code in _UNKNOWN else ""
        return f"TLS: the service's certificate is refused: {cause.verify_message.rstrip('.')}{hint}"
    reason = cause.reason or str(cause)
    _, alert, words = reason.partition("ALERT_")
    if not alert:
        plain = reason in {"WRONG_VERSION_NUMBER", "RECORD_LAYER_FAILURE", "PACKET_LENGTH_TOO_LONG"}
        return (
            "TLS: no TLS is spoken there: does its address begin with http://?" if plain else f"TLS: {_words(reason)}"
        )
    if words == "CERTIFICATE_REQUIRED":
        return "TLS: the service wants a client certificate: set DISTRUST_CLIENT_CERT and DISTRUST_CLIENT_KEY"
    if words in _CALLERS:
        return f"TLS: the service refuses the client certificate of DISTRUST_CLIENT_CERT: {_words(words)}"
    return f"TLS: the service refuses the connection: {_words(words)}"


def _words(reason: str) -> str:
    return reason.lower().replace("_", " ")


def speaks_tls(host: str, port: int) -> bool:
    """Return whether a service answers the beginning of a TLS handshake. No certificate is checked; nothing is sent."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    try:
        with socket.create_connection((host, port), PROBE_SECONDS) as plain, context.wrap_socket(plain):
            return True
    except ssl.SSLError as error:
        return "ALERT" in (error.reason or "")
    except (OSError, ValueError):
        return False
