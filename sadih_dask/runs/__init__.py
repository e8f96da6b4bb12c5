"""A configured run: settings, directory, stages, record.

Read `settings` first (what a configuration may say) and `loading` (file, environment, command
line), then `artefact`, `directory` (runs, latest), `stage` (what one is), `fit` (which decides
about the model in use), the other `stages`, `run` and `record`.
"""
