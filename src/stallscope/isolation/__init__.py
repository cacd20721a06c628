"""The user's objects, generators and processes stay as they were."""
