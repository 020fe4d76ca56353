"""The secret by which a Spark cluster knows its applications, and encryption between their processes."""

from pathlib import Path

from batch_job.spark import gpus
from shared_model.errors import SettingError

_SETTING = "TANDEM_SPARK_SECRET_FILE"


def conf(master: str, secret_file: str) -> dict[str, str]:
    """Spark's options. A local master makes a secret for each application by itself, and so do yarn and Kubernetes; the
    secret of a standalone cluster is in a file, since others see a command line. Raises: SettingError for an unusable
    file."""
    made_by_spark = gpus.local_cores(master) > 0 or master == "yarn" or master.startswith("k8s://")
    if not made_by_spark and not secret_file:
        return {}
    encrypted = {"spark.authenticate": "true", "spark.network.crypto.enabled": "true"}
    return encrypted if made_by_spark else {**encrypted, "spark.authenticate.secret": _read(secret_file)}


def _read(path: str) -> str:
    try:
        secret = Path(path).read_text().strip()
    except OSError as error:
        raise SettingError(f"{_SETTING}={path}: cannot be read: {error.strerror}") from error
    if not secret:
        raise SettingError(f"{_SETTING}={path}: is empty; write 32 random bytes or more, in hexadecimal")
    return secret
