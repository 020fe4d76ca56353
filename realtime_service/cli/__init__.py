"""Commands of operators: call, chat, describe, policy, dead-letters."""
