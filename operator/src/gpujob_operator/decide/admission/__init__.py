"""Decides which pending jobs get GPUs in this cycle, and writes the reason for every other one.

One pass over the queues' heads nominates, assumes, preempts or explains. The pass may import every
package below it: backfill, preemption, placement, queue, lifecycle, measurement, capacity, packing,
model. It does not depend on the cache, because `planner` passes it views and functions.
"""
