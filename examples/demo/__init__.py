"""The main job on one machine: raw text through Kafka, two workers and the loader into a transformer that learns."""
