"""Drives the schedulers on real engines: one scheduler for each device, one thread for each stream.

The budget of one call with one text of 16 tokens, in µs of CPU on a core of 2.3 GHz with AVX-512 VNNI:

    run                  1,390    parse                  15
    gRPC sends             205    decide, dispatch       46
    gRPC reads             114    queue                  70
    accept, loop            81    call of the engine     45
    caller, budgets         17    scores                 38
    encode                  45    answer and response    65
                                  metrics                13

Of a worker with one core, 16 connections, an interpreter without profile-guided optimisation; the run is what is left,
the others are shares of samples. In a process with two cores a call takes 350 more, for hand-overs between threads and
of the interpreter lock. Its streams would wait for the event loop to hand them work, so one batch waits for them. Two
texts run together where TANDEM_LATENCY_MAX_ROWS allows it.
"""
