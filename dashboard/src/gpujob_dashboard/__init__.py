"""The page of a cluster's GPUs, queues and jobs: read-only HTML, which the server renders."""
