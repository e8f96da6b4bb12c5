"""Learning to hash from one-pass, mergeable statistics."""
