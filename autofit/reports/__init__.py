"""What turns records into something that a person looks at."""
