"""The ranks of a job were not set up alike, and that is known to be why they hang, or why they ended."""

import re

from ncclwatch.contract.model.verdict import Cause
from ncclwatch.contract.words.text import ranks_words
from ncclwatch_server.judge.explanation import Explanation, Rule
from ncclwatch_server.judge.rules.drift.findings import ADVICE, findings
from ncclwatch_server.judge.rules.frames.ends import tell_closer
from ncclwatch_server.judge.telling.evidence import block_evidence, culprit
from ncclwatch_server.judge.telling.words import at_line, waiting_words
from ncclwatch_server.judge.theory.case import Case
from ncclwatch_server.judge.theory.roots import GoneRoot, LeftBehindRoot, Root

CAUSE = Cause.CONFIGURATION_DRIFT
DEBUG_SETTING = "TORCH_DISTRIBUTED_DEBUG"
# What DDP says of parameters that it compares, before and since 1.13. It may also have met another collective: then
# the models that ranks told of are the same, and nothing is said here.
_REFUSED = re.compile(
    r"DDP expects same model across all ranks|appears not to match (?:sizes|strides) of the same param"
)


def recognise(root: Root, case: Case) -> Explanation | None:
    """Explain a crash at the comparison of models that differ, and ranks that were left behind by others' settings."""
    if isinstance(root, GoneRoot):
        return _wrapped_otherwise(case, root)
    return _checked_alone(case, root) if isinstance(root, LeftBehindRoot) else None


def _wrapped_otherwise(case: Case, root: GoneRoot) -> Explanation | None:
    """Explain a crash of DDP at the comparison of models that are known to differ."""
    refused = [rank for rank in root.ends.failed if _refused(case, rank)]
    if root.ends.first not in refused:
        return None
    models = (each for each in findings(case.snapshot.setup, {}) if each.wrapper == "DDP")
    found = next((each for each in models if set(refused) <= {*each.odd, *each.others}), None)
    if found is None:
        return None
    ranks = tuple(rank for rank in found.odd if rank in case.views) or tuple(refused)
    known = Explanation(
        cause=CAUSE,
        summary=found.summary,
        explanation=found.explanation,
        advice=found.advice,
        culprits=(),
        victims=tuple(sorted(set(refused) - set(ranks))),
        evidence=found.evidence,
    )
    return tell_closer(case, known, ranks)


def _refused(case: Case, rank: int) -> bool:
    ending = case.views[rank].ending
    return ending is not None and _REFUSED.search(ending.exception) is not None


def _checked_alone(case: Case, root: LeftBehindRoot) -> Explanation | None:
    """Explain ranks whose collectives are to be checked against ranks that check nothing."""
    found = next((each for each in findings(case.snapshot.setup, {}) if DEBUG_SETTING in each.settings), None)
    if found is None:
        return None
    inside, gone_on = root.ranks, root.gone_on
    guilty = tuple(rank for rank in found.odd if rank in case.views)
    every_block = [block for rank in case.blocked for block in case.graph.blocks[rank]]
    sites = {block.rank: block.wait.site for block in every_block}
    verb, has = ("waits", "has") if len(inside) == 1 else ("wait", "have")
    return Explanation(
        cause=CAUSE,
        summary=(
            f"{found.summary.removesuffix('.')}; so {ranks_words(inside)} {verb} in "
            f"init_process_group{at_line(root.blocks[0].wait.site)} for a group that {ranks_words(gone_on)} "
            f"{'does' if len(gone_on) == 1 else 'do'} not create."
        ),
        explanation=(
            f"{found.explanation} {ranks_words(inside).capitalize()} {has} entered it and cannot leave it: "
            f"{waiting_words(case, every_block)}."
        ),
        advice=found.advice,
        culprits=tuple(culprit(case.views[rank], sites.get(rank), found.doing) for rank in guilty),
        victims=tuple(sorted({*root.victims} - set(guilty))),
        one_of=found.one_of,
        evidence=(*found.evidence[:4], *(block_evidence(block) for block in root.blocks[:16])),
    )


RULE = Rule(cause=CAUSE, advice=ADVICE, recognise=recognise)
