"""``python -m companion`` is the ``attnconv`` command."""

import sys

from companion.cli import main

if __name__ == "__main__":  # notebooks run in processes that import this file
    sys.exit(main())
