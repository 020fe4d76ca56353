"""What a day's messages are read from: where they are, in which format, and whether they can be read. No JVM."""
