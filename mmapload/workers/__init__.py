"""Batches from worker processes in shared memory that is used again.

The training process writes the number of a free slot into the list of indices that it sends to a worker; the
worker puts the batch together in that slot and sends back where in it the tensors lie. The slot is free again
when the last tensor over it is gone.

`memory` is what the processes share, `slots` which part of it is free, `indices` what goes to a worker,
`collating` and `packing` what a worker makes of it and what comes back, `handover` the sum for one loader.
"""
