"""Drives the schedulers on real engines: one scheduler for each device, one thread for each stream.

The budget of one call with one text of 16 tokens, in µs of CPU on a core of 2.6 GHz with AVX-512 VNNI:

    parse                    5    run, alone           2,100
    encode                  49    run, of two together 1,400 each
    collate                  4    scores                  31
    answer and response     40    metrics                  4

With two callers the event loop's thread takes 1,050 a call, of which 100 are listed. The rest, by subtraction, is
grpc.aio, asyncio and the hand-over of the interpreter lock: a busy device gains by fewer hand-overs, not by shorter
parts. Two texts run together where TANDEM_LATENCY_MAX_ROWS allows it.
"""
