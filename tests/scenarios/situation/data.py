"""Reads loaders, saves, devices and random states."""

from collections.abc import Mapping

from ncclwatch.contract.model.devices import DeviceView
from ncclwatch.contract.model.rank import LoaderView, RngRestore, SaveView
from tests.scenarios.situation.state import Command, State
from tests.scenarios.situation.words import options_of, ranks_of, site_of


def loader(state: State, words: list[str]) -> None:
    found = options_of(words[2:])
    for rank in ranks_of(words[0]):
        loader = LoaderView(
            site=site_of(words[1]), passes=int(found["pass"]), drawn=int(found["drawn"]),
            exhausted="exhausted" in found,
            last_drawn=int(found.get("last", found["drawn"] if "exhausted" in found else "0")),
            length=int(found.get("length", "0")),
        )  # fmt: skip
        state.change(rank, loaders=(*state.ranks[rank].loaders, loader))


def save(state: State, words: list[str]) -> None:
    names, call, path, site, *rest = words
    found = options_of(rest)
    name = found.get("id", path)
    for rank in ranks_of(names):
        save = SaveView(
            call=call, path=path, tid=int(found.get("thread", "1")) * 1000 + rank, began_s=float(found["began"]),
            ended_s=float(found["ended"]) if "ended" in found else None, site=site_of(site),
            identity="" if name == "-" else name, written_bytes=int(found.get("written", "-1")),
            bytes_per_s=float(found.get("rate", "0")), still_s=float(found.get("still", "0")),
            error=found.get("error", ""), refused=found.get("refused", ""), appends="appends" in found,
            unanswered_s=float(found.get("unanswered", "0")), total_bytes=int(found.get("total", "-1")),
            as_before="as_before" in found, lacks_bytes=int(found.get("lacks", "0")),
            free_bytes=int(found.get("free", "-1")),
        )  # fmt: skip
        state.change(rank, saves=(*state.ranks[rank].saves, save))


def cuda(state: State, words: list[str]) -> None:
    found = options_of(words[2:])
    for rank in ranks_of(words[0]):
        device = DeviceView(
            uuid=words[1], index=int(found.get("index", "0")), chosen=int(found.get("chosen", "-1")),
            used="used" in found, count=int(found.get("count", "0")), visible=found.get("visible"),
            local_rank=state.ranks[rank].local_rank, backend=found.get("by", "cuda:nccl"),
            sharing=found.get("may", ""), trouble=found.get("sick", ""),
        )  # fmt: skip
        state.change(rank, cuda=device)


def rng(state: State, words: list[str]) -> None:
    own = int(options_of(words[4:]).get("own", "-1"))
    for rank in ranks_of(words[0]):
        restored = RngRestore(
            call="torch.cuda.set_rng_state_all", saved=int(words[1]), present=int(words[2]), own=own,
            site=site_of(words[3]),
        )  # fmt: skip
        state.change(rank, rng=restored)


COMMANDS: Mapping[str, Command] = {"loader": loader, "save": save, "cuda": cuda, "rng": rng}
