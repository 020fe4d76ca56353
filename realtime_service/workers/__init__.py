"""Worker processes: how many and on which cores, and the supervisor that starts them again when they die.

starting ──warm──▶ serving ──SIGTERM──▶ draining ──▶ gone
   │                  │
   └──────┬───────────┘ killed by a signal, or ended by itself
          ▼
       crashed ──▶ a new worker starts on the same cores
"""
