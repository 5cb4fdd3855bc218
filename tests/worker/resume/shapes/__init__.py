"""Scripts of many shapes, stopped at random steps: each ends as the plain run, or was refused."""
