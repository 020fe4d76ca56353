"""Drives the schedulers on real engines: one scheduler for each device, one thread for each stream.

The budget of one call with one text of 16 tokens, in µs of CPU on a core of 2.6 GHz with AVX-512 VNNI:

    parse                    5    run, alone           2,100
    encode                  49    run, of two together 1,400 each
    collate                  4    scores                  31
    answer and response     40    metrics                  4

With two callers the event loop's thread takes 1,050 a call. What is listed of it is 100: the rest is grpc.aio, asyncio
and the hand-over of the interpreter lock. So a busy device gains by fewer runs and hand-overs, not by shorter parts.
"""
