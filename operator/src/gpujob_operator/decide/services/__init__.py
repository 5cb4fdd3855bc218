"""Decides about services: how many replicas, which revision, and when one replaces another.

Replicas are jobs, so placement, quota, memory and moves are decided by `planner` like those of
every other job.
"""
