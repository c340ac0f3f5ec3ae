"""A call site is read from the ring's strings as it was written, with who called it."""

import pytest

from ncclwatch.contract.model.rank import CallSite, GradMode, ModuleView
from ncclwatch.contract.ring.call_sites import SiteText, parse, read_routes, write

NORM = ModuleView(root="model", path="layers.*.norm", kind="Norm", training=True, grad=GradMode.GRAD)


@pytest.mark.parametrize(
    "site",
    [
        SiteText("/train.py", 7, "main"),
        SiteText("/train.py", 7, "main", "gradient bucket 2 (fc.weight and 3 more)"),
        SiteText("/mean.py", 3, "mean", "", (40, 90)),
        SiteText("/mean.py", 3, "mean", "FSDP unit 1", (40,)),
        SiteText("", 0, "", "gradient bucket 0"),
        SiteText("/norm.py", 3, "forward", "", (), NORM),
        SiteText("/norm.py", 3, "forward", "FSDP unit 1", (40,), NORM),
    ],
)
def test_what_is_written_is_read(site: SiteText):
    assert parse(write(site)) == site


@pytest.mark.parametrize("text", ["", "default_pg", "/a.py\x1f3", "/a.py\x1fx\x1ff", "a\x1f1\x1fb\x1fc\x1f2\x1fd"])
def test_other_texts_are_no_call_sites(text: str):
    assert parse(text) is None


def test_ways_are_numbered_once_whatever_their_operations_are_for():
    strings = [
        (4, "default_pg"),
        (10, write(SiteText("/train.py", 30, "step"))),
        (20, write(SiteText("/train.py", 55, "validate"))),
        (30, write(SiteText("/mean.py", 7, "mean", "", (10,)))),
        (40, write(SiteText("/mean.py", 7, "mean", "", (20,)))),
        (50, write(SiteText("/mean.py", 7, "mean", "FSDP unit 1", (20,)))),
        (60, write(SiteText("/mean.py", 7, "mean", "", (999,)))),  # its caller found no room
    ]
    mean, step = (
        CallSite(file="/mean.py", line=7, function="mean"),
        CallSite(file="/train.py", line=30, function="step"),
    )
    validate = CallSite(file="/train.py", line=55, function="validate")
    routes = read_routes(strings, 10)
    assert routes.frames == ((mean, step), (mean, validate))
    assert [routes.of(site) for site in (30, 40, 50, 60, 10)] == [1, 2, 2, 0, 0]
    assert read_routes(strings, 1).frames == ((mean, validate),)
    assert [read_routes(strings, 1).of(site) for site in (30, 40)] == [0, 1]


def test_one_way_in_two_modes_is_one_way_and_two_modules():
    frozen = ModuleView(root="model", path="layers.*.norm", kind="Norm", training=True, grad=GradMode.NO_GRAD)
    strings = [
        (10, write(SiteText("/train.py", 30, "step"))),
        (20, write(SiteText("/norm.py", 7, "forward", "", (10,), NORM))),
        (30, write(SiteText("/norm.py", 7, "forward", "", (10,), frozen))),
        (40, write(SiteText("/norm.py", 9, "forward", "", (10,), NORM))),
    ]
    routes = read_routes(strings, 10)
    assert [routes.of(site) for site in (20, 30, 40)] == [1, 1, 2]
    assert routes.modules == (NORM, frozen)
    assert [routes.module_of(site) for site in (10, 20, 30, 40)] == [0, 1, 2, 1]
