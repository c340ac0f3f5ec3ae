"""Reads how ranks say that they were set up."""

import json
import shlex
from collections.abc import Mapping

from ncclwatch.contract.model.preflight import SamplerFacts, parse, parse_parameters
from ncclwatch.rank.checks.preflight import Chain
from tests.scenarios.situation.state import Command, State
from tests.scenarios.situation.words import ranks_of, site_of


def facts(state: State, words: list[str]) -> None:
    for rank in ranks_of(words[0]):
        state.facts.setdefault(rank, {}).update(word.split("=", 1) for word in words[1:])


def sampler(state: State, words: list[str]) -> None:
    site, options = site_of(words[1]), dict(word.split("=", 1) for word in words[3:] if "=" in word)
    said = SamplerFacts(
        site=(site.file, site.line, site.function), kind="DistributedSampler", parts=int(words[2]),
        part=next((word for word in words[3:] if "=" not in word), ""), samples=int(options.get("samples", "0")),
        length=int(options.get("length", "0")),
        order=f"shuffled with seed {options['seed']}" if "seed" in options else "",
    )  # fmt: skip
    for rank in ranks_of(words[0]):
        state.samplers[rank] = (*state.samplers.get(rank, ()), said)


def wrapped(state: State, words: list[str]) -> None:
    names, kind, members, *rest = words
    used = rest[0] == "used"
    chain = Chain(kind, members)
    for unit in " ".join(f'"{word}"' if word != "/" else word for word in rest[used:]).split("/"):
        chain.add([tuple(each.split(" ", 1)) for each in shlex.split(unit)], ["/home/user/train.py", 20, "main"])
    if used:
        chain.used = len(chain.units)
    said = json.dumps({"models": [chain.told()]})
    for rank in ranks_of(names):
        state.models[rank] = (*state.models.get(rank, ()), *parse(said).models)
        state.parameters.setdefault((kind, members), {})[rank] = parse_parameters(said, (kind, members))


def says(state: State, words: list[str]) -> None:
    state.worlds[int(words[1])] = ranks_of(words[0])


def twice(state: State, words: list[str]) -> None:
    state.twice |= {rank: tuple(words[1:]) for rank in ranks_of(words[0])}


def clock(state: State, words: list[str]) -> None:
    state.clocks_s[words[0]] = float(words[1])


def endpoint(state: State, words: list[str]) -> None:
    for rank in ranks_of(words[0]):
        state.change(rank, endpoint=words[1])


COMMANDS: Mapping[str, Command] = {
    "facts": facts,
    "sampler": sampler,
    "wrapped": wrapped,
    "says": says,
    "twice": twice,
    "clock": clock,
    "endpoint": endpoint,
}
