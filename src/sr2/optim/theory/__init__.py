"""What the paper's theorems say of a run: stationarity, batches that grow, a certificate."""
