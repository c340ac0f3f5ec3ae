"""The documents name tests and files that exist."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
NAMED = re.findall(r"(tests/\S+\.py)::(test_\w+)", (ROOT / "docs/threat-model.md").read_text(encoding="utf-8"))


@pytest.mark.parametrize(("file", "test"), NAMED)
def test_each_assumption_of_the_threat_model_has_a_test(file: str, test: str) -> None:
    assert re.search(rf"^(async )?def {test}\(", (ROOT / file).read_text(encoding="utf-8"), re.MULTILINE)


def test_the_threat_model_names_tests() -> None:
    assert len(NAMED) > 40


@pytest.mark.parametrize("document", ["SECURITY.md", "docs/threat-model.md", "README.md"])
def test_links_lead_to_files(document: str) -> None:
    links = re.findall(r"\]\((?!https?:)([^)#]+)\)", (ROOT / document).read_text(encoding="utf-8"))
    missing = [link for link in links if not (ROOT / document).parent.joinpath(link).exists()]
    assert missing == []
