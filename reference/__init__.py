"""What the KV-cache spec says: values and plain integer arithmetic (FACTS sections 1 to 10)."""
