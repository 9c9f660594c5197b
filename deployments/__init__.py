"""What a Prefect server and an image are given: deployments, automations, templates. No step of the pipeline."""
