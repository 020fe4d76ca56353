#!/bin/sh
# Starts Redis with the users of users.acl, whose passwords come from the environment. Arguments go to redis-server.
set -eu
umask 077
users="${TANDEM_REDIS_USERS:-/tmp/users.acl}"
rules="$(cat "$(dirname "$0")/users.acl")"
if redis-server --version | grep -q ' v=[0-6]\.'; then
  # It cannot tell reading from writing: a night that may read heartbeats could write them there.
  rules="$(printf '%s\n' "$rules" | sed '/^user nightly /s/ %R~tandem:{routing}:[^ ]*//g; s/%R~/~/g')"
fi
for user in HEALTH SERVICE NIGHTLY OPERATOR BACKUP; do
  eval "password=\${REDIS_${user}_PASSWORD:-}"
  case "$password" in
    '' | change-me | *[!A-Za-z0-9]*)
      echo "REDIS_${user}_PASSWORD: expected letters and digits, and not change-me: copy .env.example to .env and set its secrets" >&2
      exit 2 ;;
  esac
  rules="$(printf '%s\n' "$rules" | sed "s/@${user}_PASSWORD@/$password/")"
done
# An ACL file has no comments.
printf '%s\n' "$rules" | grep '^user ' >"$users"
exec redis-server --aclfile "$users" "$@"
