"""Which path, which replica: a pure decision (`policy`) over a snapshot that is kept fresh in the background."""
