"""The end of a run for those who look at Airflow: the event of the asset `scores`, the report, and the run's note."""

import json
from typing import Any

from airflow.sdk import Asset
from airflow.sdk.exceptions import AirflowSkipException

from dags.operators import Step, fail

#: Its events have the day as their partition, also where a person triggered the run. A further model has another.
SCORES = Asset("scores")
#: Key of the XCom in which `report` leaves the run's note, for the plugin `run_notes`.
NOTE = "note"


class Outcome(Step):
    """A step after which the run's record tells what came of it."""

    def run_facts(self) -> tuple[int, dict[str, Any]]:
        """Exit code, and what the record says in few words; empty where it cannot be read."""
        code, line = self.run_step("--facts", step="report")
        return code, {} if code else json.loads(line)


class Publish(Outcome):
    """Publishes the scores, and says so to DAGs that wait for the day's and, where it is on, to OpenLineage."""

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.scores = Asset(f"scores-{self.further}") if self.further else SCORES
        self.outlets = [self.scores]
        self._lineage: dict[str, Any] = {}

    def execute(self, context: Any) -> None:
        super().execute(context)
        code, facts = self.run_facts()
        if code:
            fail(self, code, "the scores are published, and their record cannot be read")
        self._lineage = facts.pop("lineage")
        event = context["outlet_events"][self.scores]
        event.extra = {name: value for name, value in facts.items() if name != "note"}
        event.add_partitions(self.ds)

    def get_openlineage_facets_on_complete(self, _: Any) -> Any:
        """For OpenLineage's provider, which calls it in the process of the task that has ended."""
        # Not sooner: other tasks would pay for it.
        from dags import lineage

        return lineage.of_run(self._lineage) if self._lineage else None


class Report(Outcome):
    """Prints the run, also one that failed. Its own task fails for the run's figures only: that a step before it failed
    is that step's to say. `plan`: the task that writes the record."""

    def __init__(self, *, plan: str, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.plan = plan

    def execute(self, context: Any) -> None:
        run = context["run_id"]
        names = sorted(self.get_flat_relative_ids(upstream=True))
        before = context["ti"].get_task_states(self.dag_id, task_ids=names, run_ids=[run]).get(run, {})
        # Airflow's Python cannot look for the record where it is behind a URL.
        if before.get(self.plan) != "success":
            raise AirflowSkipException(f"nothing to report: `plan` wrote no {self.record}")
        self._note(context)
        code, line = self.run_step()
        if code and set(before.values()) <= {"success", "skipped"}:
            fail(self, code, line)

    def _note(self, context: Any) -> None:
        code, facts = self.run_facts()
        if not code:
            context["ti"].xcom_push(key=NOTE, value=facts["note"])
