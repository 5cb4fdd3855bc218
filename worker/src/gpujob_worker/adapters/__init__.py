"""Trainers and frameworks that are told what to do in their own words, a module for each."""
