"""Gangs of fixed size on 16 nodes x 4 T4 with measured step times (Pollux, OSDI'21).

The rules were read in the authors' simulator (petuum/adaptdl, branch osdi21-artifact, Apache-2.0)
and written anew.
"""
