"""A small web server that shows pipelines, and changes nothing: metrics, health, pictures as JSON."""
