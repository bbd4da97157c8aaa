"""``python -m attnconv`` is the ``attnconv`` command."""

import sys

from attnconv.cli import main

sys.exit(main())
