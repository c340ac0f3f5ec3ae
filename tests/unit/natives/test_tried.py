"""What ran where is written down: one row for each minor version of torch, and what failed by name."""

from xml.etree import ElementTree

from natives import tried

DOCUMENT = """# What ran

| torch | Python | loaded | native recorder | Python recorder | on | sources |
| --- | --- | --- | --- | --- | --- | --- |
| 2.6.0 | 3.11 | probed | 9 of 9 | 9 of 9 | then | a |
| 2.13.0 | 3.11 | probed | 9 of 9 | 9 of 9 | then | a |

More words.
"""
ROW = ("2.8.0", "3.11", "probed", "9 of 9", "8 of 9", "now", "b")


def test_a_row_comes_in_the_order_of_the_versions():
    lines = tried.with_row(DOCUMENT, "2.8", ROW).splitlines()
    assert [line.split(" | ")[0] for line in lines[4:7]] == ["| 2.6.0", "| 2.8.0", "| 2.13.0"]
    assert lines[7:] == ["", "More words."]


def test_a_row_takes_the_place_of_an_older_one_of_its_minor_version():
    once = tried.with_row(DOCUMENT, "2.8", ROW)
    assert tried.with_row(once, "2.8", ROW) == once


def test_other_operations_are_told_from_what_failed():
    cases = ElementTree.fromstring(
        """<suite>
        <testcase name="test_a_way[native-broadcast]"/>
        <testcase name="test_a_way[native-reduce]"><failure message="AssertionError: assert ['a'] == ['b']"/></testcase>
        <testcase name="test_a_way[native-gather]"><failure message="AssertionError: assert ('E', '') == 0"/></testcase>
        <testcase name="test_ranks_agree[native]"><error message="no"/></testcase>
        <testcase name="test_a_way[python-gather]"><failure message="no"/></testcase>
        </suite>"""
    )
    found = tried.summary([*cases.iter("testcase")], "native")
    assert found == "1 of 4; recorded otherwise: reduce; failed: gather, ranks agree"
