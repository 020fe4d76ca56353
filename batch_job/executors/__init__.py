"""What scores in Spark's executors: the device a worker was given, its engine, texts ahead of it, and what fails."""
