"""Runs llama.cpp's HTTP server on 127.0.0.1 until SIGTERM. Started by the llamacpp engine, not by hand."""

from __future__ import annotations

import argparse
import signal
import sys
import threading


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", required=True)
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--alias", required=True, help="name under which the model is served")
    parser.add_argument("--slots", type=int, required=True)
    parser.add_argument("--threads", type=int, required=True)
    parser.add_argument("--context", type=int, required=True, help="tokens a slot")
    parser.add_argument("--draft-tokens", type=int, default=0)
    parser.add_argument("--synth-len", type=float, default=0.0)
    args = parser.parse_args()

    # Handlers first: a signal during the seconds in which the model loads must end the process too.
    ended = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: ended.set())

    import xllamacpp

    params = xllamacpp.CommonParams()
    params.model.path = args.model
    params.model_alias = args.alias if isinstance(params.model_alias, str) else [args.alias]
    params.hostnames = ["127.0.0.1"]
    params.port = args.port
    params.endpoint_metrics = True
    params.n_parallel = args.slots
    params.n_ctx = args.context * args.slots
    params.cpuparams.n_threads = args.threads
    params.cpuparams_batch.n_threads = args.threads
    if args.draft_tokens:
        params.load_mtp = True
        params.speculative.types = [xllamacpp.common_speculative_type.COMMON_SPECULATIVE_TYPE_DRAFT_MTP]
        params.speculative.draft.n_max = args.draft_tokens
        params.speculative.draft.cpuparams.n_threads = args.threads
        params.speculative.draft.cpuparams_batch.n_threads = args.threads
        if args.synth_len:
            params.speculative.synth_len = args.synth_len
    server = xllamacpp.Server(params)
    print("listening on", server.listening_address, flush=True)
    ended.wait()
    sys.stdout.flush()
    del server  # stops its threads before the interpreter ends


if __name__ == "__main__":
    main()
