"""New distributions for storage backends, from templates: what `hicache new-backend` writes."""
