"""Gloo's all-reduce of N floats and Gloo's barrier through torch.distributed, for benches/peers.sh.

    python3 torch_gloo.py 2 all-reduce 25557032 9     (replicas, elements, repeats)
    python3 torch_gloo.py 2 barrier 100 9             (replicas, barriers in a row, repeats)
    python3 torch_gloo.py version

Prints the seconds of one all-reduce, or of one barrier: the median over the repeats of the slowest replica's.
"""

import statistics
import sys
import tempfile
import time

import torch
import torch.distributed as dist
import torch.multiprocessing as mp

WARM_UPS = 2


def measure(what, count):
    """A function that does the work once and returns this replica's seconds for one of it."""
    if what == "all-reduce":
        # Zeros stay zeros however often they are summed up: no overflow, no subnormals.
        vector = torch.zeros(count)
        # Of few elements so often in a row that the clock does not count.
        sums = 200 if count <= 1024 else 10 if count <= 100_000 else 1

        def once():
            begun = time.perf_counter()
            for _ in range(sums):
                dist.all_reduce(vector)
            return (time.perf_counter() - begun) / sums

    else:

        def once():
            begun = time.perf_counter()
            for _ in range(count):
                dist.barrier()
            return (time.perf_counter() - begun) / count

    return once


def replica(rank, replicas, meeting_place, what, count, repeats):
    torch.set_num_threads(1)
    dist.init_process_group("gloo", f"file://{meeting_place}/store", rank=rank, world_size=replicas)
    once = measure(what, count)
    seconds = []
    for repeat in range(-WARM_UPS, repeats):
        dist.barrier()
        slowest = torch.tensor([once()], dtype=torch.float64)
        dist.all_reduce(slowest, op=dist.ReduceOp.MAX)
        if repeat >= 0:
            seconds.append(slowest.item())
    if rank == 0:
        print(f"{statistics.median(seconds):.9f}", flush=True)
    dist.barrier()
    dist.destroy_process_group()


def main():
    if sys.argv[1:] == ["version"]:
        if not dist.is_available() or not dist.is_gloo_available():
            sys.exit("this torch has no gloo")
        print(f"gloo of torch {torch.__version__}")
        return
    if len(sys.argv) != 5 or sys.argv[2] not in ("all-reduce", "barrier"):
        sys.exit(__doc__)
    replicas, what, count, repeats = int(sys.argv[1]), sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
    with tempfile.TemporaryDirectory() as meeting_place:
        mp.spawn(replica, args=(replicas, meeting_place, what, count, repeats), nprocs=replicas)


if __name__ == "__main__":
    main()
