"""The words for what slows a job down without stopping it, and what that costs."""

from dataclasses import dataclass
from enum import Enum


class SlowKind(str, Enum):
    """Why a job is slower than it could be."""

    DATA_LOADING = "data_loading"
    GARBAGE_COLLECTION = "garbage_collection"
    CPU_CONTENTION = "cpu_contention"  # ready to run, and other processes have the core
    CPU_THROTTLING = "cpu_throttling"  # its control group has used up its quota
    CPU_STEAL = "cpu_steal"  # the host runs other guests
    STOPPED = "stopped"  # somebody stops and continues the process
    HOST_IO = "host_io"
    SAVING = "saving"
    GPU = "gpu"
    COMPUTE = "compute"
    OUTSIDE = "outside"  # neither computing nor in anything that is measured: it waits for something of its own
    SEQUENCE_IMBALANCE = "sequence_imbalance"  # its batches are bigger; no bad machine
    PIPELINE_IMBALANCE = "pipeline_imbalance"  # its stage has more to do; no bad machine
    NETWORK = "network"  # all are slow inside of collectives, and nobody is late
    FAIL_SLOW = "fail_slow"  # all steps have become slower at one moment


@dataclass(frozen=True, slots=True, kw_only=True)
class Slowness:
    """How much of a job's time is lost, and since when."""

    kind: SlowKind
    share: float  # of the job's time, 0..1
    lost_s: float  # so far: how much sooner the job could be where it is
    rank_hours: float  # the same, summed over the ranks that waited: GPU-hours where each has a GPU
    since_s: float  # how long ago it began
    persistent: bool  # seen in nearly all windows, not now and then
    on_gpus: bool = False
