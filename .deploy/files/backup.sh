#!/bin/sh
# backup.sh STATE OPERATOR: copies the files of both folders into new archives of BACKUP_FOLDER, also while a night
# runs, and prints their names.
#
# Each file is there before another names it: a run's record names what is in its table, a table's log names files of
# rows, a pointer names a release. So the naming ones are copied first. Those that change are replaced in one step.
# `_last_checkpoint` is left out: readers do without it, and open no table whose copied log lacks the one that it names.
set -eu
umask 077
at="$BACKUP_FOLDER/state-$(date -u +%Y%m%dT%H%M%SZ).tar"
# 1: a file was replaced, or went, while its folder was read.
add() { tar --append --file "$at.part" --directory "$@" || [ $? = 1 ]; }
tar --create --file "$at.part" --directory "$1" --files-from /dev/null
pointers='./releases/ACTIVE.json ./releases/MODELS.json'
for naming in ./runs $pointers; do
  if [ -e "$1/$naming" ]; then
    add "$1" "$naming"
  fi
done
# Twice alike: a list that is made while a log grows may lack an entry before one that it has. With a # in their names
# are those that are still written.
logs() { (cd "$1" && find . -path '*/_delta_log/*' -type f ! -name _last_checkpoint ! -name '*#*' | sort); }
found=$(logs "$1")
until [ "$found" = "$(logs "$1")" ]; do
  found=$(logs "$1")
done
printf '%s' "$found" | add "$1" --files-from -
# The Redis of a state folder has its own backup; graphs are compiled again.
add "$1" --exclude ./runs $(printf -- '--exclude %s ' $pointers) --exclude '_delta_log/*' --exclude ./redis --exclude ./compiled .
mv "$at.part" "$at"
echo "$at"
at="${at%/*}/operator-${at##*/state-}"
tar --create --file "$at.part" --directory "$2" .
mv "$at.part" "$at"
echo "$at"
