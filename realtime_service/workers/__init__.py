"""Worker processes: how many and on which cores, who starts and watches them, and what is learned when one dies.

starting ──warm──▶ serving ──SIGTERM──▶ draining ──▶ gone
   │                  │
   └──────┬───────────┘ killed by a signal, or ended by itself
          ▼
       crashed ──▶ its suspects are examined; a new worker starts on the same cores
"""
