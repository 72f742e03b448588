"""What several tests of the experiments use."""
