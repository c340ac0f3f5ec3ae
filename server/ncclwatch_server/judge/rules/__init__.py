"""Names why a job hangs: one module for each cause, with how it is recognised, its sentences and its advice.

RULES is the one order in which causes are asked: the first that recognises a root explains it. To add a cause is to
write one module, and to name it here (docs/adding-a-cause.md).
"""

from ncclwatch_server.judge.explanation import Explanation, Rule
from ncclwatch_server.judge.rules import (
    collective_order,
    configuration_drift,
    conflicting_save,
    data_stall,
    divergent_control_flow,
    duplicate_device,
    failed_save,
    filesystem_view,
    group_destroyed,
    host_stall,
    init_incomplete,
    node_lost,
    p2p_deadlock,
    process_frozen,
    rank_conditional_collective,
    rank_crashed,
    rank_exited,
    rng_state_mismatch,
    signature_mismatch,
    straggler,
    stuck_save,
    swallowed_exception,
    transport,
    undetermined,
    uneven_batches,
)
from ncclwatch_server.judge.rules.by_repair import with_repair
from ncclwatch_server.judge.theory.case import Case
from ncclwatch_server.judge.theory.roots import Root

__all__ = ["ADVICE", "RULES", "explain"]

RULES: tuple[Rule, ...] = (
    process_frozen.RULE,
    swallowed_exception.RULE,
    uneven_batches.RULE,
    signature_mismatch.RULE,
    collective_order.RULE,
    p2p_deadlock.RULE,
    rank_conditional_collective.RULE,
    divergent_control_flow.RULE,
    group_destroyed.RULE,
    init_incomplete.RULE,
    node_lost.RULE,
    data_stall.RULE,
    stuck_save.RULE,
    filesystem_view.RULE,
    host_stall.RULE,
    # Of a crash the closer causes first.
    duplicate_device.RULE,
    rng_state_mismatch.RULE,
    configuration_drift.RULE,
    rank_crashed.RULE,
    rank_exited.RULE,
    conflicting_save.RULE,
    failed_save.RULE,
    transport.RULE,
    straggler.RULE,
    undetermined.RULE,
)
ADVICE = {rule.cause: rule.advice for rule in RULES}


def explain(root: Root, case: Case) -> Explanation | None:
    """Return why a root is there by the first rule that recognises it, None if none does."""
    for rule in RULES:
        found = rule.recognise(root, case)
        if found is not None:
            return with_repair(case, root, found, rule)
    return None
