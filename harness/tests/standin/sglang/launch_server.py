"""Starts as SGLang does: plug-ins in a process for each rank, "capture", then serve.

SGLang loads plug-ins in its launcher too; here that would only import torch once more.

What serves is the scripted server; the environment variable STANDIN_FAULT makes one thing go wrong.
"""

import argparse
import json
import multiprocessing
import os
import sys
import tempfile


def rank_process(rank, size, rendezvous, batches):
    import torch

    from sglang.srt.plugins import load_plugins

    load_plugins()
    from kernel import call, checks
    from kernel.config import Arch
    from sglang.srt.layers.attention import triton_backend

    torch.distributed.init_process_group("gloo", init_method=f"file://{rendezvous}", rank=rank, world_size=size)
    if os.environ.get("STANDIN_FAULT") != "no-gpu":
        checks.device_arch = call.device_arch = lambda device: Arch("gfx950", 2)
    backend = triton_backend.TritonAttnBackend(slots=128)
    for count in batches:
        batch, q = triton_backend.batch(count), torch.randn(count * 4, 16 * 256).bfloat16()
        forward = getattr(backend, "forward_extend", None) or backend.forward_extend_v2
        forward(q, None, None, triton_backend.layer(), batch)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--port", required=True)
    parser.add_argument("--served-model-name", required=True)
    parser.add_argument("--tp-size", type=int, default=1)
    parser.add_argument("--speculative-algorithm")
    args, _ = parser.parse_known_args()

    if args.speculative_algorithm:
        context = multiprocessing.get_context("spawn")
        rendezvous = tempfile.mktemp()
        ranks = [
            context.Process(target=rank_process, args=(rank, args.tp_size, rendezvous, [1, 2]))
            for rank in range(args.tp_size)
        ]
        for process in ranks:
            process.start()
        for process in ranks:
            process.join()
        if any(process.exitcode for process in ranks):
            sys.exit("a scheduler process ended while starting")
    script = {"engine": "scripted", "api": "sglang", "speculative": bool(args.speculative_algorithm), "ttft": 0.005}
    if args.speculative_algorithm:
        script["chunk_tokens"] = [3]
    argv = ["--port", args.port, "--identity", args.served_model_name, "--script", json.dumps(script)]
    os.execv(sys.executable, [sys.executable, "-m", "harness.engines.scripted_server", *argv])


if __name__ == "__main__":
    main()
