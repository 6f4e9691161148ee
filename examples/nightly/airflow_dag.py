"""An Airflow DAG that checks the training plans in use every night. Copy it to the folder of your DAGs.

Needs Airflow 3, or the package apache-airflow-providers-standard for Airflow 2.
"""

from datetime import UTC, datetime, timedelta

from airflow import DAG
from airflow.providers.standard.operators.bash import BashOperator

with DAG(
    "autofit_nightly",
    schedule="15 2 * * *",
    start_date=datetime(2026, 1, 1, tzinfo=UTC),
    catchup=False,
    max_active_runs=1,
):
    BashOperator(
        task_id="check_plans",
        bash_command="cd /srv/training && .venv/bin/autofit nightly jobs.yaml --time 4h --html nightly.html",
        # autofit confirms a regression in the same night, so that a retry would only hide it.
        retries=0,
        execution_timeout=timedelta(hours=5),
    )
