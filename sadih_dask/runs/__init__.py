"""A configured run: settings, directory, stages, record.

Read `settings` first (what a configuration may say) and `loading` (file, environment, command
line), then `directory` (artefacts, runs, latest), `stages` and `run`, and `record`.
"""
