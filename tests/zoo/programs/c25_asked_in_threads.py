"""Train a small policy; the first rank lets a service in another process score samples, several at a time.

torchrun --standalone --nproc-per-node 2 c25_asked_in_threads.py
"""

import socket
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

import ncclwatch

ROUNDS, STEPS, SAMPLES, ANSWERS_AFTER_S = 3, 15, 4, (0.1, 0.1, 14.0)
SERVICE = """
import socket, sys, threading, time
server = socket.socket(fileno=int(sys.argv[1]))
def answer(connection, seconds):
    with connection:
        connection.recv(4096); time.sleep(seconds); connection.sendall(b"0.5")
for seconds in map(float, sys.argv[2:]):
    threading.Thread(target=answer, args=(server.accept()[0], seconds)).start()
"""


def start_service() -> int:
    """Start the service, and return its port."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        seconds = [str(each) for each in ANSWERS_AFTER_S for _ in range(SAMPLES)]
        subprocess.Popen([sys.executable, "-c", SERVICE, str(server.fileno()), *seconds], pass_fds=(server.fileno(),))
        return server.getsockname()[1]


def score(port: int, sample: Tensor) -> float:
    with socket.create_connection(("127.0.0.1", port)) as connection:
        connection.sendall(repr(sample.tolist()).encode())
        return float(connection.recv(64))


def main() -> None:
    ncclwatch.attach()
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(rank)
    port = start_service() if rank == 0 else 0
    model = DistributedDataParallel(nn.Sequential(nn.Linear(16, 48), nn.GELU(), nn.Linear(48, 16)))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    rewards = torch.zeros(SAMPLES)
    with ThreadPoolExecutor(SAMPLES) as pool:
        for _ in range(ROUNDS):
            for _ in range(STEPS):
                inputs = torch.randn(SAMPLES, 16)
                loss = F.mse_loss(model(inputs), inputs.roll(1, dims=1), reduction="none").mean(dim=1)
                optimizer.zero_grad()
                (loss * (1.0 - rewards)).mean().backward()
                optimizer.step()
            if rank == 0:
                rewards = torch.tensor(list(pool.map(lambda sample: score(port, sample), inputs)))
            dist.broadcast(rewards, src=0)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
