"""Migrations, from the command that asks for one to its last step."""
