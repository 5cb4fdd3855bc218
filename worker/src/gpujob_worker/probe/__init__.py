"""Running a module without a trace, and comparing what two runs gave."""
