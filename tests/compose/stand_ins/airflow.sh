#!/bin/bash
# Does what docker-compose.yml asks of the entry point of Airflow's image.
set -eu
if [ "${_AIRFLOW_DB_MIGRATE:-}" ]; then airflow db migrate; fi
if [ "${_AIRFLOW_WWW_USER_CREATE:-}" ]; then
  airflow users create --username "$_AIRFLOW_WWW_USER_USERNAME" --password "$_AIRFLOW_WWW_USER_PASSWORD" \
    --firstname Airflow --lastname Admin --email admin@example.com --role Admin
fi
case "$1" in
  bash | python | airflow) exec "$@" ;;
  *) exec airflow "$@" ;;
esac
