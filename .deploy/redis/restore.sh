#!/bin/sh
# restore.sh FILE FOLDER: makes a backup the append-only file of a Redis that is not running; FOLDER is its --dir.
set -eu
umask 077
if [ -e "$2/appendonlydir" ] || [ -e "$2/appendonly.aof" ]; then
  echo "$2: there is an append-only file already; move it away first" >&2
  exit 2
fi
if redis-server --version | grep -q ' v=[0-6]\.'; then
  cp "$1" "$2/restored.part"
  mv "$2/restored.part" "$2/appendonly.aof"
  exit
fi
mkdir "$2/restored.part"
cp "$1" "$2/restored.part/appendonly.aof.1.base.rdb"
printf 'file appendonly.aof.1.base.rdb seq 1 type b\n' >"$2/restored.part/appendonly.aof.manifest"
mv "$2/restored.part" "$2/appendonlydir"
