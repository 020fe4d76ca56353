"""What spark-submit runs. Alone in its folder, because spark-submit puts a script's folder on sys.path."""

import sys
from pathlib import Path

# A Python that is not the runtime's has no batch_job, and must still be able to say so.
sys.path.append(str(Path(__file__).parents[2]))

from batch_job import driver

sys.exit(driver.main(sys.argv[1:]))
