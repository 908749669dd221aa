"""Speed inside one engine: decoding, drafts, scoring."""
