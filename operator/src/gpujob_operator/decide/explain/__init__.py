"""Why a job is where it is and not elsewhere."""
