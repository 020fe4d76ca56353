#!/bin/sh
# Does what docker-compose.yml asks of the entry point of Postgres's image: a first start makes the user and the database.
set -eu
[ "$1" = postgres ] || exec "$@"
if [ ! -s "$PGDATA/PG_VERSION" ]; then
  (umask 077 && echo "$POSTGRES_PASSWORD" >/tmp/password)
  initdb --username "$POSTGRES_USER" --pwfile /tmp/password --auth-host scram-sha-256
  rm /tmp/password
  echo "host all all all scram-sha-256" >>"$PGDATA/pg_hba.conf"
  pg_ctl --wait --options "-c listen_addresses=" start
  createdb --username "$POSTGRES_USER" "$POSTGRES_DB"
  pg_ctl --wait --mode fast stop
fi
exec postgres -c "listen_addresses=*"
