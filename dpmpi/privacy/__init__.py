"""What releases cost and how they are made: events, mechanisms, accountants, filters, ledger, calibration, theorems."""
