"""Write a store by the format's profile, atomically and resumably.

`workfolder` is where a store is built and how it gets to its place, `journal` what is done of it, `chunks`,
`names` and `documents` its three kinds of files, and `durable` how any file gets to the disk.
"""
