"""JSON that anybody may have written: what comes of it can be passed on."""

import json

import msgspec
import pytest

from ncclwatch.contract import foreign_json, wire


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ('{"a": [1, -2.5, "é", true, null]}', {"a": [1, -2.5, "é", True, None]}),
        (b'"\xff"', "\ufffd"),
        ('["\\ud800x", "\\ud83d\\ude00"]', ["?x", "😀"]),
        ('{"\\udcff": "\\udcff"}', {"?": "?"}),
        (f"[{10**18 - 1}, {10**18}, -{10**18}, {'9' * 5000}]", [10**18 - 1, None, None, None]),
        ("[1e999, NaN, -Infinity, 1e308]", [None, None, None, 1e308]),
        ("", None),
        ("[" * 100_000, None),
        ('{"a": ', None),
    ],
)
def test_what_cannot_be_passed_on_is_left_out(text: str | bytes, value: object) -> None:
    assert foreign_json.read(text) == value
    assert msgspec.json.decode(msgspec.json.encode(foreign_json.read(text))) == value


def test_a_message_with_a_name_that_is_no_text_arrives_with_question_marks() -> None:
    said = wire.Hello(protocol=1, agent="a", host="node\udcff", version="1")
    arrived = wire.decode_from_agent(wire.encode(said))
    assert arrived == msgspec.structs.replace(said, host="node?")
    assert json.loads(wire.encode(said))["type"] == "hello"


def test_bytes_that_are_no_text_are_no_message() -> None:
    with pytest.raises(wire.WireError, match="no message of protocol"):
        wire.decode_from_server(b'{"type":"refused","reason":"\xff"}')
