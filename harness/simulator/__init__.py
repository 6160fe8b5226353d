"""A continuous-batching server with MTP in virtual time: scenario and hardware in, an ordinary run out.

hardware    what a machine can do, from scenarios/hardware/*.yaml
shapes      what a model weighs and computes
attention   segments, workgroups, bytes and seconds of a verify-attention call
steps       seconds of a decode step and of a prefill chunk, part by part
acceptance  how many tokens each verify step yields
causes      what can be made worse on purpose, by name
serving     one pass: the scheduler's loop, and what the client sees of it
simulate    a scenario's launches and passes
writer      the same as a stored run, marked as simulated
breakdown   where the time went
against     predicted beside measured; against_kernel: of single attention calls
"""
