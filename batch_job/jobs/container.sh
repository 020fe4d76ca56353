#!/bin/bash
# The image's entry point. Spark on Kubernetes starts the container of an executor with the one word `executor`, and says
# the rest in variables; every other command is run as it is.
set -eu
if [ "${1:-}" != executor ]; then
    exec "$@"
fi
options=()
for name in $(compgen -v SPARK_JAVA_OPT_ | sort -t _ -k 4 -n); do
    options+=("${!name}")
done
jars=$(python -c 'import pyspark; print(pyspark.__path__[0])')/jars
exec java "${options[@]}" -Xms"$SPARK_EXECUTOR_MEMORY" -Xmx"$SPARK_EXECUTOR_MEMORY" -cp "${SPARK_CONF_DIR:-}:$jars/*" \
    org.apache.spark.scheduler.cluster.k8s.KubernetesExecutorBackend \
    --driver-url "$SPARK_DRIVER_URL" --executor-id "$SPARK_EXECUTOR_ID" --cores "$SPARK_EXECUTOR_CORES" \
    --app-id "$SPARK_APPLICATION_ID" --hostname "$SPARK_EXECUTOR_POD_IP" \
    --resourceProfileId "$SPARK_RESOURCE_PROFILE_ID" --podName "$SPARK_EXECUTOR_POD_NAME"
