"""The command line as a whole: what it imports, its help, its exit codes, completion."""

import importlib
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from ncclwatch.cli import contributed
from ncclwatch.cli.exits import Exit
from ncclwatch.cli.main import COMMANDS, main
from ncclwatch.cli.output.moments import moment, span_s
from ncclwatch.contract.errors import ConfigError, NcclwatchError

HEAVY = ("rich", "msgspec", "jinja2", "psutil", "urllib.request", "torch", "numpy", "ncclwatch.contract.model.rank")


def modules_after(statement: str) -> set[str]:
    """Return what a fresh Python has imported after a statement."""
    code = f"import sys\n{statement}\nimport json\nprint()\nprint(json.dumps(list(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    return set(json.loads(done.stdout.splitlines()[-1]))


def test_version_imports_nothing_that_takes_time():
    statement = "from ncclwatch.cli.main import main; main(['version'], standalone_mode=False)"
    assert not modules_after(statement) & set(HEAVY)


def test_help_imports_no_command():
    loaded = modules_after("from ncclwatch.cli.main import main\ntry: main(['--help'])\nexcept SystemExit: pass")
    assert not loaded & {*HEAVY, "ncclwatch.cli.commands.status", "ncclwatch_server", "ncclwatch_agent"}


def test_json_needs_no_rich():
    statement = "from ncclwatch.cli.main import main; main(['config', 'show', '--json'], standalone_mode=False)"
    assert "rich" not in modules_after(statement)


def test_a_rank_imports_neither_rich_nor_jinja_nor_click():
    loaded = modules_after("import ncclwatch, ncclwatch.rank.attach")
    assert not loaded & {"rich", "jinja2", "click", "msgspec"}


@pytest.mark.parametrize("name", [name for name, lazy in COMMANDS.items() if lazy.place])
def test_every_command_is_where_the_list_says_and_says_what_it_is_for(name: str):
    module, attribute = COMMANDS[name].place.split(":")
    command = getattr(importlib.import_module(module), attribute)
    assert isinstance(command, click.Command)
    assert command.name == name
    done = CliRunner().invoke(main, [name, "--help"])
    assert done.exit_code == 0
    assert len(done.stdout.splitlines()) > 4


def test_every_contributed_command_has_its_line_of_help():
    if sys.version_info < (3, 11):
        pytest.skip("needs tomllib")
    import tomllib

    declared = tomllib.loads((Path(__file__).parents[3] / "pyproject.toml").read_text())["project"]["entry-points"]
    named = {name for name, lazy in COMMANDS.items() if not lazy.place}
    assert named == set(declared["ncclwatch.commands"]), "name it in cli/main.py: else --help imports it"


def test_the_help_lists_every_command_and_every_exit_code():
    said = CliRunner().invoke(main, ["--help"]).stdout
    for name in main.list_commands(click.Context(main)):
        assert re.search(rf"^  {name}  ", said, re.MULTILINE), name
    assert {name for name, lazy in COMMANDS.items() if lazy.place} <= set(main.list_commands(click.Context(main)))
    for code in Exit:
        assert re.search(rf"^ +{code.value}  \S", said, re.MULTILINE), code


def test_what_could_not_be_done_is_one_sentence_and_exit_code_2():
    done = CliRunner().invoke(main, ["stacks", "--rank", "x"])
    assert (done.exit_code, done.stdout) == (Exit.NOT_DONE, "")
    assert done.stderr == "ncclwatch: 'x' is no list of ranks: 'x' is not understood; write 3 or 0-7,12\n"


@pytest.mark.parametrize(("raised", "code"), [(KeyboardInterrupt, Exit.INTERRUPTED), (NcclwatchError, Exit.NOT_DONE)])
def test_ctrl_c_and_our_own_errors_have_codes_of_their_own(raised: type[BaseException], code: Exit):
    @click.group(cls=contributed.Commands)
    def group() -> None:
        """Nothing."""

    @group.command()
    def fails() -> None:
        raise raised("why")

    assert CliRunner().invoke(group, ["fails"]).exit_code == code


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_is_a_script_of_the_shell(shell: str):
    done = CliRunner().invoke(main, ["completion", shell])
    assert done.exit_code == 0
    assert f"_NCCLWATCH_COMPLETE={shell}_complete" in done.stdout


def test_a_shell_completes_commands_and_options():
    environ = {**os.environ, "_NCCLWATCH_COMPLETE": "bash_complete", "COMP_CWORD": "1", "COMP_WORDS": "ncclwatch sta"}
    run = "from ncclwatch.cli.main import main; main(prog_name='ncclwatch')"
    done = subprocess.run(
        [sys.executable, "-c", run], env=environ, capture_output=True, text=True, timeout=60, check=False
    )
    assert sorted(done.stdout.split()) == ["plain,stacks", "plain,status"]


def test_the_version_has_a_form_for_machines():
    said = json.loads(CliRunner().invoke(main, ["version", "--json"]).stdout)
    assert set(said) == {"schema", "ncclwatch", "python", "torch"}
    assert CliRunner().invoke(main, ["version"]).stdout == f"ncclwatch {said['ncclwatch']}\n"
    assert CliRunner().invoke(main, ["--version"]).stdout == f"ncclwatch {said['ncclwatch']}\n"


@pytest.mark.parametrize(
    ("written", "seconds"),
    [
        ("90s", 90), ("15m", 900), ("15min", 900), ("2h", 7200), ("3 d", 259200), ("1W", 604800), ("2026", None),
        ("", None), ("h", None), ("-1h", None),
    ],
)  # fmt: skip
def test_spans_are_written_with_a_unit(written: str, seconds: int | None):
    assert span_s(written) == seconds


def test_a_moment_without_a_zone_is_the_readers_own(monkeypatch: pytest.MonkeyPatch):
    import time

    monkeypatch.setenv("TZ", "Asia/Tokyo")
    time.tzset()
    try:
        assert moment("2026-11-20") == "2026-11-20T00:00:00+09:00"
        assert moment("2026-11-20T10:00:00Z") == "2026-11-20T19:00:00+09:00"
    finally:
        monkeypatch.undo()
        time.tzset()


@pytest.mark.parametrize("written", ["", "yesterday", "2026-13-01", "25:00"])
def test_what_is_no_time_is_told_with_examples(written: str):
    with pytest.raises(ConfigError, match="write 2h, 3d, 2026-11-20"):
        moment(written)


@pytest.mark.parametrize("form", ["--json", "--text"])
def test_an_answer_that_cannot_be_written_is_a_sentence_and_no_bad_news(form: str):
    command = [sys.executable, "-m", "ncclwatch", "config", "show", form]
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, timeout=60)
    assert done.returncode == Exit.NOT_DONE
    assert done.stderr.count("\n") == 1 and "cannot be written to standard output" in done.stderr


def test_no_standard_output_at_all_is_no_error():
    done = subprocess.run(
        ["sh", "-c", 'exec "$0" -m ncclwatch version --json >&-', sys.executable],
        capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, "")
