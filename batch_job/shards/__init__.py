"""The parts that a day is cut into, each scored at once and kept as one file, and the schemas of these files."""
