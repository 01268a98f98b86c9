"""`python -m vit.cli`, which launchers start."""

import sys

from vit.cli import main

sys.exit(main())
