"""Philly-derived traces with measured stage times, and the policies published on them (SIGCOMM'22).

The rules were read in the authors' simulator (pkusys/Muri, Apache-2.0) and written anew.
"""
