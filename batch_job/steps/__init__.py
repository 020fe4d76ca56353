"""The steps of a nightly run, one module each, named as in the DAG and on the command line."""
