"""The dashboard's pages and streams on a large cluster (`python -m bench.dashboard`)."""
