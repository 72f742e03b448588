"""What a user may exchange in SR2: the rule, the direction, the metric, the schedule. Each is a small object."""
