"""Finds which tests run which lines of the judge, so that a mistake in a line is tried on those alone."""

import time
from collections.abc import Collection, Generator, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest
from coverage import Coverage, CoverageData

_DATA = "judge.coverage"
_TIMES = "judge.times"


@dataclass(frozen=True, kw_only=True)
class Covering:
    """Which tests run which lines, and how long each takes."""

    lines: Mapping[str, Mapping[int, Collection[str]]]  # by file, by number: node ids of tests
    took_s: Mapping[str, float]  # by node id

    def of(self, path: Path, line: int) -> tuple[str, ...]:
        """Return the tests that run a line, the shortest first. (): it runs when its module is imported, or never."""
        return self.of_any({path: (line,)})

    def of_any(self, lines: Mapping[Path, Iterable[int]]) -> tuple[str, ...]:
        """Return the tests that run one of some lines, by file, the shortest first."""
        found = {
            test
            for path, numbers in lines.items()
            for number in numbers
            for test in self.lines.get(str(path), {}).get(number, ())
            if test
        }
        return tuple(sorted(found, key=lambda test: (self.took_s.get(test, 0.0), test)))


class _Watch:
    """Notes what each test runs: as the context of the lines, in coverage's words."""

    def __init__(self, measured: Coverage) -> None:
        self._measured = measured
        self.took_s: dict[str, float] = {}

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Generator[None, object, object]:
        began_s = time.process_time()
        self._measured.switch_context(item.nodeid)
        try:
            return (yield)
        finally:
            self._measured.switch_context("")
            self.took_s[item.nodeid] = time.process_time() - began_s


def measure(folder: Path, options: Iterable[str], tests: Iterable[str], into: Path) -> int:
    """Run tests and write down which lines of a folder each of them runs. Returns pytest's status."""
    measured = Coverage(data_file=str(into / _DATA), source=[str(folder)], config_file=False)
    watch = _Watch(measured)
    measured.start()
    status = int(pytest.main([*options, *tests], plugins=[watch]))
    measured.stop()
    measured.save()
    (into / _TIMES).write_text("".join(f"{took_s:.4f} {test}\n" for test, took_s in watch.took_s.items()))
    return status


def read(into: Path) -> Covering:
    """Return what `measure` has written down."""
    data = CoverageData(str(into / _DATA))
    data.read()
    lines = {name: data.contexts_by_lineno(name) for name in data.measured_files()}
    times = (row.partition(" ") for row in (into / _TIMES).read_text().splitlines())
    return Covering(lines=lines, took_s={test: float(took_s) for took_s, _, test in times})
