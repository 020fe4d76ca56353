"""What a partition becomes: units, their rows, the files executors write, and what those say of the attempt."""
