"""What the process has that workers of the start method "forkserver" come from."""

import gc

import torch  # noqa: F401 - a worker would take seconds to import it

gc.freeze()  # or each worker would copy pages of torch's objects to go through them
