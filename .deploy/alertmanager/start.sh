#!/bin/sh
# Starts Alertmanager with the address of the webhook from the environment. Arguments go to alertmanager.
set -eu
umask 077
case "${ALERT_WEBHOOK_URL:-}" in
  # They would end the value in the configuration.
  *[[:space:]\"\\]*) wrong=yes ;;
  http://?* | https://?*) wrong= ;;
  *) wrong=yes ;;
esac
if [ "$wrong" ]; then
  echo "ALERT_WEBHOOK_URL: expected an address that begins with http:// or https://: copy .env.example to .env and set it" >&2
  exit 2
fi
config="${TANDEM_ALERTMANAGER_CONFIG:-/tmp/alertmanager.yml}"
escaped="$(printf '%s' "$ALERT_WEBHOOK_URL" | sed 's/[&|\\]/\\&/g')"
sed "s|@ALERT_WEBHOOK_URL@|$escaped|" "$(dirname "$0")/alertmanager.yml" >"$config"
exec alertmanager --config.file="$config" "$@"
