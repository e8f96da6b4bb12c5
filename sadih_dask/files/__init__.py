"""Bytes at a path or URL: bounded reads, whole writes, checksums.

Read `filesystem` first (one connector for folders and URLs), then `file` (one file, replaced
whole), `checksum`, `archive` (arrays and JSON in one file) and `lease` (who writes). `redaction`
keeps secrets out of what is written.
"""
