"""``python -m attnconv`` is the ``attnconv`` command."""

import sys

from attnconv.batch.cli import main

sys.exit(main())
