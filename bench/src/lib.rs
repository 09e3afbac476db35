//! Honest latency, bandwidth and rate: load, histograms, reports, budgets.
