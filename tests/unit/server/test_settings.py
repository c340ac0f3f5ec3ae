"""What a server may be told, and what it refuses."""

from pathlib import Path

import pytest

from ncclwatch.contract.errors import ConfigError
from ncclwatch_server import settings
from ncclwatch_server.security.scopes import Scope


def test_a_public_address_needs_a_token() -> None:
    for host in ("0.0.0.0", "::", "10.1.2.3", "head.cluster"):
        with pytest.raises(ConfigError, match="NCCLWATCH_TOKEN"):
            settings.check_exposure(host, guarded=False)
        settings.check_exposure(host, guarded=True)
    for host in ("127.0.0.1", "127.1.2.3", "::1", "localhost"):
        settings.check_exposure(host, guarded=False)


def test_tokens_come_from_the_environment_or_a_file_and_each_has_its_scopes(tmp_path: Path) -> None:
    path = tmp_path / "token"
    path.write_text("# of the nodes\nnew\nold name=nodes until=2027-01-31T12:00Z\n")
    grants = settings.read_grants(
        {
            "NCCLWATCH_TOKEN": "all",
            "NCCLWATCH_TOKEN_FILE": "/nowhere",
            "NCCLWATCH_AGENT_TOKEN_FILE": str(path),
            "NCCLWATCH_VIEWER_TOKEN": "v name=wall",
            "NCCLWATCH_OPERATOR_TOKEN": "o",
        }
    )
    assert [(g.token.secret, g.token.name, g.scopes) for g in grants] == [
        ("all", "", frozenset(Scope)),
        ("new", "", {Scope.AGENT}),
        ("old", "nodes", {Scope.AGENT}),
        ("v", "wall", {Scope.VIEWER}),
        ("o", "", {Scope.OPERATOR, Scope.VIEWER}),
    ]
    assert grants[2].token.until == 1801396800.0
    assert settings.read_grants({}) == ()


def test_on_a_private_server_each_token_of_its_user_is_good_for_everything() -> None:
    (grant,) = settings.read_grants({"NCCLWATCH_AGENT_TOKEN": "a"}, private=True)
    assert grant.scopes == frozenset(Scope)


def test_a_token_file_that_holds_none_is_refused(tmp_path: Path) -> None:
    (tmp_path / "empty").write_text("\n# nothing\n")
    for name in ("empty", "none"):
        for variable in ("NCCLWATCH_TOKEN_FILE", "NCCLWATCH_OPERATOR_TOKEN_FILE"):
            with pytest.raises(ConfigError, match=variable):
                settings.read_grants({variable: str(tmp_path / name)})


def test_incidents_are_kept_in_the_users_state_directory() -> None:
    assert settings.store_url("", {"XDG_STATE_HOME": "/s"}) == "sqlite:////s/ncclwatch/incidents.db"
    assert settings.store_url("", {}).endswith("/.local/state/ncclwatch/incidents.db")
    assert settings.store_url("/x/y.db") == "sqlite:////x/y.db"
    assert settings.store_url("postgresql://h/db") == "postgresql://h/db"
