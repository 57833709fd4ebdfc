"""The command line of Headrace as a program for spark-submit: ``spark-submit … main.py run visits.py …``."""

from headrace.cli import main

main()
