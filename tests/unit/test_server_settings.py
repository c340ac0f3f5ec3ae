"""What a server may be told, and what it refuses."""

from pathlib import Path

import pytest

from ncclwatch.contract.errors import ConfigError
from ncclwatch_server import settings


def test_a_public_address_needs_a_token() -> None:
    for host in ("0.0.0.0", "::", "10.1.2.3", "head.cluster"):
        with pytest.raises(ConfigError, match="NCCLWATCH_TOKEN"):
            settings.check_exposure(host, "")
        settings.check_exposure(host, "secret")
    for host in ("127.0.0.1", "127.1.2.3", "::1", "localhost"):
        settings.check_exposure(host, "")


def test_the_token_comes_from_the_environment_or_a_file(tmp_path: Path) -> None:
    path = tmp_path / "token"
    path.write_text("filed\n")
    assert settings.read_token({}) == ""
    assert settings.read_token({"NCCLWATCH_TOKEN_FILE": str(path)}) == "filed"
    assert settings.read_token({"NCCLWATCH_TOKEN_FILE": str(path), "NCCLWATCH_TOKEN": "said"}) == "said"


def test_a_token_file_that_holds_none_is_refused(tmp_path: Path) -> None:
    (tmp_path / "empty").write_text("\n")
    for name in ("empty", "none"):
        with pytest.raises(ConfigError, match="NCCLWATCH_TOKEN_FILE"):
            settings.read_token({"NCCLWATCH_TOKEN_FILE": str(tmp_path / name)})


def test_incidents_are_kept_in_the_users_state_directory() -> None:
    assert settings.store_url("", {"XDG_STATE_HOME": "/s"}) == "sqlite:////s/ncclwatch/incidents.db"
    assert settings.store_url("", {}).endswith("/.local/state/ncclwatch/incidents.db")
    assert settings.store_url("/x/y.db") == "sqlite:////x/y.db"
    assert settings.store_url("postgresql://h/db") == "postgresql://h/db"
