#!/bin/sh
# backup.sh STATE OPERATOR: copies the files of both folders into new archives of BACKUP_FOLDER, also while a night
# runs, and prints their names.
#
# No file is changed in place, and each is there before another names it: a run's record names what is in its table, a
# table's log names files of rows. So the naming ones are copied first.
set -eu
umask 077
at="$BACKUP_FOLDER/state-$(date -u +%Y%m%dT%H%M%SZ).tar"
tar --create --file "$at.part" --directory "$1" --files-from /dev/null
if [ -d "$1/runs" ]; then
  tar --append --file "$at.part" --directory "$1" ./runs
fi
# Twice alike: a list that is made while a log grows may lack an entry before one that it has.
logs() { (cd "$1" && find . -path '*/_delta_log/*' -type f | sort); }
found=$(logs "$1")
until [ "$found" = "$(logs "$1")" ]; do
  found=$(logs "$1")
done
printf '%s' "$found" | tar --append --file "$at.part" --directory "$1" --files-from -
# 1: a file that is no part of a table yet was still written, or is gone. The Redis of a state folder has its own backup.
tar --append --file "$at.part" --directory "$1" --exclude ./runs --exclude _delta_log --exclude ./redis . || [ $? = 1 ]
mv "$at.part" "$at"
echo "$at"
at="${at%/*}/operator-${at##*/state-}"
tar --create --file "$at.part" --directory "$2" .
mv "$at.part" "$at"
echo "$at"
