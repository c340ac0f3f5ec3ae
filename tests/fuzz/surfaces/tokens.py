"""A file of tokens, as an administrator's tool may have left it."""

from collections.abc import Hashable

from ncclwatch.contract.errors import ConfigError
from ncclwatch.contract.network import tokens
from tests.fuzz import mutation
from tests.fuzz.engine import Broken, Surface

SECRET = "correct-horse-battery-staple"


def check(data: bytes) -> Hashable:
    """Read tokens: they come, or a sentence that tells no secret."""
    text = data.decode("utf-8", "replace")
    try:
        found = tokens.parse(text, "FILE")
    except ConfigError as error:
        if SECRET in str(error):
            raise Broken(f"a sentence tells a secret: {error}") from error
        return str(error).partition(":")[2][:40]
    if any(not token.secret or len(token.secret.split()) != 1 or SECRET in repr(token) for token in found):
        raise Broken(f"these are no tokens: {found!r}")
    return len(found), sum(token.until is not None for token in found), sum(bool(token.name) for token in found)


SURFACE = Surface(
    name="tokens",
    seeds=(
        f"{SECRET}\n".encode(),
        f"# of the cluster\n{SECRET} name=alice until=2027-01-31T12:00Z\nother-word until=2026-12-31\n".encode(),
        f"{SECRET} until=2027-01-31T12:00+01:00 job=prod-* host=node7\n".encode(),
    ),
    mutate=mutation.of_bytes,
    check=check,
)
