"""``python -m attnconv`` is the ``attnconv`` command, which the companion has."""

import runpy

if __name__ == "__main__":
    runpy.run_module("companion", run_name="__main__")
