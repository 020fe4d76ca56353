"""The application of spark-submit. Its folder holds no other module: spark-submit puts it on sys.path."""

import sys
from pathlib import Path

# A Python that is not the runtime's has no batch_job, and must still be able to say so.
sys.path.append(str(Path(__file__).parents[2]))

from batch_job import driver

sys.exit(driver.main(sys.argv[1:]))
