"""Finds the communication calls that a piece of the user's source makes."""

import ast
from collections.abc import Iterable

from ncclwatch_agent.source.callers import Callers
from ncclwatch_agent.source.rank_words import dotted, words

OPS_MAX = 16  # names in one list
_CERTAIN = words(
    """all_reduce all_reduce_coalesced barrier monitored_barrier all_gather all_gather_into_tensor all_gather_single
    all_gather_object all_gather_coalesced reduce_scatter reduce_scatter_tensor reduce_scatter_single gather_object
    scatter_object_list broadcast_object_list all_to_all all_to_all_single isend irecv batch_isend_irecv
    send_object_list recv_object_list new_group new_subgroups new_subgroups_by_enumeration init_process_group
    destroy_process_group init_device_mesh split_group backward wait_for_everyone gather_for_metrics reduce_dict
    sync_gradients
    full_tensor redistribute distribute_tensor distribute_module state_dict optim_state_dict full_optim_state_dict
    get_model_state_dict get_optimizer_state_dict get_state_dict set_state_dict set_model_state_dict dcp_save
    async_save save_checkpoint save_state clip_grad_norm_ allreduce allgather save_pretrained"""
)
_AMBIGUOUS = frozenset(("reduce", "gather", "scatter", "send", "recv", "broadcast", "save", "load", "join"))
_DISTRIBUTED = words(
    """dist distributed torch.distributed c10d distributed_c10d dcp checkpoint dist_cp cp comm pg group process_group
    accelerator fabric strategy hvd mesh funcol ft_c _functional_collectives self.accelerator self.fabric self.pg
    self.group self.strategy"""
)


class Communication:
    """Knows the calls of one file: what it imported from torch.distributed, and its own functions."""

    def __init__(self, tree: ast.Module, callers: Callers) -> None:
        self._callers = callers
        self._aliases: dict[str, str] = {}
        self._modules: set[str] = set(_DISTRIBUTED)
        for node in ast.walk(tree):
            if isinstance(node, ast.ImportFrom) and "distributed" in (node.module or ""):
                for name in node.names:
                    self._aliases[name.asname or name.name] = name.name
            elif isinstance(node, ast.Import):
                self._modules |= {name.asname for name in node.names if name.asname and "distributed" in name.name}

    def calls(self, nodes: Iterable[ast.AST]) -> tuple[str, ...]:
        """Return the names of communication calls, in order, also those one call away in the same file."""
        found: dict[str, None] = {}
        for node in nodes:
            for call in _calls(node):
                own = self._callers.function_of(call)
                inside = [call] if own is None or own is node else _calls(own)
                found |= dict.fromkeys(name for one in inside if (name := self._name(one)))
        return tuple(found)[:OPS_MAX]

    def _name(self, call: ast.Call) -> str:
        """Return the name of a communication call, "" for any other call."""
        path = dotted(call.func)
        if not path:
            path = call.func.attr if isinstance(call.func, ast.Attribute) else ""
        base, _, name = path.rpartition(".")
        if not base and name in self._aliases:
            name = self._aliases[name]
            return name if name in _CERTAIN or name in _AMBIGUOUS else ""
        if name in _CERTAIN:
            return name
        return name if name in _AMBIGUOUS and base in self._modules else ""


def _calls(node: ast.AST) -> list[ast.Call]:
    """Return the calls inside a node in the order of the text, without those of functions defined in it."""
    found: list[ast.Call] = []
    pending: list[ast.AST] = [node]
    while pending:
        one = pending.pop()
        if isinstance(one, ast.Call):
            found.append(one)
        children = list(ast.iter_child_nodes(one))
        if not (isinstance(one, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda) and one is not node):
            pending += reversed(children)
    return sorted(found, key=lambda call: (call.lineno, call.col_offset))
