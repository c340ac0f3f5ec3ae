"""`make test` runs all stages, repeats live tests that failed, and is red for whatever fails then."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.integration

ROOT = Path(__file__).parents[2]
BY_CHANCE = """
from pathlib import Path
import pytest

@pytest.mark.parametrize("name", NAMES)
def test_first_time(name):
    seen = Path(f"{name}.seen")
    if not seen.exists():
        seen.touch()
        assert name == "was busy"
"""
ALWAYS = """
def test_fine():
    pass

def test_broken():
    assert 1 == 2
"""


def gate(place: Path, stages: dict[str, str], *live: str) -> tuple[int, str]:
    """Run stages, each a line of shell, and return the exit code and what was printed."""
    rules = [f"{name}:\n\t@{command}\n" for name, command in stages.items()]
    (place / "Makefile").write_text("\n".join([f".PHONY: {' '.join(stages)}", *rules]))
    command = [sys.executable, "-m", "tests.gate", *stages, *(f"--live={name}" for name in live)]
    environ = os.environ | {"PYTHONPATH": str(ROOT), "PYTEST_ADDOPTS": "-q -p no:cacheprovider"}
    environ.pop("MAKEFLAGS", None)
    done = subprocess.run(command, cwd=place, env=environ, capture_output=True, text=True, check=False)
    return done.returncode, done.stdout[done.stdout.rindex("\nstage ") :]


def written(place: Path, name: str, source: str) -> str:
    """Write a file of tests, and return the line that runs them as a stage."""
    (place / name).write_text(source)
    return f"{sys.executable} -m pytest {name} $(PYTEST_ARGS)"


def test_a_live_test_that_passes_when_it_runs_alone_is_unstable_and_the_run_is_green(tmp_path: Path):
    line = written(tmp_path, "test_chance.py", f"NAMES = ['one']\n{BY_CHANCE}")
    code, said = gate(tmp_path, {"live": line}, "live")
    assert code == 0, said
    assert "unstable: test_chance.py::test_first_time[one]: AssertionError: assert 'one' == 'was busy'\n" in said
    assert " s  test_chance.py\n" in said  # in the list of slow files
    assert said.endswith("all green\n")


def test_a_test_of_any_stage_that_has_started_a_process_is_live(tmp_path: Path):
    starts = BY_CHANCE.replace("    seen =", "    subprocess.run(['true'])\n    seen =")
    line = written(tmp_path, "test_chance.py", f"import subprocess\nNAMES = ['one']\n{starts}")
    code, said = gate(tmp_path, {"unit": f"{line} -p tests.live"})
    assert code == 0, said
    assert "unstable: test_chance.py::test_first_time[one]: AssertionError" in said


def test_it_is_not_run_again_beside_one_that_has_started_none(tmp_path: Path):
    starts = BY_CHANCE.replace("    seen =", "    if name == 'one': subprocess.run(['true'])\n    seen =")
    line = written(tmp_path, "test_chance.py", f"import subprocess\nNAMES = ['one', 'two']\n{starts}")
    code, said = gate(tmp_path, {"unit": f"{line} -p tests.live"})
    assert code == 1
    assert said.count("FAILED test_chance.py") == 2


def test_a_test_of_any_other_stage_runs_once(tmp_path: Path):
    line = written(tmp_path, "test_chance.py", f"NAMES = ['one']\n{BY_CHANCE}")
    code, said = gate(tmp_path, {"pure": line})
    assert code == 1
    assert "FAILED test_chance.py::test_first_time[one]: AssertionError" in said
    assert "unstable" not in said


def test_more_than_five_unstable_tests_are_red_over_all_stages(tmp_path: Path):
    three = written(tmp_path, "test_three.py", f"NAMES = list('abc')\n{BY_CHANCE}")
    others = written(tmp_path, "test_others.py", f"NAMES = list('xyz')\n{BY_CHANCE}")
    code, said = gate(tmp_path, {"one": three, "two": others}, "one", "two")
    assert code == 1
    assert said.count("unstable: ") == 3
    assert said.count("FAILED test_others.py") == 3


def test_tests_that_failed_in_one_set_up_count_as_one(tmp_path: Path):
    shared = """
from pathlib import Path
import pytest

@pytest.fixture(scope="module", params=PARAMS)
def prepared(request):
    seen = Path(f"{request.param}.seen")
    if not seen.exists():
        seen.touch()
        raise OSError("was busy" if SAME else f"{request.param} was busy")

@pytest.mark.parametrize("name", list("abcdefgh"))
def test_prepared(prepared, name):
    pass
"""
    line = written(tmp_path, "test_one.py", f"PARAMS, SAME = [0], True\n{shared}")
    code, said = gate(tmp_path, {"live": line}, "live")
    assert code == 0, said
    assert said.count("unstable: ") == 8
    line = written(tmp_path, "test_six.py", f"PARAMS, SAME = list(range(1, 7)), False\n{shared}")
    code, said = gate(tmp_path, {"live": line}, "live")
    assert code == 1
    assert said.count("FAILED test_six.py") == 6
    assert said.count("\n    7 more of this file with the same error\n") == 6


def test_all_stages_run_and_each_failure_has_a_command_that_repeats_it(tmp_path: Path):
    broken = written(tmp_path, "test_always.py", ALWAYS)
    code, said = gate(tmp_path, {"lint": "exit 3", "live": broken, "wheel": "true"}, "live")
    assert code == 1
    table = [line.split()[:2] for line in said.splitlines() if line.startswith(("lint", "live", "wheel"))]
    assert table == [["lint", "FAILED"], ["live", "FAILED"], ["wheel", "ok"]]
    assert "FAILED lint\n    make lint\n" in said
    again = f"{sys.executable} -m pytest test_always.py::test_broken"
    assert f"FAILED test_always.py::test_broken: assert 1 == 2\n    {again}\n" in said
    assert "test_fine" not in said


@pytest.mark.parametrize(
    "source", ["import nowhere_to_be_found", "import os\ndef test_dies():\n    os._exit(1)\n"], ids=["import", "death"]
)
def test_a_stage_whose_tests_cannot_run_is_red(tmp_path: Path, source: str):
    code, said = gate(tmp_path, {"live": written(tmp_path, "test_broken.py", source)}, "live")
    assert code == 1
    assert "FAILED live" in said or "FAILED test_broken.py" in said
