"""What a run says: a document for programs and a text for people."""
