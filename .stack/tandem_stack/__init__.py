"""The local stack: environments, child processes, the demo.

Any Python must be able to read this file, also one too old or too new for the rest: it says which one is needed.
"""

import sys

if not (3, 11) <= sys.version_info[:2] <= (3, 12):
    sys.stderr.write(
        "Python 3.11 or 3.12 is needed, %s is %d.%d: run `make PYTHON=python3.11 ...`\n"  # noqa: UP031
        % ((sys.executable or "this",) + sys.version_info[:2])  # noqa: RUF005
    )
    sys.exit(2)
