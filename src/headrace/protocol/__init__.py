"""What driver and tasks exchange: plans, parcels between tasks, and reports."""
