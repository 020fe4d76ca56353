"""The page *Tandem* of Airflow's UI: the runs, their reports, and the deadlines that runs have missed."""
