#!/bin/sh
# Copies all that Redis holds into a new file of BACKUP_FOLDER, and prints its name. Arguments go to redis-cli.
set -eu
umask 077
at="${BACKUP_FOLDER:-/data}/redis-$(date -u +%Y%m%dT%H%M%SZ).rdb"
redis-cli --user backup --no-auth-warning "$@" --rdb "$at.part" >&2
mv "$at.part" "$at"
echo "$at"
