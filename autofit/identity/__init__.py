"""What makes measurements of two workloads comparable: digests of their structure, code and options."""
