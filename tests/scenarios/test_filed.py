"""Each scenario as the files that its ranks leave: the analyzer accuses nobody whom the living job does not."""

from pathlib import Path

from ncclwatch_server.judge import judge
from tests.scenarios.filed import awaited_in, claims_in_files, claims_of, is_backed, left_by
from tests.scenarios.texts import each_as, read


@each_as("unfiled")
def test_files_say_the_same_or_less(path: Path, tmp_path: Path):
    snapshot = read(path)[0].snapshot()
    live, awaited = claims_of(judge(snapshot)), awaited_in(snapshot)
    found = claims_in_files(left_by(snapshot, tmp_path))
    assert [claim for claim in found if not is_backed(claim, live, awaited)] == []
