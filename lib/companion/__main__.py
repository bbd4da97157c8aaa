"""``python -m companion`` is the ``attnconv`` command."""

import sys

from companion.cli import main

sys.exit(main())
