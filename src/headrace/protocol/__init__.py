"""What driver and tasks say to each other: plans out, parcels between tasks, reports back."""
