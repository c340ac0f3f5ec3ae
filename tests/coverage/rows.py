"""Every way in which torch moves data between ranks, or makes ranks wait: one function for each row of the table."""

import datetime
import os
import sys
import threading
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
import torch.distributed.nn.functional as dist_nn
from torch import nn
from torch.distributed import _functional_collectives as functional
from torch.distributed import all_reduce as early_bound_all_reduce
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
from torch.distributed.algorithms.join import Join
from torch.distributed.checkpoint import state_dict as checkpoint_state
from torch.distributed.fsdp import (
    FullStateDictConfig,
    FullyShardedDataParallel,
    ShardedOptimStateDictConfig,
    ShardedStateDictConfig,
    StateDictType,
    fully_shard,
)
from torch.distributed.fsdp.wrap import ModuleWrapPolicy
from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleInterleaved1F1B
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_tensor
from torch.nn.parallel import DistributedDataParallel

RANK, SHARED = int(os.environ["RANK"]), sys.argv[1]
CPU = torch.device("cpu")
ROWS: dict[str, Callable[[], object]] = {}
SAVED: dict[str, Any] = {}  # what one row makes and later rows use


def row(way: Callable[[], object]) -> Callable[[], object]:
    """Add a row to the table, named as its function."""
    ROWS[way.__name__] = way
    return way


def ones(count: int = 4) -> torch.Tensor:
    return torch.ones(count)


# -- what Python issues ------------------------------------------------------------------------------------


@row
def all_reduce() -> None:
    dist.all_reduce(ones(), op=dist.ReduceOp.MAX)


def mean(value: torch.Tensor) -> torch.Tensor:
    """Reduce as a helper does that a whole program goes through."""
    dist.all_reduce(value)
    return value / 2


class Reducing(nn.Module):
    def forward(self, value: torch.Tensor) -> torch.Tensor:
        return mean(value)


@row
def all_reduce_through_helpers() -> None:
    with torch.no_grad():
        Reducing()(ones(3))


@row
def all_reduce_bfloat16() -> None:
    dist.all_reduce(torch.ones(6, dtype=torch.bfloat16))


@row
def all_reduce_imported_before_attach() -> None:
    early_bound_all_reduce(ones())


@row
def all_reduce_async() -> None:
    dist.all_reduce(ones(), async_op=True).wait()


@row
def all_reduce_async_never_waited_for() -> None:
    SAVED["work"] = dist.all_reduce(ones(), async_op=True)


@row
def process_group_allreduce() -> None:
    dist.group.WORLD.allreduce([ones()]).wait()


@row
def process_group_barrier() -> None:
    dist.group.WORLD.barrier().wait()


@row
def broadcast() -> None:
    dist.broadcast(ones(), src=1)


@row
def reduce() -> None:
    dist.reduce(ones(), dst=0)


@row
def all_gather() -> None:
    dist.all_gather([ones(), ones()], ones())


@row
def all_gather_into_tensor() -> None:
    dist.all_gather_into_tensor(ones(8), ones(4))


@row
def reduce_scatter() -> None:
    dist.reduce_scatter(ones(2), [ones(2), ones(2)])


@row
def reduce_scatter_tensor() -> None:
    dist.reduce_scatter_tensor(ones(4), ones(8))


@row
def gather() -> None:
    dist.gather(ones(), [ones(), ones()] if RANK == 0 else None, dst=0)


@row
def scatter() -> None:
    dist.scatter(ones(), [ones(), ones()] if RANK == 1 else None, src=1)


@row
def all_to_all_single() -> None:
    dist.all_to_all_single(ones(4), ones(4))


@row
def all_to_all_single_uneven() -> None:
    splits = [1, 3] if RANK == 0 else [3, 5]
    dist.all_to_all_single(ones(sum(splits)), ones(sum(splits)), splits, splits)


@row
def barrier() -> None:
    dist.barrier()


@row
def monitored_barrier() -> None:
    dist.monitored_barrier(timeout=datetime.timedelta(seconds=60))


@row
def send_recv() -> None:
    dist.recv(ones(), src=1) if RANK == 0 else dist.send(ones(), dst=0)


@row
def recv_from_anyone() -> None:
    dist.recv(ones()) if RANK == 0 else dist.send(ones(), dst=0)


@row
def isend_irecv() -> None:
    works = [dist.isend(ones(3), dst=1 - RANK, tag=1), dist.irecv(ones(3), src=1 - RANK, tag=1)]
    for work in works:
        work.wait()


@row
def batch_isend_irecv() -> None:
    peer = 1 - RANK
    for work in dist.batch_isend_irecv([dist.P2POp(dist.isend, ones(), peer), dist.P2POp(dist.irecv, ones(), peer)]):
        work.wait()


@row
def all_gather_object() -> None:
    dist.all_gather_object([None, None], {"rank": 0})


@row
def broadcast_object_list() -> None:
    dist.broadcast_object_list(["x"], src=1)


@row
def gather_object() -> None:
    dist.gather_object("x", [None, None] if RANK == 0 else None, dst=0)


@row
def scatter_object_list() -> None:
    dist.scatter_object_list([None], ["a", "b"] if RANK == 1 else [None, None], src=1)


@row
def coalesced_all_reduce() -> None:
    with dist.distributed_c10d._coalescing_manager():
        dist.all_reduce(ones(3))
        dist.all_reduce(ones(5))


@row
def coalesced_all_gather() -> None:
    with dist.distributed_c10d._coalescing_manager():
        dist.all_gather_into_tensor(ones(6), ones(3))
        dist.all_gather_into_tensor(ones(10), ones(5))


@row
def inference_mode() -> None:
    with torch.inference_mode():
        dist.all_reduce(ones())


@row
def thread_of_ones_own() -> None:
    thread = threading.Thread(target=lambda: dist.all_reduce(ones()))
    thread.start()
    thread.join()


@row
def differentiable_all_reduce() -> None:
    dist_nn.all_reduce(ones().requires_grad_()).sum().backward()


@row
def differentiable_all_gather() -> None:
    torch.stack(dist_nn.all_gather(ones().requires_grad_())).sum().backward()


# -- groups, stores ------------------------------------------------------------------------------------------


@row
def new_group() -> None:
    SAVED["pair"] = dist.new_group([0, 1], group_desc="pair")


@row
def collective_in_a_group() -> None:
    dist.all_reduce(ones(), group=SAVED["pair"])


@row
def new_subgroups() -> None:
    dist.new_subgroups(group_size=1)


@row
def device_mesh() -> None:
    SAVED["mesh"] = dist.init_device_mesh("cpu", (1, 2), mesh_dim_names=("dp", "tp"))


@row
def collective_in_a_mesh_dimension() -> None:
    dist.all_reduce(ones(), group=SAVED["mesh"].get_group("tp"))


@row
def destroy_a_group() -> None:
    dist.destroy_process_group(SAVED["pair"])


@row
def store_wait() -> None:
    store = dist.distributed_c10d._get_default_store()
    if RANK == 0:
        store.wait(["ready"])
    else:
        store.set("ready", "1")


@row
def store_get() -> None:
    store = dist.distributed_c10d._get_default_store()
    if RANK == 0:
        store.get("value")
    else:
        store.set("value", "1")


# -- what C++ issues --------------------------------------------------------------------------------------------


def small_net(width: int = 64, layers: int = 3) -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(*[nn.Linear(width, width, bias=False) for _ in range(layers)])


def one_step(model: nn.Module, width: int = 64) -> None:
    model(torch.ones(2, width)).sum().backward()


@row
def ddp_init() -> None:
    SAVED["ddp"] = DistributedDataParallel(small_net(), bucket_cap_mb=0.02)


@row
def ddp_first_step() -> None:
    one_step(SAVED["ddp"])


@row
def ddp_second_step_rebuilds_buckets() -> None:
    one_step(SAVED["ddp"])


@row
def ddp_third_step() -> None:
    one_step(SAVED["ddp"])


@row
def ddp_fourth_step() -> None:
    one_step(SAVED["ddp"])


@row
def ddp_no_sync() -> None:
    with SAVED["ddp"].no_sync():
        one_step(SAVED["ddp"])


@row
def ddp_buffers() -> None:
    model = DistributedDataParallel(nn.Sequential(nn.Linear(4, 4, bias=False), nn.BatchNorm1d(4)))
    for _ in range(2):
        model(torch.ones(2, 4)).sum().backward()


@row
def ddp_find_unused() -> None:
    class Unused(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.used, self.idle = nn.Linear(4, 4, bias=False), nn.Linear(4, 4, bias=False)

        def forward(self, batch: torch.Tensor) -> torch.Tensor:
            return self.used(batch)

    model = DistributedDataParallel(Unused(), find_unused_parameters=True)
    model(torch.ones(2, 4)).sum().backward()


@row
def ddp_comm_hook() -> None:
    model = DistributedDataParallel(nn.Linear(4, 4, bias=False))
    model.register_comm_hook(None, default_hooks.allreduce_hook)
    model(torch.ones(2, 4)).sum().backward()


@row
def ddp_join() -> None:
    model = DistributedDataParallel(nn.Linear(4, 4, bias=False))
    with Join([model]):
        for _ in range(1 + RANK):
            model(torch.ones(2, 4)).sum().backward()


@row
def functional_all_reduce() -> None:
    functional.wait_tensor(functional.all_reduce(ones(), "sum", dist.group.WORLD))


@torch.jit.script
def _all_reduced(tensor: torch.Tensor) -> torch.Tensor:
    return torch.ops._c10d_functional.wait_tensor(torch.ops._c10d_functional.all_reduce(tensor, "sum", "0"))


@torch.jit.script
def _all_reduced_by_torch(tensor: torch.Tensor) -> torch.Tensor:
    return torch.jit.wait(torch.jit.fork(_all_reduced, tensor))


@row
def functional_in_a_thread_of_torch() -> None:
    """Such a thread has no frames of Python: nor has autograd's for a GPU, which issues the buckets of DDP there."""
    _all_reduced_by_torch(ones())


@row
def functional_all_gather() -> None:
    functional.wait_tensor(functional.all_gather_tensor(ones(), 0, dist.group.WORLD))


@row
def functional_reduce_scatter() -> None:
    functional.wait_tensor(functional.reduce_scatter_tensor(ones(4), "sum", 0, dist.group.WORLD))


@row
def functional_all_to_all() -> None:
    functional.wait_tensor(functional.all_to_all_single(ones(4), [2, 2], [2, 2], dist.group.WORLD))


@row
def functional_autograd() -> None:
    functional.all_gather_tensor_autograd(ones().requires_grad_(), 0, dist.group.WORLD).sum().backward()


@row
def distribute_a_tensor() -> None:
    SAVED["sharded"] = distribute_tensor(ones(8), SAVED["mesh"]["tp"], [Shard(0)])


@row
def dtensor_full() -> None:
    SAVED["sharded"].full_tensor()


@row
def dtensor_redistribute() -> None:
    SAVED["sharded"].redistribute(placements=[Replicate()]).to_local().sum()


@row
def dtensor_partial_to_replicate() -> None:
    DTensor.from_local(ones(), SAVED["mesh"]["tp"], [Partial()]).full_tensor()


@row
def compiled_by_eager_backend() -> None:
    torch.compile(lambda t: functional.all_reduce(t, "sum", dist.group.WORLD) + 1, backend="eager", fullgraph=True)(
        ones()
    ).sum().item()


@row
def compiled_by_inductor() -> None:
    torch.compile(lambda t: functional.all_reduce(t * 2, "sum", dist.group.WORLD) + 1, fullgraph=True)(ones())


@row
def compiled_dist_all_reduce() -> None:
    def step(tensor: torch.Tensor) -> torch.Tensor:
        dist.all_reduce(tensor)
        return tensor + 1

    torch.compile(step, backend="eager", fullgraph=True)(ones())


# -- FSDP, checkpoints, pipelines ----------------------------------------------------------------------------------


@row
def fsdp1_init() -> None:
    model = small_net(8, 2)
    SAVED["fsdp1"] = FullyShardedDataParallel(model, device_id=CPU, auto_wrap_policy=ModuleWrapPolicy({nn.Linear}))
    SAVED["adam1"] = torch.optim.Adam(SAVED["fsdp1"].parameters())


@row
def fsdp1_step() -> None:
    one_step(SAVED["fsdp1"], 8)
    SAVED["adam1"].step()


@row
def fsdp1_clip_grad_norm() -> None:
    SAVED["fsdp1"].clip_grad_norm_(1.0)


@row
def fsdp1_full_state_dict() -> None:
    with FullyShardedDataParallel.state_dict_type(SAVED["fsdp1"], StateDictType.FULL_STATE_DICT, FullStateDictConfig()):
        SAVED["fsdp1"].state_dict()


@row
def fsdp1_sharded_state_dict() -> None:
    with FullyShardedDataParallel.state_dict_type(
        SAVED["fsdp1"],
        StateDictType.SHARDED_STATE_DICT,
        ShardedStateDictConfig(),
        ShardedOptimStateDictConfig(),
    ):
        SAVED["fsdp1"].state_dict()


@row
def fsdp1_optimizer_state() -> None:
    FullyShardedDataParallel.optim_state_dict(SAVED["fsdp1"], SAVED["adam1"])


@row
def fsdp2_init() -> None:
    model = small_net(8, 2)
    for layer in model:
        fully_shard(layer, mesh=SAVED["mesh"]["tp"])
    SAVED["fsdp2"] = fully_shard(model, mesh=SAVED["mesh"]["tp"])
    SAVED["adam2"] = torch.optim.Adam(model.parameters())


@row
def fsdp2_step() -> None:
    one_step(SAVED["fsdp2"], 8)
    SAVED["adam2"].step()


@row
def fsdp2_clip_grad_norm() -> None:
    norm = nn.utils.clip_grad_norm_(SAVED["fsdp2"].parameters(), 1.0)
    norm.full_tensor()


@row
def fsdp2_full_state_dict() -> None:
    checkpoint_state.get_model_state_dict(
        SAVED["fsdp2"], options=checkpoint_state.StateDictOptions(full_state_dict=True)
    )


@row
def fsdp2_sharded_state_dict() -> None:
    checkpoint_state.get_model_state_dict(SAVED["fsdp2"])


@row
def fsdp2_optimizer_state() -> None:
    checkpoint_state.get_optimizer_state_dict(
        SAVED["fsdp2"], SAVED["adam2"], options=checkpoint_state.StateDictOptions(full_state_dict=True)
    )


@row
def checkpoint_save() -> None:
    dcp.save({"weight": ones(2), "step": 3}, checkpoint_id=f"{SHARED}/checkpoint")


@row
def checkpoint_load() -> None:
    dcp.load({"weight": ones(2)}, checkpoint_id=f"{SHARED}/checkpoint")


@row
def checkpoint_async_save() -> None:
    dcp.async_save({"weight": ones(2)}, checkpoint_id=f"{SHARED}/async", process_group=SAVED["io"]).result()


class Stage(nn.Module):
    """One stage of a pipeline."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def forward(self, batch: torch.Tensor) -> torch.Tensor:
        return self.linear(batch)


def loss(out: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    return (out - target).square().mean()


@row
def pipeline_1f1b() -> None:
    stage = PipelineStage(Stage(), RANK, 2, CPU)
    schedule = Schedule1F1B(stage, n_microbatches=2, loss_fn=loss)
    schedule.step(torch.ones(4, 4)) if RANK == 0 else schedule.step(target=torch.ones(4, 4))


@row
def pipeline_interleaved() -> None:
    stages = [PipelineStage(Stage(), RANK + 2 * chunk, 4, CPU) for chunk in range(2)]
    schedule = ScheduleInterleaved1F1B(stages, n_microbatches=2, loss_fn=loss)
    schedule.step(torch.ones(4, 4)) if RANK == 0 else schedule.step(target=torch.ones(4, 4))


@row
def destroy_and_init_again() -> None:
    dist.destroy_process_group()
    store = dist.FileStore(f"{SHARED}/second-store", 2)
    dist.init_process_group("gloo", store=store, rank=RANK, world_size=2)
    dist.all_reduce(ones())
