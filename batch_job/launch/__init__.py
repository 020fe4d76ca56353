"""The command line of spark-submit, and the exit codes of steps. Airflow imports `spark_submit` without the runtime."""
