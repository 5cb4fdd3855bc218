"""kopf's part of the operator: kopf follows the project's own kinds.

- `objects`: the handlers, which put each event into the cache and do nothing else.
- `memo`: what the handlers share. It crosses from kopf's thread to the operator's event loop.
- `settings`: kopf without its own writes, finalizers, annotations or events.
- `session`: kopf's HTTP session, which filters input that would stop kopf.
- `kopf_thread`: starts kopf, restarts it when it ends, and stops it.
"""
