"""What releases cost and how they are made: events, mechanisms, accountants, ledger, calibration, theorems."""
