"""Bytes at a path or URL: bounded reads, whole writes, checksums.

Read `filesystem` first (one connector for folders and URLs), then `conditional` (of two who replace
a file at once, one does), `file` (one file, replaced whole), `checksum`, `archive` (arrays and JSON
in one file) and `lease` (who is at work). `redaction` keeps secrets out of what is written.
"""
