"""Load generators: calls over a socket from a process of their own, and the services that they are checked against."""
